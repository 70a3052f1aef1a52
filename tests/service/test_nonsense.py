"""Things in a warehouse that are no sound tables: told of, and nobody else's trouble."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.service.conftest import Served
from tests.service.lakes import Lake


def _schema(text: str) -> Callable[[Lake, str], None]:
    def spoil(lake: Lake, name: str) -> None:
        (lake.path(name) / "schema").mkdir(parents=True)
        (lake.path(name) / "schema" / "schema-0").write_text(text)

    return spoil


def _after_commits(spoil: Callable[[Path], object]) -> Callable[[Lake, str], None]:
    def create_and_spoil(lake: Lake, name: str) -> None:
        # Where the daemon does not look: it never sees the table as it was before.
        elsewhere = Lake(lake.warehouse / "elsewhere")
        elsewhere.keyed(name, options={"num-sorted-run.compaction-trigger": "6"}).commit(3)
        spoil(elsewhere.path(name))
        elsewhere.path(name).rename(lake.path(name))

    return create_and_spoil


def _denied(lake: Lake, name: str) -> None:
    lake.keyed(name).commit(3)
    lake.path(name).chmod(0)


def _lists(table: Path) -> None:
    for path in (table / "manifest").glob("manifest-list-*"):
        path.write_bytes(b"junk")


def _as_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@dataclass(frozen=True, slots=True)
class _Spoilt:
    spoil: Callable[[Lake, str], None]
    reason: str
    word: str


SPOILT = {
    "schema_garbage": _Spoilt(_schema("{garbage"), "schema_unreadable", "schema-0"),
    "schema_empty": _Spoilt(_schema(""), "schema_unreadable", "schema-0"),
    "schema_without_fields": _Spoilt(
        _schema('{"version": 3, "id": 0}'), "schema_unreadable", "schema-0"
    ),
    "snapshot_garbage": _Spoilt(
        _after_commits(lambda table: (table / "snapshot/snapshot-3").write_bytes(b"\0{")),
        "corrupt_metadata",
        "snapshot-3",
    ),
    "snapshot_empty": _Spoilt(
        _after_commits(lambda table: (table / "snapshot/snapshot-3").write_text("")),
        "corrupt_metadata",
        "snapshot-3",
    ),
    "lists_garbage": _Spoilt(_after_commits(_lists), "corrupt_metadata", "manifest-list-"),
    "snapshot_a_folder": _Spoilt(
        _after_commits(lambda table: _as_folder(table / "snapshot/snapshot-4")),
        "repeated_failures",
        "snapshot-4",
    ),
    "hint_a_folder": _Spoilt(
        _after_commits(lambda table: _as_folder(table / "snapshot/LATEST")),
        "repeated_failures",
        "LATEST",
    ),
    "denied": _Spoilt(_denied, "repeated_failures", "denied"),
}


def test_spoilt_tables_are_left_alone_each_with_its_reason_and_nothing_else_is(
    served: Served,
) -> None:
    lake, service = served.lake, served.service
    for name, spoilt in SPOILT.items():
        spoilt.spoil(lake, name)
    keyed = lake.keyed("sound")
    keyed.commit(6)
    for name, spoilt in SPOILT.items():
        service.wait_until(lambda n=name: service.table(n).get("halt"), f"{name} is halted")
        halt = service.table(name)["halt"]
        assert (halt["reason"], spoilt.word in halt["message"]) == (spoilt.reason, True), halt
        assert halt["action"]
        assert service.metrics().one("table_halted", table=name) == 1
        # Tried again and again, and said once.
        assert len(service.log("table_halted", table=name)) == 1
    service.wait_settled("sound")
    keyed.check()
    assert lake.level0_files("sound") == 0
    assert service.answers("/readyz")
    lake.path("denied").chmod(0o755)
    for name in SPOILT:
        lake.drop(name)
    service.wait_until(lambda: not service.metrics().tables() & set(SPOILT), "they are forgotten")


def test_what_is_no_table_is_passed_over_and_the_rest_is_served(served: Served) -> None:
    lake, service = served.lake, served.service
    database = lake.warehouse / "db.db"
    (lake.warehouse / "file.db").write_text("")
    (database / "file").write_text("")
    (database / "hollow" / "schema").mkdir(parents=True)
    (database / "flat").mkdir()
    (database / "flat" / "schema").write_text("no folder")
    (database / "strange" / "schema" / "schema-0").mkdir(parents=True)
    (database / "strange" / "schema" / "schema-x").write_text("{}")
    (database / "loop").symlink_to("loop")
    (database / "nowhere").symlink_to("nothing")
    bytes_name = os.fsencode(database) + b"/\xff\xfe/schema"
    os.makedirs(bytes_name)
    Path(os.fsdecode(bytes_name + b"/schema-0")).write_text("{}")
    keyed = lake.keyed("beside_nonsense")
    keyed.commit(6)
    service.wait_settled("beside_nonsense")
    keyed.check()
    assert lake.level0_files("beside_nonsense") == 0
    found = service.metrics().tables()
    assert not found & {"file", "hollow", "flat", "strange", "loop", "nowhere", "\udcff\udcfe"}
    assert service.json("/v1/status")["catalogs"][0]["error"] == ""


def test_hints_are_not_trusted(served: Served) -> None:
    lake, service = served.lake, served.service
    hints = {"empty": "", "huge": "99999999999999999999", "garbage": "\xff\0", "negative": "-1"}
    writers = {}
    for kind, hint in hints.items():
        name = f"hint_{kind}"
        keyed = lake.keyed(name, options={"num-sorted-run.compaction-trigger": "3"})
        keyed.commit(3)
        for file in ("LATEST", "EARLIEST"):
            (lake.path(name) / "snapshot" / file).write_text(hint)
        writers[name] = keyed
    service.wait_settled(*writers)
    for name, keyed in writers.items():
        assert lake.level0_files(name) == 0
        keyed.check()


def test_a_missing_file_costs_its_bucket_alone(served: Served) -> None:
    lake, service = served.lake, served.service
    keyed = lake.keyed("holes", options={"num-sorted-run.compaction-trigger": "4"})
    keyed.commit(3)
    for path in (lake.path("holes") / "bucket-0").glob("data-*"):
        path.unlink()
    keyed.commit(3)
    service.wait_until(
        lambda: service.table("holes").get("quarantined"), "the bucket is quarantined"
    )
    service.wait_until(
        lambda: [b for b in service.table("holes")["quarantined"] if b["bucket"] == 0],
        "bucket 0 is",
    )
    service.wait_until(lambda: lake.work("holes").snapshots > 0, "the other bucket is compacted")
    (quarantined,) = service.table("holes")["quarantined"]
    assert quarantined["bucket"] == 0
    assert "does not exist" in quarantined["message"]
    assert "/bucket-0/data-" in quarantined["message"]
    lake.drop("holes")
    service.wait_until(lambda: service.table("holes") == {}, "it is forgotten")


def test_a_table_that_is_dropped_in_the_middle_of_its_merge_is_forgotten_and_not_made_again(
    served: Served,
) -> None:
    lake, service = served.lake, served.service
    lake.large("large_dropped")
    path = lake.path("large_dropped")
    service.wait_until(lambda: service.data_files(path), "a merge writes")
    path.rename(lake.warehouse / "dropped")
    service.wait_until(lambda: service.table("large_dropped") == {}, "it is forgotten")
    service.wait_until(lambda: service.metrics().one("tasks_running") == 0, "nothing runs")
    # A worker that opened its next file just then made folders for it, and takes the file away.
    service.wait_until(
        lambda: all(found.is_dir() for found in path.rglob("*")), "no file of it is left"
    )
    assert service.answers("/readyz")
