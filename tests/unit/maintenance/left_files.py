"""Tables in which all is old and in use, and files that somebody left in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.manifest.index_manifest import HASH_INDEX
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_json
from tests.builders import DAY_MS, FIRST, NOW_MS, SECOND
from tests.deletions import Deletions
from tests.lineage import KEYED, TABLE, Lineage

Keep = Callable[[Lineage, Snapshot], None]
HOME = TABLE.location
ALIVE = Owner(host=0x444444, start_ticks=1, pid=1)
OLD_MS = NOW_MS - DAY_MS - 1
_LIVE = b"live"
UUID = "0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab"
# What Java, a cancelled job or a user may leave: each goes.
LEFT = (
    f"bucket-0/data-{UUID}-0.parquet",
    f"bucket-0/changelog-{UUID}-0.parquet",
    f"bucket-0/data-{UUID}-0.parquet.index",
    f"bucket-77/data-{UUID}-9.orc",
    f"bucket-postpone/data--u-user-s-0-w-{UUID}-0.avro",
    "bucket-0/notes.txt",
    f"manifest/manifest-{UUID}-0",
    f"manifest/manifest-{UUID}-0.avro.sidecar",
    f"manifest/manifest-list-{UUID}-0",
    f"manifest/index-manifest-{UUID}-0",
    f"index/index-{UUID}-0",
    f"statistics/stat-{UUID}-0",
    f"snapshot/.snapshot-9.{UUID}.tmp",
    "snapshot/notes.txt",
    f"changelog/.changelog-9.{UUID}.tmp",
    f"branch/branch-dev/snapshot/.snapshot-2.{UUID}.tmp",
    f"branch/branch-dev/changelog/.changelog-2.{UUID}.tmp",
    f"bucket-0/data-{FIRST.unique_name()}-0.parquet",
)
# What stays in any case.
KEPT = (
    f"bucket-0/data-{ALIVE.unique_name()}-0.parquet",
    f"bucket-0/data-{SECOND.unique_name()}-0.parquet",
    f"bucket-0/pack-{UUID}.managed.blob",
    "snapshot/EARLIEST",
    "changelog/LATEST",
    "_SUCCESS",
    "notes.txt",
    "dt=1/bucket-0/data-0.parquet",
    "dt=1/_SUCCESS",
    "bucket-0/inner/data-0.parquet",
    "schema/schema-0.tmp",
    "tag/notes.txt",
    "branch/notes.txt",
    "branch/branch-dev/schema/schema-7.tmp",
    "branch/branch-dev/tag/notes.txt",
    "consumer/consumer-c",
    "metadata/v1.metadata.json",
    "data/bucket-0/data-0.parquet",
)


def leave(table: Lineage, names: Sequence[str], *, at_ms: int = OLD_MS) -> set[str]:
    found = {f"{HOME}/{name}" for name in names}
    table.storage.now_ms = at_ms
    for path in found:
        table.storage.write_new(path, b"x")
    return found


def old_table(keep: Sequence[Keep] = ()) -> Deletions:
    """All in it is old and in use: tag, branch, changelog and main name files of all kinds each."""
    table = Deletions(KEYED)
    table.storage.now_ms = OLD_MS
    for file in table.append(1):
        table.storage.write_new(table.data_path(0, file), bytes(file.file_size))
    for keep_as in keep or (as_tag, as_branch, as_changelog):
        keep_as(table, committed(table))
        table.roll_back(1)
    committed(table)
    return table


def committed(table: Deletions) -> Snapshot:
    """A snapshot of a foreign writer that names files of all kinds; they are there."""
    file = table.new_file()
    file = replace(file, extra_files=(f"{file.file_name}.index",), file_size=len(_LIVE))
    changelog = replace(table.new_file(), file_name=f"changelog-{file.file_name}")
    [manifest] = table.history.write_manifests([table._entry(changelog, 0)])
    manifest = replace(manifest, extra_files=(f"{manifest.file_name}.avro.sidecar",))
    name, size = table.history._write_list([manifest])
    index, statistics = f"index-{file.file_name}", f"stat-{file.file_name}"
    table.write_index_manifest(f"index-manifest-{file.file_name}", [index], HASH_INDEX)
    for path in (
        *(table.data_path(0, each) for each in (file, changelog)),
        table.data_path(0, file) + ".index",
        paths.manifest_path(HOME, manifest.extra_files[0]),
        paths.index_path(HOME, index),
        paths.statistics_path(HOME, statistics),
    ):
        table.storage.write_new(path, _LIVE)
    return table._foreign(
        [table._entry(file, 0)],
        CommitKind.APPEND,
        changelog_manifest_list=name,
        changelog_manifest_list_size=size,
        index_manifest=f"index-manifest-{file.file_name}",
        statistics=statistics,
    )


def as_tag(table: Lineage, snapshot: Snapshot) -> None:
    table.storage.write_new(paths.tag_path(HOME, "v1"), snapshot_json(snapshot))


def as_branch(table: Lineage, snapshot: Snapshot) -> None:
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.schema_path(root, 0), b"{}")
    table.storage.write_new(paths.snapshot_path(root, snapshot.id), snapshot_json(snapshot))
    table.storage.write_new(paths.latest_hint(root), str(snapshot.id).encode())


def as_changelog(table: Lineage, snapshot: Snapshot) -> None:
    path = f"{paths.changelog_folder(HOME)}/changelog-{snapshot.id}"
    table.storage.write_new(path, snapshot_json(snapshot))
