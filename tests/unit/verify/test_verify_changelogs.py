"""`verify` reads of changelogs that outlive their snapshots what their readers do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.paimon import paths
from compactord.paimon.manifest.manifest_files import read_entries, read_manifest_list
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_changelogs
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests import builders
from tests.builders import NOW_MS
from tests.rounds import expire_snapshots
from tests.unit.verify.verified import verified

LOCAL = LocalStorage()
RETAINED = {
    "snapshot.num-retained.min": "1",
    "snapshot.time-retained": "0 ms",
    "changelog.num-retained.min": "100",
}


def _expired(folder: Path, producer: str) -> TableRef:
    """Snapshots 1 to 5 are changelogs; a compaction made the newest, which stays."""
    options = {**RETAINED, "changelog-producer": producer}
    table = builders.keyed_table(LOCAL, str(folder), buckets=1, options=options)
    builders.fill_keyed(builders.writer(LOCAL, table), commits=5)
    builders.compact(LOCAL, table)
    opened = open_table(table_in_folder(LOCAL, table), {})
    later_ms = NOW_MS + 3_600_000
    done = expire_snapshots(opened, opened.options.expire, now_ms=later_ms, keep_from=None)
    assert (done.snapshots, done.why_not) == (5, None)
    return table


def _delta(table: TableRef, id_: int) -> Path:
    (changelog,) = (each for each in read_changelogs(LOCAL, table.root) if each.id == id_)
    return Path(paths.manifest_path(table.location, changelog.delta_manifest_list))


def _data_file(table: TableRef, id_: int) -> Path:
    (manifest,) = read_manifest_list(LOCAL, str(_delta(table, id_)))
    (entry,) = read_entries(LOCAL, table.location, manifest)
    return Path(table.location) / "bucket-0" / entry.file.file_name


def _garbled(table: TableRef) -> Path:
    path = Path(paths.changelog_path(table.root, 2))
    path.write_text("{")
    return path


def _gone(path: Path) -> Path:
    path.unlink()
    return path


def _whole(table: TableRef) -> None:
    return None


@pytest.mark.parametrize(
    ("producer", "damage", "kind"),
    [
        ("none", _whole, None),
        ("none", _garbled, "metadata_damaged"),
        ("none", lambda table: _gone(_delta(table, 3)), "metadata_missing"),
        ("none", lambda table: _gone(_data_file(table, 3)), "changelog_file_missing"),
        # Their lists went with the snapshots; readers look for files of the producer alone.
        ("lookup", _whole, None),
        ("lookup", _garbled, "metadata_damaged"),
    ],
)
def test_what_readers_of_changelogs_need_is_looked_for(
    tmp_path: Path, producer: str, damage: Callable[[TableRef], Path | None], kind: str | None
) -> None:
    table = _expired(tmp_path / "t", producer)
    path = damage(table)
    found = verified(table)
    assert [(each.kind.value, each.path) for each in found.findings] == (
        [] if kind is None else [(kind, str(path))]
    )
    assert found.unknown == ()
    assert found.versions == 6 - (damage is _garbled)
    for each in found.findings:
        assert each.needed_by == ("changelog 2" if damage is _garbled else "changelog 3",)
