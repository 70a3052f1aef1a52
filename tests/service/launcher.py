"""`compactord serve` over a `SwitchedStorage`; the variable `FAULTS` names the file it obeys."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from compactord.cli.serve import serve
from compactord.cli.service_arguments import add_serve_arguments
from compactord.storage.base import Storage
from compactord.storage.open import open_storage
from tests.service.switched import SwitchedStorage


def open_switched(warehouse: str, options: Mapping[str, str]) -> tuple[Storage, str]:
    storage, root = open_storage(warehouse, options)
    return SwitchedStorage(storage, Path(os.environ["FAULTS"])), root


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    sys.exit(serve(parser.parse_args(), open_switched))
