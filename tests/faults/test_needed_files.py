"""Files fail while a table is compacted, expires and is swept: what somebody needs keeps its rows.

A call fails as a mounted file system fails: with EIO, with ESTALE, or with ENOENT for a file that
is there (of a folder the last is not asked: a system whose folders vanish cannot be used).
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from compactord.storage.local import LocalStorage
from tests.retained import expire, maintain, names_in, retained, sweep
from tests.sampling import CutPoints
from tests.storages import Call, Fault, FaultyStorage, MemoryStorage

NUMBERS = {name: getattr(errno, name) for name in ("EIO", "ESTALE", "ENOENT")}


def _of_files(call: Call) -> bool:
    return call.method not in ("list", "folder_exists", "unfinished_uploads")


def _anything(call: Call) -> bool:
    return call.method != "unfinished_uploads"


@pytest.mark.parametrize("n", [3, 7, 19])
@pytest.mark.parametrize("name", NUMBERS)
def test_every_nth_call_fails(name: str, n: int, tmp_path: Path) -> None:
    given, local = retained(), LocalStorage()
    table = given.put(local, f"{tmp_path}/t")
    concerns = _of_files if name == "ENOENT" else _anything
    faulty = FaultyStorage(local, Fault(at=n, error=NUMBERS[name], recurs=True, concerns=concerns))
    for number in range(3):
        maintain(faulty, table)
        given.check(local, table, f"{name}, run {number}")
    assert len(faulty.failed) >= 3
    assert maintain(local, table) == []
    given.check(local, table, name)
    given.check_tidy(local, table, name)


@pytest.mark.parametrize("name", NUMBERS)
def test_any_call_of_expiry_and_sweep_may_fail(name: str, cut_points: CutPoints) -> None:
    """The next run finishes: nothing differs from a run in which nothing failed.

    Only where a file that is there seems not to be, something unneeded may stay. Every fourth call
    fails.
    """
    given, template = retained(), MemoryStorage()
    table = given.put(template, "/t")
    clean = template.copy()
    assert maintain(clean, table, (expire, sweep)) == []
    given.check(clean, table, "no fault")
    wanted = names_in(clean, table)
    concerns = _of_files if name == "ENOENT" else _anything
    hurt = {}
    for at in cut_points(4):
        storage = template.copy()
        faulty = FaultyStorage(storage, Fault(at=at, error=NUMBERS[name], concerns=concerns))
        maintain(faulty, table, (expire, sweep))
        maintain(storage, table, (expire, sweep))
        found = names_in(storage, table)
        lost = wanted.keys() - found.keys()
        if lost or (found != wanted and name != "ENOENT"):
            hurt[str(faulty.failed)] = sorted(lost or found.keys() - wanted.keys())
        if not faulty.failed:
            break
    assert at > 100, "the faults reached the whole run"
    assert hurt == {}
