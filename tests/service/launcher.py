"""`compactord serve` over a `SwitchedStorage`; the variable `FAULTS` names the file it obeys."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from compactord.cli import arguments
from compactord.cli.serve import serve
from compactord.storage.base import Storage
from compactord.storage.open import STORES
from tests.service.switched import SwitchedStorage


def switched(storage: Storage, location: str) -> Storage:
    return SwitchedStorage(storage, Path(os.environ["FAULTS"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    arguments.serve(parser)
    sys.exit(serve(parser.parse_args(), STORES.wrapped(switched)))
