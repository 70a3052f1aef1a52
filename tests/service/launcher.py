"""`compactord serve` over a `SwitchedStorage`; the variable `FAULTS` names the file it obeys."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from compactord.cli.command import main
from compactord.cli.registries import Registries
from compactord.storage.base import Storage
from compactord.storage.open import STORES
from tests.service.switched import SwitchedStorage


def switched(storage: Storage, location: str) -> Storage:
    return SwitchedStorage(storage, Path(os.environ["FAULTS"]))


if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]], Registries(stores=STORES.wrapped(switched))))
