"""Code for workers: this package, which is sent along, and the check of their other packages.

Imports neither Arrow nor numpy at the top, so a worker without a package can report it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import pickle
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import compactord
from compactord.errors import EngineUnavailable

_REWRITE_MODULE = "compactord.rewrite.subcompaction"
_PACKAGES = ("pyarrow", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Packages installed on a worker. `problem` is a one-line reason why it cannot run, or None."""

    compactord: str
    python: str
    packages: tuple[tuple[str, str], ...]
    host: str
    problem: str | None


def inspect_workers(rows: Iterator[Any]) -> Iterator[bytes]:
    """For `mapPartitions`: the worker's facts, pickled."""
    list(rows)
    yield pickle.dumps(worker_facts())


def inspect_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """For `mapInArrow`: the worker's facts, pickled, one row for each partition."""
    import pyarrow as pa

    list(batches)
    facts = pa.array([pickle.dumps(worker_facts())], pa.binary())
    yield pa.RecordBatch.from_arrays([facts], ["outcome"])


@functools.cache
def rewrite_module() -> ModuleType:
    """The module that runs subcompactions, with all its imports.

    Raises `ImportError`.
    """
    module = importlib.import_module(_REWRITE_MODULE)
    # These objects are never garbage, but each full collection would visit them, for 40 ms or more:
    # Spark runs one after every task, and reading a few hundred footers triggers another.
    gc.freeze()
    return module


def worker_facts() -> WorkerFacts:
    """The worker's facts. Also imports the modules that the first subcompaction needs."""
    problem = None
    try:
        rewrite_module()
    except ImportError as error:
        problem = f"{type(error).__name__}: {error}"
    packages: list[tuple[str, str]] = []
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            packages.append((name, version(name)))
    return WorkerFacts(
        compactord=compactord.__version__,
        python=".".join(str(number) for number in sys.version_info[:2]),
        packages=tuple(packages),
        host=os.uname().nodename,
        problem=problem,
    )


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
