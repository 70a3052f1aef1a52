"""`verify`: each way in which a table may lack something is found, told, and nothing is written."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from compactord.cli.command import _parser
from compactord.cli.verify import verify
from compactord.errors import AccessDenied, UsageError
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import DataFile, ManifestEntry
from compactord.paimon.manifest.manifest_files import (
    encode_manifest_list,
    read_entries,
    read_manifest_list,
    roll_entries,
)
from compactord.paimon.manifest.schemas import INDEX_MANIFEST
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_snapshot, snapshot_ids, snapshot_json
from compactord.storage.base import Storage
from compactord.verify.rules import FileRules, Finding, FindingKind
from compactord.verify.verify import Verified, Wanted, verify_table
from tests import builders
from tests.containers import encode_container
from tests.e2e.tables import digest
from tests.lineage import TABLE, Lineage
from tests.storages import Call, HookedStorage, RecordingStorage
from tests.unit.cli.warehouses import LOCAL, answered, append, configuration, keyed, said
from tests.unit.maintenance.expiring import some_table, with_data
from tests.unit.paimon.table_builder import UNPARTITIONED


@dataclass(frozen=True)
class Home:
    """A table on the disk: snapshots 1 to 6 wrote six files, 7 merged them, 8 added one."""

    ref: TableRef

    @property
    def folder(self) -> Path:
        return Path(self.ref.location)

    def data_files(self, snapshot_id: int) -> list[Path]:
        """Live files of a snapshot."""
        found = builders.live_files(LOCAL, self.ref, snapshot_id)
        return [self.folder / f"bucket-{b.bucket}" / file.file_name for b, file in found]

    def change(self, snapshot_id: int, **fields: Any) -> None:
        """Another content of a snapshot."""
        snapshot = read_snapshot(LOCAL, self.ref.location, snapshot_id)
        path = Path(paths.snapshot_path(self.ref.location, snapshot_id))
        path.write_bytes(snapshot_json(replace(snapshot, **fields)))

    def metadata(self, snapshot_id: int, field: str) -> Path:
        snapshot = read_snapshot(LOCAL, self.ref.location, snapshot_id)
        return self.folder / "manifest" / getattr(snapshot, field)

    def manifest(self, snapshot_id: int) -> Path:
        """The only manifest that the snapshot itself added."""
        path = str(self.metadata(snapshot_id, "delta_manifest_list"))
        (manifest,) = read_manifest_list(LOCAL, path)
        return self.folder / "manifest" / manifest.file_name

    def replace_newest(self, *, rows: int) -> str:
        """Another file under the name of the newest one, its manifest says the size of that."""
        entry = next(iter(self._entries(8)))
        (target,) = (p for p in self.data_files(8) if p.name == entry.file.file_name)
        other = keyed(self.folder.parent.parent, "d.other")
        builders.writer(LOCAL, other).write(builders.rows_of([(k, k) for k in range(rows)]))
        (file,) = (Path(other.location) / "bucket-0").glob("data-*")
        shutil.copy(file, target)
        self.rewrite_delta(8, file_size=file.stat().st_size)
        return target.name

    def overlap_newest(self) -> str:
        """The newest file is said to be on the level of the merged one, with a key of it."""
        (merged,) = (f for _, f in builders.live_files(LOCAL, self.ref, 7))
        self.rewrite_delta(8, level=merged.level, min_key=merged.max_key, max_key=merged.max_key)
        (entry,) = self._entries(8)
        return entry.file.file_name

    def rewrite_delta(self, snapshot_id: int, **fields: Any) -> None:
        """The one file that a snapshot adds, with other facts, in the same manifest."""
        path = str(self.metadata(snapshot_id, "delta_manifest_list"))
        (listed,) = read_manifest_list(LOCAL, path)
        (entry,) = self._entries(snapshot_id)
        entry = replace(entry, file=replace(entry.file, **fields))
        codec = codec_of("zstd", 1)
        ((data, described),) = roll_entries(
            [entry], names=iter([listed.file_name]), target_size=1, codec=codec, partition_types=()
        )
        (self.folder / "manifest" / listed.file_name).write_bytes(data)
        list_data = encode_manifest_list([described], codec)
        Path(path).write_bytes(list_data)
        self.change(snapshot_id, delta_manifest_list_size=len(list_data))

    def tell(self, snapshot_id: int, *, rows: int) -> Path:
        """Snapshot 8 tells what another added, and counts so many rows; the first file of it."""
        told = self.metadata(snapshot_id, "delta_manifest_list")
        size = told.stat().st_size
        changelog = {"changelog_manifest_list": told.name, "changelog_manifest_list_size": size}
        self.change(8, **changelog, changelog_record_count=rows)
        return self.folder / "bucket-0" / self._entries(snapshot_id)[0].file.file_name

    def _entries(self, snapshot_id: int) -> tuple[ManifestEntry, ...]:
        path = str(self.metadata(snapshot_id, "delta_manifest_list"))
        (listed,) = read_manifest_list(LOCAL, path)
        return read_entries(LOCAL, self.ref.location, listed)

    def index(self, *, vector_of: str, size: int = 3, snapshot_id: int = 8) -> Path:
        """Give a snapshot an index manifest with one file, which is written with three bytes."""
        ranges = [{"f0": vector_of, "f1": 1, "f2": 2, "_CARDINALITY": 1}]
        record = {
            "_VERSION": 1,
            "_KIND": 0,
            "_PARTITION": UNPARTITIONED,
            "_BUCKET": 0,
            "_INDEX_TYPE": "DELETION_VECTORS",
            "_FILE_NAME": "index-1",
            "_FILE_SIZE": size,
            "_ROW_COUNT": 1,
            "_DELETIONS_VECTORS_RANGES": ranges,
            "_EXTERNAL_PATH": None,
            "_GLOBAL_INDEX": None,
        }
        data = encode_container(INDEX_MANIFEST, [record], codec_of("zstd", 1))
        (self.folder / "manifest" / "index-manifest-1").write_bytes(data)
        (self.folder / "index").mkdir()
        file = self.folder / "index" / "index-1"
        file.write_bytes(b"abc")
        self.change(snapshot_id, index_manifest="index-manifest-1")
        return file


def _table(warehouse: Path) -> Home:
    ref = keyed(warehouse, "d.t", commits=6)
    builders.one_shot(LOCAL, ref).run()
    builders.writer(LOCAL, ref).write(builders.rows_of([(100, 1)]))
    shutil.copy(f"{ref.location}/snapshot/snapshot-3", _made(f"{ref.location}/tag") / "tag-old")
    branch = _made(f"{ref.location}/branch/branch-b")
    shutil.copytree(f"{ref.location}/schema", branch / "schema")
    (branch / "snapshot").mkdir()
    shutil.copy(f"{ref.location}/snapshot/snapshot-4", branch / "snapshot")
    return Home(ref)


def _told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command prints on stdout, on a virtual clock."""
    found = verify(_parser().parse_args(["verify", *arguments]), builders.VirtualClock())
    out, err = capsys.readouterr()
    assert found == code, (out, err)
    return out


def _made(folder: str) -> Path:
    path = Path(folder)
    path.mkdir(parents=True)
    return path


def _gone(path: Path) -> str:
    path.unlink()
    return path.name


def _cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


def _overwritten(path: Path, text: str) -> str:
    path.write_text(text)
    return path.name


def _garbled(path: Path) -> str:
    """The same size, another end."""
    path.write_bytes(path.read_bytes()[:-4] + b"XXXX")
    return path.name


CASES: dict[str, tuple[str, str, Callable[[Home], str]]] = {
    "snapshot in between": (
        "snapshot_missing",
        "snapshot 5 does not exist between 4 and 6",
        lambda t: _gone(t.folder / "snapshot/snapshot-5"),
    ),
    "snapshot that is no JSON": (
        "metadata_damaged",
        "not JSON",
        lambda t: _overwritten(t.folder / "snapshot/snapshot-5", "{"),
    ),
    "snapshot of another id": (
        "metadata_damaged",
        "holds snapshot 6",
        lambda t: str(
            shutil.copy(t.folder / "snapshot/snapshot-6", t.folder / "snapshot/snapshot-5")
        ),
    ),
    "LATEST names no snapshot": (
        "hint_wrong",
        "names snapshot 99, which does not exist (the newest is 8)",
        lambda t: _overwritten(t.folder / "snapshot/LATEST", "99"),
    ),
    "EARLIEST is too late": (
        "hint_wrong",
        "names snapshot 4, but 1 exists",
        lambda t: _overwritten(t.folder / "snapshot/EARLIEST", "4"),
    ),
    "EARLIEST is no number": (
        "hint_wrong",
        "holds no number",
        lambda t: _overwritten(t.folder / "snapshot/EARLIEST", ""),
    ),
    "schema": (
        "metadata_missing",
        "does not exist",
        lambda t: _gone(t.folder / "branch/branch-b/schema/schema-0"),
    ),
    "base list": (
        "metadata_missing",
        "does not exist",
        lambda t: _gone(t.metadata(2, "base_manifest_list")),
    ),
    "delta list of another size": (
        "metadata_damaged",
        "are recorded",
        lambda t: _cut(t.metadata(2, "delta_manifest_list")),
    ),
    "manifest": ("metadata_missing", "does not exist", lambda t: _gone(t.manifest(4))),
    "manifest of another size": (
        "metadata_damaged",
        "are recorded",
        lambda t: _cut(t.manifest(4)),
    ),
    "damaged manifest": ("metadata_damaged", "", lambda t: _garbled(t.manifest(4))),
    "tag": (
        "metadata_damaged",
        "not JSON",
        lambda t: _overwritten(t.folder / "tag/tag-old", "{"),
    ),
    "snapshot of a branch": (
        "metadata_damaged",
        "not JSON",
        lambda t: _overwritten(t.folder / "branch/branch-b/snapshot/snapshot-4", "{"),
    ),
    "statistics": (
        "metadata_missing",
        "does not exist",
        lambda t: t.change(6, statistics="stat-1") or "statistics/stat-1",  # type: ignore[func-returns-value]
    ),
    "index manifest": (
        "metadata_missing",
        "does not exist",
        lambda t: t.change(6, index_manifest="index-x") or "index-x",  # type: ignore[func-returns-value]
    ),
    "index file": (
        "index_file_missing",
        "does not exist",
        lambda t: _gone(t.index(vector_of=t.data_files(8)[0].name)),
    ),
    "index file of another size": (
        "index_file_size",
        "has 3 bytes, but 4 are recorded",
        lambda t: t.index(vector_of=t.data_files(8)[0].name, size=4).name,
    ),
    "vector of a file that is not live": (
        "vector_without_file",
        "deletion vector of nobody.parquet",
        lambda t: t.index(vector_of="nobody.parquet").name,
    ),
    "changelog file": (
        "changelog_file_missing",
        "does not exist",
        lambda t: _gone(t.tell(4, rows=2)),
    ),
    "another number of changes": (
        "metadata_damaged",
        "names 2 rows, but snapshot 8 counts 5",
        lambda t: [t.tell(4, rows=5), t.metadata(4, "delta_manifest_list").name][1],  # type: ignore[list-item]
    ),
    "data file": ("data_file_missing", "does not exist", lambda t: _gone(t.data_files(7)[0])),
    "data file of another size": (
        "data_file_size",
        "bytes, not",
        lambda t: _cut(t.data_files(7)[0]),
    ),
    "another number of rows": (
        "data_file_damaged",
        "2 rows were read instead of 1",
        lambda t: t.replace_newest(rows=2),
    ),
    "files of a level overlap": (
        "levels_overlap",
        "key range overlaps with",
        lambda t: t.overlap_newest(),
    ),
    "damaged footer": ("data_file_damaged", "Parquet", lambda t: _garbled(t.data_files(7)[0])),
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_wrong_is_found_and_nothing_else(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, message, damage = CASES[case]
    home = _table(tmp_path)
    name = damage(home)
    before = digest(tmp_path)
    table = ("--warehouse", str(tmp_path), "--table", "d.t", "--json")
    found = json.loads(_told(capsys, *table, code=3))
    (finding,) = found["findings"]
    assert finding["kind"] == kind
    assert finding["path"].endswith(name)
    assert message in finding["message"]
    assert finding["advice"]
    assert found["whole"] is False
    assert digest(tmp_path) == before


def test_a_whole_table_is_whole_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = _table(tmp_path)
    home.index(vector_of=home.data_files(8)[0].name)
    # As a writer leaves it that had no space left: the next commit writes it anew.
    _overwritten(home.folder / "snapshot/LATEST", "")
    before = digest(tmp_path)
    table = ("verify", "--warehouse", str(tmp_path), "--table", "d.t")
    found = answered(capsys, *table)
    assert (found["whole"], found["pages_read"]) == (None, 0)
    assert not found["findings"]
    assert not found["not_verified"]
    # Eight snapshots, the tag, the branch's snapshot.
    assert found["snapshots_and_tags"] == 10
    assert (found["files_of"], found["data_files"], found["footers"]) == (["snapshot 8"], 2, 2)
    every = answered(capsys, *table, "--all-snapshots", "--footers", "3")
    assert every["data_files"] == 8
    assert len(every["files_of"]) == 10
    text = "d.t: metadata, sizes and footers are right; pages were not read; verified 10 snapshots"
    assert said(capsys, *table).startswith(text)
    assert digest(tmp_path) == before


def _rules(**changed: Any) -> FileRules:
    rules = FileRules(
        bucket_folder=lambda bucket: paths.bucket_folder(TABLE.location, "", bucket.bucket),
        check_levels=None,
        read_footer=lambda path, file: True,
        sample=0,
        random=random.Random(1),
    )
    return replace(rules, **changed)


def _verified(storage: Storage, wanted: Wanted | None = None, **changed: Any) -> Verified:
    wanted = wanted or Wanted()
    rules = _rules(**changed)
    return verify_table(
        storage, TABLE, wanted, rules, progress=lambda text: None, pause=lambda: None
    )


def _with_data(table: Lineage) -> Lineage:
    """Data files of the recorded sizes."""
    with_data(table)
    for snapshot_id in snapshot_ids(table.storage, TABLE.location):
        for bucket, file in builders.live_files(table.storage, TABLE, snapshot_id):
            path = table.data_path(bucket.bucket, file)
            table.storage.objects[path] = bytes(file.file_size)
    return table


def _on_object_store() -> Lineage:
    """Snapshots 1 and 2 add files, 3 merges them, 4 adds one, 5 merges all."""
    return _with_data(some_table())


def _missing(found: Verified) -> list[Finding]:
    return [each for each in found.findings if each.kind is FindingKind.DATA_FILE_MISSING]


def test_what_is_to_be_done_about_a_lost_file_names_the_newest_version_without_it() -> None:
    table = _on_object_store()
    table.append(1)
    _with_data(table)
    merged, added = sorted(table.files(), key=lambda file: -file.level)
    for lost, to in ((added, "snapshot 5"), (merged, "snapshot 4")):
        storage = table.storage.copy()
        storage.delete(table.data_path(0, lost))
        (finding,) = _missing(_verified(storage))
        assert f"roll the table back to {to}," in finding.advice
        call = f"CALL sys.rollback_to(`table` => '{TABLE.full_name}', snapshot_id => {to[-1]})"
        assert finding.advice.endswith(call)
        assert finding.needed_by == ("snapshot 6",)
        for snapshot_id in range(1, int(to[-1]) + 1):
            storage.delete(paths.snapshot_path(TABLE.location, snapshot_id))
        (finding,) = _missing(_verified(storage))
        assert "no snapshot or tag is without it" in finding.advice
        tag = paths.tag_path(TABLE.location, "kept")
        storage.write_new(tag, table.storage.read(paths.snapshot_path(TABLE.location, 2)))
        (finding,) = _missing(_verified(storage))
        assert "roll the table back to tag kept," in finding.advice
        assert finding.advice.endswith(f"(`table` => '{TABLE.full_name}', tag => 'kept')")


def test_a_file_that_only_older_versions_need_is_told_as_that() -> None:
    table = _on_object_store()
    (file,) = (file for _, file in builders.live_files(table.storage, TABLE, 3))
    table.storage.delete(table.data_path(0, file))
    assert not _verified(table.storage).findings
    for wanted in (Wanted(snapshot_id=3), Wanted(is_all=True)):
        (finding,) = _missing(_verified(table.storage, wanted))
        assert finding.advice == (
            "Only reads of older versions need it: snapshot 5, the newest, does not."
        )


def test_a_version_by_id_or_tag_is_verified_or_refused() -> None:
    table = _on_object_store()
    tag = paths.tag_path(TABLE.location, "t")
    table.storage.write_new(tag, table.storage.read(paths.snapshot_path(TABLE.location, 2)))
    assert _verified(table.storage, Wanted(tag="t")).files_of == ("tag t",)
    assert _verified(table.storage, Wanted(snapshot_id=3)).files_of == ("snapshot 3",)
    for wanted, text in ((Wanted(tag="x"), "no tag x"), (Wanted(snapshot_id=9), "no snapshot 9")):
        with pytest.raises(UsageError, match=text):
            _verified(table.storage, wanted)


@pytest.mark.parametrize("sample", [0, 2, 3, 9, None])
def test_footers_are_read_of_as_many_files_as_asked(sample: int | None) -> None:
    table = Lineage()
    table.append(3)
    table.append(2, bucket=1)
    _with_data(table)
    read: list[str] = []

    def read_footer(path: str, file: DataFile) -> bool:
        read.append(path)
        return True

    found = _verified(table.storage, sample=sample, read_footer=read_footer)
    assert (
        len(set(read))
        == len(read)
        == found.counts.footers
        == min(5, sample if sample is not None else 5)
    )


def test_verifying_only_reads_and_lists_each_bucket_once() -> None:
    table = _on_object_store()
    table.append(3, bucket=2)
    _with_data(table)
    storage = RecordingStorage(table.storage)
    assert not _verified(storage).findings
    assert not [call for call in storage.log if call.is_mutation]
    buckets = [each.path for each in storage.log if "/bucket-" in each.path]
    assert sorted(buckets) == [f"{TABLE.location}/bucket-0", f"{TABLE.location}/bucket-2"]


@pytest.mark.parametrize(
    "part", ["/bucket-0", "/snapshot/snapshot-3", "/manifest/", "/tag", "/branch"]
)
def test_what_cannot_be_read_is_told_as_that_and_never_as_gone(part: str) -> None:
    table = _on_object_store()

    def deny(call: Call) -> None:
        if part in call.path:
            raise AccessDenied(call.path, "read failed (denied)")

    found = _verified(HookedStorage(table.storage, before=deny))
    assert {each.kind for each in found.findings} == {FindingKind.CANNOT_BE_READ}


def test_vectors_are_of_live_files_in_every_version_that_has_them(tmp_path: Path) -> None:
    home = _table(tmp_path)
    home.index(vector_of=home.data_files(8)[0].name)
    home.change(7, index_manifest="index-manifest-1")
    rules = replace(_rules(), bucket_folder=lambda b: f"{home.ref.location}/bucket-{b.bucket}")

    def verified(storage: Storage) -> Verified:
        wanted = Wanted(is_all=True)
        return verify_table(
            storage,
            home.ref,
            wanted,
            rules,
            progress=lambda text: None,
            pause=lambda: None,
        )

    assert not verified(LOCAL).findings

    def deny(call: Call) -> None:
        if call.method == "list" and "/bucket-" in call.path:
            raise AccessDenied(call.path, "list failed (denied)")

    found = verified(HookedStorage(LOCAL, before=deny)).findings
    assert {each.kind for each in found} == {FindingKind.CANNOT_BE_READ}


def _expiring(table: Lineage, *, from_: int, to: int) -> Callable[[], None]:
    """Data files of these snapshots that no other one needs go now; the snapshots when called."""
    storage, ids = table.storage, range(from_, to + 1)
    kept = {
        file.file_name
        for snapshot_id in snapshot_ids(storage, TABLE.location)
        if snapshot_id not in ids
        for _, file in builders.live_files(storage, TABLE, snapshot_id)
    }
    for snapshot_id in ids:
        for bucket, file in builders.live_files(storage, TABLE, snapshot_id):
            if file.file_name not in kept:
                storage.delete(table.data_path(bucket.bucket, file))

    def finish() -> None:
        for snapshot_id in ids:
            storage.delete(paths.snapshot_path(TABLE.location, snapshot_id))

    return finish


def _paused(table: Lineage, wanted: Wanted, pause: Callable[[], None]) -> Verified:
    return verify_table(
        table.storage,
        TABLE,
        wanted,
        _rules(),
        progress=lambda text: None,
        pause=pause,
    )


@pytest.mark.parametrize("wanted", [Wanted(is_all=True), Wanted(snapshot_id=4)], ids=str)
def test_files_that_go_before_the_snapshots_that_expire_are_no_finding(wanted: Wanted) -> None:
    table = _on_object_store()
    assert not _paused(table, wanted, _expiring(table, from_=1, to=4)).findings
    table = _on_object_store()
    _expiring(table, from_=1, to=4)
    assert _missing(_paused(table, wanted, lambda: None)), "nothing expires: they are lost"


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(is_all=True)], ids=str)
def test_a_file_is_lost_although_others_expire_and_there_is_a_newer_snapshot(
    wanted: Wanted,
) -> None:
    table = _on_object_store()
    (lost,) = table.files()
    finish = _expiring(table, from_=1, to=4)

    def pause() -> None:
        finish()
        table.append(1)
        _with_data(table)
        table.storage.delete(table.data_path(0, lost))

    table.storage.delete(table.data_path(0, lost))
    (finding,) = _missing(_paused(table, wanted, pause))
    assert finding.path == table.data_path(0, lost)


def test_a_refused_table_is_verified_as_far_as_it_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = _table(tmp_path)
    schema = home.folder / "schema/schema-0"
    table = ("verify", "--warehouse", str(tmp_path), "--table", "d.t")
    found = json.loads(schema.read_text())
    schema.write_text(
        json.dumps({**found, "options": {**found["options"], "row-tracking.enabled": "true"}})
    )
    assert answered(capsys, *table)["data_files"] == 2
    found["fields"][1]["type"] = "WHATEVER"
    schema.write_text(json.dumps(found))
    told = answered(capsys, *table)
    assert not told["data_files"]
    assert any("data files: " in text and "WHATEVER" in text for text in told["not_verified"])


def test_of_several_tables_each_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path / "wh", "d.a", commits=2)
    home = _table(tmp_path / "wh")
    home.data_files(8)[0].unlink()
    config = configuration(tmp_path, "catalogs: {lake: {warehouse: WH}}")
    found = json.loads(
        _told(capsys, "--all", "--config", config, "--json", code=3).splitlines()[-1]
    )
    assert {each["table"]: each["whole"] for each in found["tables"]} == {"d.a": None, "d.t": False}
    text = _told(capsys, "--config", config, "--tables", "d.t", code=3)
    assert "d.t: 1 data_file_missing; verified" in text
    assert "    of snapshot 8\n" in text
    assert "2 tables" not in text
    for wrong in (("--snapshot", "3"), ("--footers", "some"), ("--footers", "-1")):
        said(capsys, "verify", "--all", "--config", config, *wrong, code=2)
