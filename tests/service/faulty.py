"""A daemon whose store fails or hangs when a test says so."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.service.daemon_process import Services, configuration


class Faulty:
    """A daemon whose store does what `tell` says."""

    def __init__(self, services: Services, warehouse: Path, folder: Path, **sections: Any) -> None:
        self._control = folder / "faults.json"
        self.tell({})
        self.service = services.start(
            configuration(warehouse, **sections),
            command=(sys.executable, "-m", "tests.service.launcher"),
            environment={"FAULTS": str(self._control)},
        ).wait_started()

    def tell(self, faults: dict[str, object]) -> None:
        fresh = self._control.with_suffix(".new")
        fresh.write_text(json.dumps(faults))
        fresh.replace(self._control)

    def has_hung(self, pattern: str) -> bool:
        """Whether a call has begun to wait whose path matches."""
        hung = self._control.with_name("hung")
        return hung.exists() and re.search(pattern, hung.read_text(), re.MULTILINE) is not None
