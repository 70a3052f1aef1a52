"""Tables with Avro files, written by Java, compacted by us and by Java, and read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compactord.paimon.avro.container import open_container
from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_same_outcome
from tests.oracle.judge import Judge
from tests.oracle.of_types import Pools, rows_of_types, table_of_types
from tests.oracle.samples import EVERY_TYPE

# Java writes neither times nor moments of so many digits to Avro.
_TOO_FINE = re.compile(r"TIMESTAMP(_LTZ)?\([789]\)|TIME\([4-9]\)")
_POOLS: Pools = {
    kind: found for kind, found in EVERY_TYPE.items() if not _TOO_FINE.search(str(found[0]))
}
_AVRO = {"file.format": "avro"}
_LAYOUTS: dict[str, tuple[bool, dict[str, str]]] = {
    "primary-key": (True, {"bucket": "1"}),
    "thin": (True, {"bucket": "1", "data-file.thin-mode": "true"}),
    "full-statistics": (True, {"bucket": "1", "metadata.stats-mode": "full"}),
    "level-0-only": (
        True,
        {"bucket": "1", "file.format": "parquet", "file.format.per.level": "0:avro"},
    ),
    "above-level-0": (
        True,
        {"bucket": "1", "file.format.per.level": "0:parquet"},
    ),
    "append": (False, {"bucket": "-1"}),
    "bucketed-append": (False, {"bucket": "1", "bucket-key": "id"}),
}


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_every_type_that_avro_shares_compacts_as_in_java(
    judge: Judge, tmp_path: Path, layout: str
) -> None:
    key, options = _LAYOUTS[layout]
    kinds = list(_POOLS)
    columns, path = (
        {f"c_{kind.replace('-', '_')}": _POOLS[kind][0] for kind in kinds},
        tmp_path / "db.db" / "t",
    )
    table = table_of_types(judge, path, columns, key=key, options={**_AVRO, **options})
    for commit in range(6):
        table.write(rows_of_types(_POOLS, kinds, 40, seed=commit, first=0 if key else 40 * commit))
    twin = table.copy("java")
    assert table.settle(Strategy.FULL).snapshots
    table.check()
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)

    for commit in range(2):
        table.write(rows_of_types(_POOLS, kinds, 40, seed=10 + commit, first=1000 + 20 * commit))
    table.java_settle(full=True)
    table.check()


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ("zstd", "zstandard"),
        ("zstandard", "zstandard"),
        ("snappy", "snappy"),
        ("deflate", "deflate"),
        ("bzip2", "bzip2"),
        ("null", "null"),
    ],
)
@pytest.mark.parametrize("option", ["file.compression", "avro.codec"])
def test_files_have_the_codec_of_the_table(
    judge: Judge, tmp_path: Path, option: str, codec: str, expected: str
) -> None:
    if (option, codec) == ("avro.codec", "zstd"):
        pytest.skip("Java knows the name in file.compression only")
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("id", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("id",),
        options={**_AVRO, "bucket": "1", option: codec},
    ).create()
    for commit in range(5):
        table.write([[number, f"v{commit}" * 20] for number in range(5_000)])
    twin = table.copy("java")
    assert table.settle(Strategy.FULL).snapshots
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    containers = []
    for each in (table, twin):
        (file,) = each.files()
        (path,) = each.path.rglob(file["file_name"])
        containers.append(open_container(path.read_bytes(), str(path)))
    ours, theirs = containers
    assert ours.codec == theirs.codec == expected
    assert ours.schema.json == theirs.schema.json
    assert [block.count for block in ours.blocks()] == [block.count for block in theirs.blocks()]
