"""Files above are open only while keys are looked up that they may have."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pyarrow as pa
import pytest

from compactord.formats.layout import keyed_layout
from compactord.rewrite.merging import Lookup
from compactord.rewrite.reader import Input, InputReader
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import SMALL_FILE
from tests.storages import WatchedStorage
from tests.unit.rewrite.builders import fields, write_run

FIELDS = fields(a="BIGINT NOT NULL", b="STRING NOT NULL", v="BIGINT", w="BYTES")
FLOATS = fields(a="DOUBLE NOT NULL", b="STRING NOT NULL", v="BIGINT", w="BYTES")
FILES, ROWS = 8, 30
# So that no file is small enough to be read as a whole.
WIDTH = 3 * SMALL_FILE // ROWS


class OpenFiles(WatchedStorage):
    """Knows which of the files that it has opened are open."""

    def __init__(self) -> None:
        super().__init__(LocalStorage())
        self._streams: list[pa.NativeFile] = []

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        self._streams.append(super().open_input(path, size_bytes))
        return self._streams[-1]

    @property
    def count(self) -> int:
        return sum(not each.closed for each in self._streams)


@pytest.mark.parametrize(("columns", "most"), [(FIELDS, 4), (FLOATS, 2 * FILES)])
def test_of_each_run_one_file_is_open_where_bounds_tell_which(
    tmp_path: Path, columns: object, most: int
) -> None:
    def row(number: int) -> dict[str, object]:
        # Files of the second run have every other key; neighbours share the first column's value.
        wide = random.Random(number).randbytes(WIDTH)
        return {"a": number // 4, "b": f"{number:06}", "v": number, "w": wide}

    runs = [
        [
            write_run(
                tmp_path / f"{step}-{at}.parquet",
                columns,  # type: ignore[arg-type]
                ["a", "b"],
                [row(number) for number in range(at * ROWS, (at + 1) * ROWS, step)],
            )
            for at in range(FILES)
        ]
        for step in (1, 2)
    ]
    storage, seen, found = OpenFiles(), [], []
    layout = keyed_layout(columns, ["a", "b"], thin=False)  # type: ignore[arg-type]
    with contextlib.closing(InputReader(storage, layout)) as reader:
        above = [[Input(reader, file) for file in run] for run in runs]
        lookup = Lookup(above, 1_000, 1 << 20, expires=True, ignores_deletes=False)
        with contextlib.closing(lookup):
            schema = layout.row_schema
            names = [field.name for field in layout.key_fields]
            for at in range(0, FILES * ROWS, 40):
                # A key that no file has lies behind each.
                keys = [(n // 4, f"{n:06}{end}") for n in range(at, at + 40) for end in ("", "x")]
                arrays = [
                    pa.array(part, schema.field(name).type)
                    for part, name in zip(zip(*keys, strict=True), names, strict=True)
                ]
                rows = lookup.find(pa.RecordBatch.from_arrays(arrays, names=names))
                assert rows.places.tolist() == list(range(0, 80, 2))
                found += [value for part in rows.rows for value in part.column("v").to_pylist()]
                seen.append(storage.count)
        assert storage.count == 0
    assert found == list(range(FILES * ROWS))
    assert max(seen) <= most
    assert columns is not FLOATS or max(seen) > 4
