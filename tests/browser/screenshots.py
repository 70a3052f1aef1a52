"""Makes the documents' screenshots, from the service of a demo whose jobs have just ended.

While they write, the parts of a page may be a second apart, and their numbers differ.

    python -m tests.browser.screenshots
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.tools.browser import running_browser

_IMAGES = Path(__file__).parents[2] / "docs" / "images"
_ADDRESS = re.compile(r'"address": "(http://[^"\s]+)"')
# How long the jobs write; the service goes on for a while, and has nothing to do then.
_SECONDS, _SHOWN_AFTER_S = 25, 28
_PAGES = {"overview.png": "/", "table.png": "/tables/demo/sales/orders"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        demo = subprocess.Popen(
            [sys.executable, "-m", "compactord_demo", "--seconds", str(_SECONDS)],
            env={**os.environ, "TMPDIR": folder},
        )
        try:
            url = _address(Path(folder))
            time.sleep(_SHOWN_AFTER_S)
            with running_browser() as browser:
                for name, path in _PAGES.items():
                    with browser.open(url + path, width=1360, height=1300) as tab:
                        tab.page.screenshot(path=str(_IMAGES / name))
        finally:
            demo.terminate()
            demo.wait()


def _address(folder: Path) -> str:
    """Where the demo's service listens."""
    while True:
        for log in folder.glob("compactord-daemon-*/daemon.log"):
            found = _ADDRESS.search(log.read_text(errors="replace"))
            if found is not None:
                return found.group(1).rstrip("/")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
