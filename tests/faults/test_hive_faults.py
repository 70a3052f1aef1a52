"""Calls of the metastore fail while a table is committed under its lock: nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.open import open_catalog
from compactord.errors import CompactordError
from compactord.storage.local import LocalStorage
from tests import builders
from tests.builders import FIRST, SECOND
from tests.unit.catalog.metastore import Metastore, running, table

_LOCAL = LocalStorage()


class _Failing(Metastore):
    """So many calls from the `at`-th on are not answered: the connection ends, or an error comes.

    `after_effect`: they were carried out.
    """

    def __init__(self, location: Path, at: int, times: int, *, after_effect: bool) -> None:
        super().__init__(table("db", "t", f"file:{location}"))
        self.failing = range(at, at + times)
        self._after_effect = after_effect
        self._count = itertools.count(1)
        self.failed: list[str] = []

    def answer(self, name: str, arguments: Sequence[Any]) -> Any:
        if next(self._count) not in self.failing:
            return super().answer(name, arguments)
        self.failed.append(name)
        if self._after_effect:
            super().answer(name, arguments)
        raise ConnectionError


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after its effect"])
@pytest.mark.parametrize("times", [1, 4], ids=["once", "repeated calls, too"])
def test_a_failing_call_loses_nothing_and_the_next_run_heals(
    tmp_path: Path, times: int, *, after_effect: bool
) -> None:
    ref = builders.keyed_table(_LOCAL, str(tmp_path / "template"), buckets=1)
    rows = builders.fill_keyed(builders.writer(_LOCAL, ref), commits=5, keys=20)
    path, failed = tmp_path / "t", set[str]()
    ours = replace(ref, location=str(path))
    for at in itertools.count(1):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "template", path)
        metastore = _Failing(path, at, times, after_effect=after_effect)
        with running(metastore) as uri:
            options = {"uri": uri, "lock.enabled": "true"}
            catalog = open_catalog(str(tmp_path), metastore="hive", options=options)
            with contextlib.suppress(CompactordError):
                access = catalog.open(catalog.find_table("db.t"))
                builders.compact(_LOCAL, access.ref, access=access)
            what = metastore.failed
            failed.update(what)
            assert builders.read_keyed(_LOCAL, ours) == rows, what
            builders.check_chain(_LOCAL, ours)
            builders.remove_leftovers(_LOCAL, ours, myself=SECOND)
            metastore.failing = range(0)
            access = catalog.open(catalog.find_table("db.t"))
            totals = builders.compact(_LOCAL, ours, access=access, owner=SECOND)
            assert totals.failures == totals.lost_snapshots == [], what
            assert builders.read_keyed(_LOCAL, ours) == rows, what
            assert access.newest_state().state.files.file_count == 1, what
            assert builders.leftovers(_LOCAL, ours, [FIRST, SECOND]) == set(), what
            # Only a lock of whose number nobody was told waits until it is forgotten.
            assert len(metastore.held) <= (after_effect and what.count("lock")), what
        if not what:
            break
    assert failed == {"get_table", "lock", "heartbeat", "unlock"}
