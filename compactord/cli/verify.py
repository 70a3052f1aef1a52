"""`compactord verify`: checks all files of tables against the metadata."""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from compactord.catalog.access import TableAccess
from compactord.cli.compact import progress_reporter
from compactord.cli.running import FAILED, OK, say
from compactord.cli.select import Result, SelectedTable, choose, over_tables
from compactord.clock import Clock, SystemClock
from compactord.errors import FormatError, UnsupportedTable, UsageError
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId
from compactord.plan.picks import bucket_runs
from compactord.table.file_reading import FileReader
from compactord.table.opening import OpenTable, describe_table
from compactord.text import count_text
from compactord.verify.rules import FileRules, Finding, PageRules
from compactord.verify.verify import Verified, Wanted, verify_table

_SHOWN_MAX = 20
# Between two looks at what is missing: files of a snapshot that expires go before it does.
_PAUSE_SECONDS = 10.0


def verify(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; returns the exit code, or raises `UsageError`."""
    clock = clock or SystemClock()
    sample, share = _sample(args.footers), _share(args.pages)
    wanted = Wanted(snapshot_id=args.snapshot, tag=args.tag, is_all=args.all_snapshots)
    choice = choose(args)
    if not choice.is_single and (args.snapshot is not None or args.tag is not None):
        raise UsageError("--snapshot and --tag are of one table: give it by --table")

    def pause() -> None:
        say(f"something is missing; looking again in {_PAUSE_SECONDS:.0f} s, as it may be expiring")
        clock.sleep(_PAUSE_SECONDS)

    def work(target: SelectedTable) -> Result:
        name, access = choice.shown_name(target), target.open()
        rules = _rules(target, access, sample, share)
        told = progress_reporter(name, clock)
        ref, storage = target.ref, access.storage
        found = verify_table(storage, ref, wanted, rules, progress=told, pause=pause)
        code = FAILED if found.whole is False else OK
        return Result(lines=list(_text(name, found)), found=_json(target, found), code=code)

    return over_tables(args, choice, work, passes_over=False)


def _sample(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--footers {text}: expected a number of files, or all")
    return int(text)


def _share(text: str | None) -> float | None:
    """The share given with `--pages`, above 0 and up to 1, or None without it."""
    if text is None or text == "all":
        return None if text is None else 1.0
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if number == text or not 0 < share <= 1:
        raise UsageError(f"--pages {text}: expected a share such as 1%, or all")
    return share


def _rules(
    target: SelectedTable, access: TableAccess, sample: int | None, share: float | None
) -> FileRules | str:
    """The rules of the latest schema for the table's files, or the reason why there are none."""
    try:
        schema = access.newest_schema()
        table = describe_table(access, schema, {}, target.registries)
        bucket_folder = _bucket_folder(table)
    except (UnsupportedTable, FormatError) as error:
        return str(error)
    # Files are in the order of other columns then, which may be the same on all levels.
    is_keyed = table.key_of is not None and not _is_on(table, "pk-clustering-override")
    reader = FileReader(table)
    key_of = table.key_of
    return FileRules(
        bucket_folder=bucket_folder,
        check_levels=(lambda files: bucket_runs(files, key_of)) if key_of and is_keyed else None,
        read_footer=reader.read_footer,
        sample=sample,
        random=random.Random(),
        pages=None if share is None else PageRules(share=share, read=reader.read_pages),
        indexes_in_buckets=_is_on(table, "index-file-in-data-file-dir"),
        is_sorted=is_keyed and not _is_on(table, "primary-key.nullable"),
    )


def _is_on(table: OpenTable, option: str) -> bool:
    return table.schema.options.get(option, "").strip().lower() == "true"


def _bucket_folder(table: OpenTable) -> Callable[[BucketId], str]:
    """Where the files of buckets are. Raises `UnsupportedTable` if that is not below the table."""
    directory = table.schema.options.get("data-file.path-directory")
    if directory is None:
        return table.bucket_folder
    names = directory.strip("/").split("/")
    if not all(map(paths.is_file_name, names)):
        reason = f"data-file.path-directory={directory} is not a folder below the table"
        raise UnsupportedTable(table.ref.full_name, [reason])
    data = paths.join(table.ref.location, *names)
    return lambda bucket: paths.bucket_folder(
        data, table.partition_path(bucket.partition), bucket.bucket
    )


def _text(name: str, found: Verified) -> Iterator[str]:
    counts = found.counts
    of = "the newest snapshot" if not found.files_of else ", ".join(found.files_of[:3])
    more = f" and {len(found.files_of) - 3:,} more" if len(found.files_of) > 3 else ""
    figures = [f"{found.versions:,} snapshots and tags"]
    figures.append(count_text(found.manifests, "manifest"))
    if found.files_of:
        figures.append(f"{count_text(counts.files, 'data file')} of {of}{more}")
        figures.append(count_text(counts.footers, "footer"))
    if found.pages_wanted:
        pages = counts.pages
        read = f"{count_text(pages.groups, 'row group')} of {count_text(pages.files, 'file')}"
        figures.append(f"{_percent(found.pages_read)} of the pages ({read})")
    yield f"{name}: {_verdict(found)}; verified {', '.join(figures)}"
    shown: Counter[str] = Counter()
    for each in found.findings:
        shown[each.kind.value] += 1
        if shown[each.kind.value] <= _SHOWN_MAX:
            yield from _finding_text(each)
    for kind, count in shown.items():
        if count > _SHOWN_MAX:
            yield f"  {kind}: {count - _SHOWN_MAX:,} more (--json names all)"
    for text in found.unknown:
        yield f"  not verified: {text}"


def _verdict(found: Verified) -> str:
    kinds = Counter(each.kind.value for each in found.findings)
    if kinds:
        return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    if found.whole:
        return "nothing is wrong"
    if not found.files_of:
        return "metadata is right; data files were not verified"
    has_footers = found.counts.footers > 0
    footers = "sizes and footers are" if has_footers else "sizes are"
    if not found.pages_wanted:
        unread = "pages were not read" if has_footers else "footers and pages were not read"
    elif found.pages_read < 1:
        unread = f"{_percent(found.pages_read)} of the pages were read"
    else:
        unread = "all pages were read, but not everything could be verified"
    return f"metadata, {footers} right; {unread}"


def _percent(share: float) -> str:
    """Rounded down: 100% are all."""
    return f"{math.floor(share * 1000) / 10:g}%"


def _finding_text(each: Finding) -> Iterator[str]:
    yield f"  {each.kind.value}: {each.path}: {each.message}"
    if each.needed_by:
        more = f" and {len(each.needed_by) - 3:,} more" if len(each.needed_by) > 3 else ""
        yield f"    of {', '.join(each.needed_by[-3:])}{more}"
    yield f"    {each.advice}"


def _json(target: SelectedTable, found: Verified) -> dict[str, Any]:
    counts = found.counts
    return {
        "table": target.full_name,
        "location": target.ref.location,
        "whole": found.whole,
        "findings": [{**asdict(each), "kind": each.kind.value} for each in found.findings],
        "not_verified": list(found.unknown),
        "snapshots_and_tags": found.versions,
        "manifests": found.manifests,
        "files_of": list(found.files_of),
        "data_files": counts.files,
        "footers": counts.footers,
        "pages_read": found.pages_read,
        "row_groups": counts.pages.groups,
    }
