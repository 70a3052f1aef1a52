"""Tables with ORC files, written by Java, compacted by us and by Java, and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import orc

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_filters, assert_same_outcome
from tests.oracle.judge import Judge
from tests.oracle.of_types import Pools, rows_of_types, table_of_types
from tests.oracle.samples import ATOMIC, EVERY_TYPE

_ALL_ZONES = ["-1000:0", "0:0", "1000:0", "1700000000000:0", "9000000000000:0", "-8520336000000:0"]
# Moments that both libraries read and write in the same way (`formats/orc/values.py`).
_MOMENTS = {
    "timestamp-0": ("TIMESTAMP(0)", _ALL_ZONES),
    "timestamp-3": ("TIMESTAMP(3)", [*_ALL_ZONES, "-86401123:0", "1700000000123:0"]),
    "timestamp-6": ("TIMESTAMP(6)", [*_ALL_ZONES, "-86401123:0", "1700000000123:456000"]),
}
_REFUSED = ("timestamp", "nanoseconds", "times", "row-of-required")
_POOLS: Pools = {
    **{k: v for k, v in EVERY_TYPE.items() if not any(word in k for word in _REFUSED)},
    **_MOMENTS,
}
_ORC = {"file.format": "orc"}
_LAYOUTS: dict[str, tuple[bool, dict[str, str]]] = {
    "primary-key": (True, {"bucket": "1"}),
    "thin": (True, {"bucket": "1", "data-file.thin-mode": "true"}),
    "full-statistics": (True, {"bucket": "1", "metadata.stats-mode": "full"}),
    "level-0-only": (
        True,
        {"bucket": "1", "file.format": "parquet", "file.format.per.level": "0:orc"},
    ),
    "above-level-0": (True, {"bucket": "1", "file.format.per.level": "0:parquet"}),
    "append": (False, {"bucket": "-1"}),
    "bucketed-append": (False, {"bucket": "1", "bucket-key": "id"}),
}


# Of these Java's statistics lack values: NaN, and texts without the blanks to their length.
_INEXACT = ("float", "double", "char")


@pytest.mark.parametrize("are_exact", [False, True])
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_every_type_that_orc_shares_compacts_as_in_java(
    judge: Judge, tmp_path: Path, layout: str, are_exact: bool
) -> None:
    key, options = _LAYOUTS[layout]
    kinds = [kind for kind in _POOLS if (kind not in _INEXACT) or not are_exact]
    columns, path = {f"c-{kind}": _POOLS[kind][0] for kind in kinds}, tmp_path / "db.db" / "t"
    table = table_of_types(judge, path, columns, key=key, options={**_ORC, **options})
    for commit in range(6):
        table.write(rows_of_types(_POOLS, kinds, 40, seed=commit, first=0 if key else 40 * commit))
    twin = table.copy("java")
    assert table.settle(Strategy.FULL).snapshots
    table.check()
    if are_exact:
        twin.java_settle(full=True)
        assert_same_outcome(table, twin)

    for commit in range(2):
        table.write(rows_of_types(_POOLS, kinds, 40, seed=10 + commit, first=1000 + 20 * commit))
    table.java_settle(full=True)
    table.check()


@pytest.mark.parametrize("codec", ["zstd", "snappy", "zlib", "lz4", "none"])
def test_files_have_the_codec_of_the_table(judge: Judge, tmp_path: Path, codec: str) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("id", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("id",),
        options={**_ORC, "bucket": "1", "orc.compress": codec},
    ).create()
    for commit in range(5):
        table.write([[number, f"v{commit}" * 20] for number in range(50)])
    twin = table.copy("java")
    assert table.settle(Strategy.FULL).snapshots
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    (file,) = table.files()
    (path,) = table.path.rglob(file["file_name"])
    assert orc.ORCFile(path).compression.lower() == {"none": "uncompressed"}.get(codec, codec)


# Java does not find this text in its own ORC files either, next to one beyond the first plane.
_NOT_FOUND = "\uffff"


@pytest.mark.parametrize("kind", [kind for kind in _POOLS if kind in ATOMIC])
def test_java_finds_keys_in_our_files_by_pushed_down_filters(
    judge: Judge, tmp_path: Path, kind: str
) -> None:
    type_, pool = _POOLS[kind]
    pool = [value for value in pool if value != _NOT_FOUND]
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k0", f"{type_} NOT NULL"), ("v", "STRING")),
        primary_key=("k0",),
        options={**_ORC, "bucket": "1"},
    ).create()
    for commit in range(5):
        table.write([[value, f"v{commit}"] for value in pool])
    table.settle(Strategy.FULL)
    assert_filters(table, {"k0": (type_, pool)})
