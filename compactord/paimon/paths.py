"""Paths of a table's files: URL strings joined with `/`, below the table's location.

Sources: utils/{FileStorePathFactory,PartitionPathUtils,InternalRowPartitionComputer}.java,
io/DataFilePathFactory.java, utils/BranchManager.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compactord.errors import FormatError
from compactord.paimon.binary_row import Value, decode_row
from compactord.paimon.java_text import cast_text, is_blank, to_string
from compactord.paimon.types import DataField

SCHEMA_PREFIX = "schema-"
SNAPSHOT_PREFIX = "snapshot-"
TAG_PREFIX = "tag-"
MAIN_BRANCH = "main"
BRANCH_PREFIX = "branch-"
CHANGELOG_PREFIX = "changelog-"
CONSUMER_PREFIX = "consumer-"
BUCKET_PREFIX = "bucket-"
LATEST = "LATEST"
EARLIEST = "EARLIEST"

_POSTPONE_BUCKET = -2
# Ids are 64-bit numbers.
_ID_DIGITS = 19
_ESCAPED = frozenset(chr(code) for code in (*range(0x20), 0x7F)) | frozenset("\"#%'*/:=?\\{}[]^")

# The part of a location before its path. Local paths have none.
_STORE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
_LOCAL_FILE = re.compile(r"^file:(//)?(?=/)")
# Bucket and size of the first part, which is in that bucket, then position and size of another.
_MERGED_CHANGELOG = re.compile(
    r"(?P<first>compacted-changelog-[^$.]*\$(?P<bucket>\d+)-(?P<size>\d+))"
    r"(?:-(?P<at>\d+)-(?P<length>\d+))?(?P<suffix>\.cc-[^.]+)"
)
_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f]")

# Suffixes for the compression in a data file's name (format/HadoopCompressionType.java).
_COMPRESSION_SUFFIXES = {
    "none": "",
    "gzip": ".gz",
    "bzip2": ".bz2",
    "deflate": ".deflate",
    "snappy": ".snappy",
    "lz4": ".lz4",
    "zstd": ".zst",
}


def join(folder: str, *names: str) -> str:
    return "/".join((folder.rstrip("/"), *names))


def is_file_name(name: str) -> bool:
    """Whether the text is a plain file name: one entry of a folder, never a path out of it."""
    return name not in ("", ".", "..") and _NOT_IN_NAMES.search(name) is None


def checked_name(name: str, source: str) -> str:
    """A file's name from the metadata in `source`, checked because the file may be read or deleted
    by it.

    Raises `FormatError` with both unless `is_file_name`.
    """
    if not is_file_name(name):
        raise FormatError(source, f"{name!r} is not a plain file name")
    return name


def branch_root(location: str, branch: str = MAIN_BRANCH) -> str:
    """The folder of a branch's schemas, snapshots and tags. Manifests and data are in the
    table's.
    """
    return location if branch == MAIN_BRANCH else join(location, "branch", BRANCH_PREFIX + branch)


def branch_folder(location: str) -> str:
    return join(location, "branch")


def schema_folder(root: str) -> str:
    return join(root, "schema")


def schema_path(root: str, id_: int) -> str:
    return join(schema_folder(root), f"{SCHEMA_PREFIX}{id_}")


def table_of_file(path: str) -> str:
    """The location of the table (or branch) that a file of a schema, snapshot or tag belongs to."""
    return path.rsplit("/", 2)[0]


def snapshot_folder(root: str) -> str:
    return join(root, "snapshot")


def snapshot_path(root: str, id_: int) -> str:
    return join(snapshot_folder(root), f"{SNAPSHOT_PREFIX}{id_}")


def latest_hint(root: str) -> str:
    return join(snapshot_folder(root), LATEST)


def earliest_hint(root: str) -> str:
    return join(snapshot_folder(root), EARLIEST)


def tag_folder(root: str) -> str:
    return join(root, "tag")


def tag_path(root: str, name: str) -> str:
    return join(tag_folder(root), TAG_PREFIX + name)


def changelog_folder(root: str) -> str:
    """Changelogs that are kept after their snapshots have expired."""
    return join(root, "changelog")


def changelog_path(root: str, id_: int) -> str:
    return join(changelog_folder(root), f"{CHANGELOG_PREFIX}{id_}")


def consumer_folder(root: str) -> str:
    """The folder in which streaming readers record the snapshot that they read next."""
    return join(root, "consumer")


def manifest_folder(location: str) -> str:
    """Manifests, manifest lists and index manifests of all branches."""
    return join(location, "manifest")


def manifest_path(location: str, name: str) -> str:
    return join(manifest_folder(location), name)


def index_folder(location: str) -> str:
    """Index files of all partitions and branches."""
    return join(location, "index")


def index_path(location: str, name: str) -> str:
    return join(index_folder(location), name)


def store_root(path: str) -> str:
    """The part of a path before the folders in its store; empty for local paths."""
    store = _STORE.match(path)
    return store[0] if store is not None else ""


def external_path(location: str, text: str) -> str | None:
    """The path of a file outside of the table's folders, or None for a file in another store.

    `text` comes from metadata as Java prints it: `file:/a/b`, or with a scheme and an authority.
    """
    root = store_root(location)
    path = text if root else _LOCAL_FILE.sub("", text)
    names = path.removeprefix(root + "/").split("/")
    return path if path.startswith(root + "/") and all(map(is_file_name, names)) else None


def statistics_folder(location: str) -> str:
    return join(location, "statistics")


def statistics_path(location: str, name: str) -> str:
    return join(statistics_folder(location), name)


def id_of(name: str, prefix: str) -> int | None:
    """The number in a name such as `snapshot-12`; None for other names (temporary files, hints)."""
    digits = name.removeprefix(prefix)
    if digits == name or not (digits.isascii() and digits.isdigit()) or len(digits) > _ID_DIGITS:
        return None
    return int(digits)


def spec_path(spec: Mapping[str, str]) -> str:
    """The folders of a partition, as `a=1/b=x`, by its spec; empty without partition keys.

    Readers recompute this path (`partition_spec`), so a file in any other folder is lost.
    """
    return "/".join(f"{_escaped(name)}={_escaped(text)}" for name, text in spec.items())


def partition_spec(
    partition: bytes,
    fields: Sequence[DataField],
    *,
    default_name: str,
    legacy_name: bool,
    source: str = "partition",
) -> dict[str, str]:
    """The texts of a serialised partition row's values by column, not escaped; see `spec_path`.

    `fields` are the partition columns in partition-key order; `default_name` and `legacy_name` are
    the options `partition.default-name` and `partition.legacy-name`. Raises `FormatError` for rows
    that have no path, and with `source` for bytes that are no row.
    """
    values = decode_row(partition, [field.type for field in fields], source=source)
    text = to_string if legacy_name else cast_text
    return {
        field.name: _named(text(value, field.type), default_name)
        for value, field in zip(values, fields, strict=True)
    }


def _named(text: str | None, default_name: str) -> str:
    return default_name if text is None or is_blank(text) else text


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def bucket_folder(location: str, partition: str, bucket: int) -> str:
    """The folder of a bucket; `partition` is a result of `spec_path`."""
    name = BUCKET_PREFIX + ("postpone" if bucket == _POSTPONE_BUCKET else str(bucket))
    return join(location, partition, name) if partition else join(location, name)


def file_suffix(file_format: str, compression: str | None) -> str:
    """The end of a new file's name; `compression` is the table-wide codec if names include it."""
    if compression is None:
        return f".{file_format}"
    return _COMPRESSION_SUFFIXES.get(compression.lower(), f".{compression}") + f".{file_format}"


def format_of(file_name: str) -> str:
    """The format by a file's name, as readers take it: tables may mix formats.

    Raises `FormatError` for other names.
    """
    parts = file_name.split(".")[1:]
    if parts and f".{parts[-1].lower()}" in _COMPRESSION_SUFFIXES.values():
        parts.pop()
    if not parts:
        raise FormatError(file_name, "the data file's name has no known format")
    return parts[-1]


class FilePart(NamedTuple):
    """A file that is a part of an object: its path, the first byte, the number of bytes."""

    path: str
    offset: int
    size_bytes: int


def merged_changelog(path: str) -> FilePart | None:
    """The part of an object that `precommit-compact` merged a changelog file into, or None.

    The folder of the file's bucket has an object of this name only for the first part
    (utils/CompactedChangelogPathResolver.java).
    """
    folder, _, name = path.rpartition("/")
    found = _MERGED_CHANGELOG.fullmatch(name)
    if found is None:
        return None
    if found["at"] is None:
        return FilePart(path, 0, int(found["size"]))
    beside = join(folder.rpartition("/")[0], BUCKET_PREFIX + found["bucket"])
    whole = join(beside, found["first"] + found["suffix"])
    return FilePart(whole, int(found["at"]), int(found["length"]))


def merged_format(file_format: str) -> str:
    """The format of the parts of a merged object, by the format in its name; others are
    unchanged.
    """
    return file_format.removeprefix("cc-")


def partition_text(values: Sequence[Value], fields: Sequence[DataField]) -> str:
    """A partition for display: `a=1, b=x`."""
    pairs = zip(values, fields, strict=True)
    return ", ".join(f"{field.name}={_shown(value, field)}" for value, field in pairs)


def _shown(value: Value, field: DataField) -> str:
    if value is None:
        return "null"
    try:
        return cast_text(value, field.type) or "''"
    except FormatError:
        return str(value)
