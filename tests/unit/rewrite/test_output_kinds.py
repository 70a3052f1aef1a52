"""A subcompaction that writes files of two kinds, one the tests' own: all are kept, or none is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from compactord.clock import SystemClock
from compactord.errors import StorageError
from compactord.formats.layout import keyed_layout
from compactord.formats.registry import FORMATS
from compactord.model import DATA, Output, Subcompaction
from compactord.paimon.data_file import DataFile, FileSource
from compactord.rewrite.outputs import GroupSize, MergedFile, Outputs, RollingWriter
from compactord.rewrite.pipeline import Encoding
from tests.unit.rewrite.builders import KEY_VALUE, files_left, merge_subcompaction

KINDS = (DATA, "audit")
ROWS = 40_000


def _write(subcompaction: Subcompaction, after: Callable[[int], None]) -> list[Output]:
    """The same rows to both kinds by turns; `after` is called with the rows written so far."""
    layout = keyed_layout(KEY_VALUE, ["k"], thin=subcompaction.write.thin_mode)
    outputs = Outputs(
        storage=subcompaction.storage.open(),
        unique_name=subcompaction.owner.unique_name(),
        clock=SystemClock(),
    )
    with outputs, Encoding(threaded=False) as encoding:
        writers = []
        for kind in KINDS:
            spec = replace(subcompaction.write, file_prefix=f"{kind}-")
            describe = MergedFile(spec, layout, FileSource.COMPACT)
            writers.append(
                RollingWriter(
                    outputs.series(kind, spec=spec, layout=layout, describe=describe),
                    size=GroupSize(rows=1_000, size_bytes=1 << 20, bytes_per_row=20),
                    writer=FORMATS["parquet"].writer(layout, spec.encoding, ()),
                    encoding=encoding,
                )
            )
        for first in range(0, ROWS, 500):
            keys = range(first, first + 500)
            columns = {
                "k": pa.array(keys, pa.int64()),
                "v": pa.array([str(key * 7919) for key in keys]),
                "_SEQUENCE_NUMBER": pa.array(keys, pa.int64()),
                "_VALUE_KIND": pa.array([0] * 500, pa.int8()),
            }
            rows = pa.table({name: columns[name] for name in layout.row_names})
            for writer in writers:
                for batch in rows.cast(layout.row_schema).to_batches():
                    writer.write(batch)
            after(first + 500)
        for writer in writers:
            writer.finish()
    return outputs.finished


def _subcompaction(tmp_path) -> Subcompaction:
    return merge_subcompaction(tmp_path, KEY_VALUE, ["k"], target_file_size=100_000)


def test_each_kind_has_all_rows_in_files_of_its_own(tmp_path):
    subcompaction = _subcompaction(tmp_path)
    found = _write(subcompaction, lambda rows: None)
    assert sorted(output.file.file_name for output in found) == files_left(subcompaction)
    for kind in KINDS:
        files: list[DataFile] = [output.file for output in found if output.kind == kind]
        assert len(files) > 1
        assert all(file.file_name.startswith(f"{kind}-") for file in files)
        assert sum(file.row_count for file in files) == ROWS
        sequences = [n for f in files for n in (f.min_sequence_number, f.max_sequence_number)]
        assert sequences == sorted(sequences)


@pytest.mark.parametrize("at", [500, 20_000, ROWS])
def test_a_failure_leaves_neither(tmp_path, at):
    subcompaction = _subcompaction(tmp_path)
    seen = []

    def fail(rows: int) -> None:
        seen[:] = files_left(subcompaction)
        if rows == at:
            raise StorageError("here", "no more")

    with pytest.raises(StorageError, match="no more"):
        _write(subcompaction, fail)
    kinds = {name.partition("-")[0] for name in seen}
    assert kinds == (set(KINDS) if at > 500 else set())
    assert files_left(subcompaction) == []
