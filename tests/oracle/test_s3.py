"""Java Paimon and compactord on the same objects, Java through Hadoop's S3A."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.plan.table import Strategy
from compactord.storage.open import STORES
from tests import builders
from tests.oracle.differential import canonical
from tests.oracle.judge import Judge
from tests.oracle.judge_jar import JudgeJarError
from tests.oracle.on_s3 import contest_under_lock, judge_on, s3a
from tests.store_servers import StoreServer


@pytest.fixture(scope="module")
def lake(started: Callable[[str], StoreServer]) -> StoreServer:
    return s3a(started("moto"))


@pytest.fixture(scope="module")
def java(lake: StoreServer) -> Iterator[Judge]:
    """The judge, whose tables lie in the store."""
    with contextlib.ExitStack() as running:
        try:
            yield running.enter_context(judge_on(lake))
        except JudgeJarError as error:
            pytest.skip(str(error))


_KEYED = {
    "columns": [("k", "BIGINT NOT NULL"), ("p", "STRING NOT NULL"), ("v", "STRING")],
    "primary_key": ["k", "p"],
    "partition_by": ["p"],
    "options": {"bucket": "2", "num-sorted-run.compaction-trigger": "3"},
}
_APPENDED = {
    "columns": [("k", "BIGINT"), ("p", "STRING"), ("v", "STRING")],
    "partition_by": ["p"],
    "options": {"bucket": "-1"},
}


@pytest.mark.parametrize(
    ("shape", "strategy"),
    [(_KEYED, Strategy.MINOR), (_KEYED, Strategy.FULL), (_APPENDED, Strategy.MINOR)],
    ids=["keyed-minor", "keyed-full", "appended-minor"],
)
def test_java_reads_what_we_compact_writes_on_and_compacts_itself(
    java: Judge, lake: StoreServer, shape: Mapping[str, object], strategy: Strategy
) -> None:
    name = f"{'keyed' if shape is _KEYED else 'appended'}-{strategy.value}"
    # Its name and the values of its partitions are such as URLs and signatures may stumble over.
    path = f"{lake.root}/java wh/{name}+ä/db.db/t"
    java.create_table(path, **{**shape, "options": {**shape["options"], "write-only": "true"}})
    model = _Model(is_keyed=shape is _KEYED)
    for commit in range(6):
        java.write(path, model.written(commit))
    catalog = FilesystemCatalog(*STORES.open(path.removesuffix("/db.db/t"), lake.options))
    table = catalog.find_table("db.t")
    storage, publisher = catalog.warehouse_storage, catalog.open(table).publisher
    totals = builders.compact(storage, table, publisher=publisher, strategy=strategy)
    assert totals.failures == []
    assert totals.compactions >= 2
    assert canonical(java.read(path)) == model.rows()
    assert len(java.files(path)) < 8
    assert java.orphan_files(path) == []
    for commit in range(6, 11):
        java.write(path, model.written(commit))
    assert canonical(java.read(path)) == model.rows()
    assert java.compact(path, full=True) is not None
    assert canonical(java.read(path)) == model.rows()
    again = builders.compact(storage, table, publisher=publisher, strategy=strategy)
    assert again.failures == []
    assert canonical(java.read(path)) == model.rows()
    assert java.orphan_files(path) == []


class _Model:
    """The rows that the table must have."""

    def __init__(self, *, is_keyed: bool) -> None:
        self._is_keyed = is_keyed
        self._rows: dict[object, list[object]] = {}

    def written(self, commit: int) -> list[list[object]]:
        """The rows of one commit; keys come again."""
        rows: list[list[object]] = [
            [key, partition, f"{commit} of {key}"]
            for partition, key in itertools.product(["a=b/c", "ü %2F"], range(commit, 30, 2))
        ]
        for row in rows:
            identity = (row[0], row[1]) if self._is_keyed else tuple(row)
            self._rows[identity] = row
        return rows

    def rows(self) -> list[str]:
        return canonical(self._rows.values())


def test_java_s_writers_and_compactord_commit_under_one_lock_and_lose_nothing(
    java: Judge, lake: StoreServer, tmp_path: Path
) -> None:
    """More commits: `make contest`."""
    contest_under_lock(java, lake, tmp_path, users=2, commits=20)
