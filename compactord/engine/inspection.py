"""What is installed where workers run, asked before subcompactions are sent there.

Imports only the standard library, so that a worker that lacks a package can report it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import compactord

_REWRITE_MODULE = "compactord.rewrite.subcompaction"
_PACKAGES = ("pyarrow", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a worker has installed; `problem` is one line: why it cannot run subcompactions."""

    compactord: str
    python: str
    packages: tuple[tuple[str, str], ...]
    host: str
    problem: str | None


def inspect_workers(rows: Iterator[Any]) -> Iterator[bytes]:
    """For `mapPartitions`: the facts of the worker, pickled."""
    list(rows)
    yield pickle.dumps(worker_facts())


def inspect_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """For `mapInArrow`: the facts of the worker, pickled, one row for each partition."""
    import pyarrow as pa

    list(batches)
    facts = pa.array([pickle.dumps(worker_facts())], pa.binary())
    yield pa.RecordBatch.from_arrays([facts], ["outcome"])


@functools.cache
def rewrite_module() -> ModuleType:
    """The module that runs subcompactions, with all that it imports.

    Raises `ImportError`.
    """
    module = importlib.import_module(_REWRITE_MODULE)
    # Nothing of it is ever garbage, but each full collection would look at it, for 40 ms or more:
    # Spark has one after every task, and there is one for each few hundred footers that are read.
    gc.freeze()
    return module


def worker_facts() -> WorkerFacts:
    """Also imports what the first subcompaction needs, so that it need not wait for that."""
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
