"""Real subcompactions for engines to run, and stores that misbehave where they run.

Workers import this module: it is pickled by reference.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet.options import ParquetEncoding
from compactord.ids import this_process
from compactord.model import (
    ConcatSpec,
    InputFile,
    Subcompaction,
    WriteSpec,
)
from compactord.paimon.data_file import ColumnStatsMode, StatsMode
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.storage.base import ObjectStatus, Storage
from compactord.storage.local import LocalStorage

ROWS = 100
PATIENCE_SECONDS = 180.0
_FIELDS = (DataField(id=0, name="a", type=AtomicType(root=TypeRoot.INT)),)
_SCHEMA = pa.schema([pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "0"})])


def append_subcompaction(
    folder: Path, number: int = 0, storage: Storage | None = None
) -> Subcompaction:
    """Two files of `ROWS` rows each, to be concatenated in `folder`/bucket-<number>."""
    bucket = folder / f"bucket-{number}"
    bucket.mkdir(exist_ok=True)
    files = tuple(_input_file(bucket / f"data-{n}.parquet", n * ROWS) for n in range(2))
    return Subcompaction(
        table="default.t",
        compaction_id=7,
        index=number,
        fields=_FIELDS,
        source=ConcatSpec(files=files, first_sequence_number=0, continues_across_outputs=True),
        write=WriteSpec(
            folder=str(bucket),
            file_format="parquet",
            file_prefix="compacted-",
            file_suffix=".parquet",
            level=0,
            schema_id=0,
            target_file_size=128 << 20,
            encoding=ParquetEncoding(
                compression="zstd",
                compression_level=1,
                group_bytes=128 << 20,
                page_bytes=1 << 20,
                dictionary=True,
            ),
            thin_mode=False,
            stats_modes=(("a", ColumnStatsMode(mode=StatsMode.FULL)),),
            stats_dense=True,
            creation_zone_offset_ms=0,
            keeps_encoding=False,
        ),
        storage=storage or LocalStorage(),
        owner=this_process(),
        memory_bytes=256 << 20,
    )


def outputs(folder: Path) -> list[str]:
    """Names of all files that subcompactions have written below `folder`, if still there."""
    return sorted(path.name for path in folder.glob("bucket-*/compacted-*"))


def _input_file(path: Path, first: int) -> InputFile:
    table = pa.table([pa.array(range(first, first + ROWS), pa.int32())], schema=_SCHEMA)
    pq.write_table(table, path, compression="zstd")
    return InputFile(
        path=str(path),
        file_format="parquet",
        size_bytes=path.stat().st_size,
        row_count=ROWS,
        min_sequence_number=first,
        max_sequence_number=first + ROWS - 1,
    )


@dataclass(frozen=True)
class DyingStorage(LocalStorage):
    """The worker is killed, as the system kills one that takes too much memory."""

    def status(self, path: str) -> ObjectStatus | None:
        os.kill(os.getpid(), 9)
        return super().status(path)


@dataclass(frozen=True)
class GatedStorage(LocalStorage):
    """A finished output file waits until `gate` exists; `gate`-<executor>-<pid> tells who waits."""

    gate: str = ""

    def status(self, path: str) -> ObjectStatus | None:
        Path(f"{self.gate}-{Path.cwd().name}-{os.getpid()}").touch()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not Path(self.gate).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return super().status(path)


@dataclass(frozen=True)
class HungStorage(LocalStorage):
    """A call that never returns and that only SIGKILL ends; file `pid` tells in which process."""

    pid: str = ""

    def status(self, path: str) -> ObjectStatus | None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
        Path(f"{self.pid}.new").write_text(str(os.getpid()))
        Path(f"{self.pid}.new").rename(self.pid)
        while True:
            time.sleep(3600)


@dataclass(frozen=True)
class InterruptedStorage(LocalStorage):
    """The worker is asked to stop when an output in `folder` is finished."""

    folder: str = ""

    def status(self, path: str) -> ObjectStatus | None:
        if Path(path).parent.name == self.folder:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().status(path)


@dataclass(frozen=True)
class BrokenStorage(LocalStorage):
    """Cannot even be unpickled: a failure before the worker's border."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _fail, ("this store cannot be opened",)


def _fail(text: str) -> None:
    raise RuntimeError(text)


@contextlib.contextmanager
def waiting(gate: Path, count: int) -> Iterator[list[str]]:
    """Once `count` workers wait at the gate: who they are. Opens the gate at the end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found := waiters(gate)) < count:
        assert time.monotonic() < deadline, f"{found} wait at {gate}, expected {count}"
        time.sleep(0.02)
    try:
        yield found
    finally:
        gate.touch()


def waiters(gate: Path) -> list[str]:
    return sorted(path.name for path in gate.parent.glob(f"{gate.name}-*"))


def eventually(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `condition()` holds, for things that other processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
