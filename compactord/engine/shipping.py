"""Code for workers: this package, which is sent along, and the check of their other packages.

A module of its own, shared by the transports.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import compactord
from compactord.engine.inspection import WorkerFacts
from compactord.errors import EngineUnavailable


def package_zip(folder: Path) -> Path:
    """This package as a zip file in `folder`, for the Python path of workers."""
    package = Path(compactord.__file__).parent
    target = folder / f"compactord-{compactord.__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return target


def check_workers(master: str, workers: Sequence[WorkerFacts]) -> None:
    """Raises `EngineUnavailable` for a worker that cannot run a subcompaction, with the reason."""
    for worker in workers:
        if worker.problem is not None:
            has = ", ".join(f"{name} {number}" for name, number in worker.packages) or "neither"
            raise EngineUnavailable(
                f"the workers of {master} need pyarrow, numpy and what compactord's merge imports; "
                f"Python {worker.python} on {worker.host} has {has}: {worker.problem}"
            )
        if worker.compactord != compactord.__version__:
            raise EngineUnavailable(
                f"the workers of {master} have compactord {worker.compactord}, but this is "
                f"{compactord.__version__}: uninstall theirs (ours is sent along) or update it"
            )
