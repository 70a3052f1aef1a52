"""`compactord verify`: whether all files of tables are there and as their metadata says."""

from __future__ import annotations

import argparse
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from compactord.amounts import count_text
from compactord.catalog.access import TableAccess
from compactord.cli.choice import Target, choose
from compactord.cli.each_table import Result, over_tables
from compactord.cli.progress import told_of
from compactord.cli.running import FAILED, OK, say
from compactord.clock import Clock, SystemClock
from compactord.errors import FormatError, UnsupportedTable, UsageError
from compactord.formats.registry import Formats
from compactord.maintenance.finding import Finding
from compactord.maintenance.verify import Verified, Wanted, verify_table
from compactord.maintenance.verify_files import FileRules
from compactord.model import InputFile
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.plan.runs import bucket_runs
from compactord.storage.base import Storage
from compactord.storage.fetching import Fetcher
from compactord.table.opening import describe_table

_SHOWN_MAX = 20
# Between two looks at what is missing: files of a snapshot that expires go before it does.
_PAUSE_SECONDS = 10.0


def verify(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code, or `UsageError`. `clock` None: the machine's."""
    clock = clock or SystemClock()
    sample = _sample(args.footers)
    wanted = Wanted(snapshot_id=args.snapshot, tag=args.tag, is_all=args.all_snapshots)
    choice = choose(args)
    if not choice.is_single and (args.snapshot is not None or args.tag is not None):
        raise UsageError("--snapshot and --tag are of one table: give it by --table")

    def pause() -> None:
        say(f"something is missing; looking again in {_PAUSE_SECONDS:.0f} s, as it may be expiring")
        clock.sleep(_PAUSE_SECONDS)

    def work(target: Target) -> Result:
        name, access = choice.shown_name(target), target.open()
        rules = _rules(target, access, sample)
        told = told_of(name, clock)
        ref, storage = target.ref, access.storage
        found = verify_table(storage, ref, wanted, rules, progress=told, pause=pause)
        code = FAILED if found.findings else OK
        return Result(lines=list(_text(name, found)), found=_json(target, found), code=code)

    return over_tables(args, choice, work, passes_over=False)


def _sample(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--footers {text}: expected a number of files, or all")
    return int(text)


def _rules(target: Target, access: TableAccess, sample: int | None) -> FileRules | str:
    """What the latest schema says of the table's files; as a text why it does not."""
    try:
        schema = access.newest_schema()
        table = describe_table(access, schema, {}, target.registries)
    except (UnsupportedTable, FormatError) as error:
        return str(error)
    if "data-file.path-directory" in schema.options:
        return "they are elsewhere (data-file.path-directory)"
    key_of = table.key_of
    return FileRules(
        bucket_folder=table.bucket_folder,
        check_levels=None if key_of is None else lambda files: bucket_runs(files, key_of),
        read_footer=partial(_read_footer, access.storage, table.readable),
        sample=sample,
        random=random.Random(),
    )


def _read_footer(storage: Storage, formats: Formats, path: str, file: DataFile) -> bool:
    """As `ReadFooter`."""
    try:
        name = paths.format_of(file.file_name)
    except FormatError:
        return False
    if name not in formats:
        return False
    described = InputFile(
        path=path,
        file_format=name,
        size_bytes=file.file_size,
        row_count=file.row_count,
        min_sequence_number=file.min_sequence_number,
        max_sequence_number=file.max_sequence_number,
    )
    with contextlib.closing(Fetcher(storage)) as fetcher:
        opened = formats[name].open(storage, fetcher, described)
        described.check_rows(sum(group.rows for group in opened.row_groups(None)))
    return True


def _text(name: str, found: Verified) -> Iterator[str]:
    counts = found.counts
    of = "the newest snapshot" if not found.files_of else ", ".join(found.files_of[:3])
    more = f" and {len(found.files_of) - 3:,} more" if len(found.files_of) > 3 else ""
    figures = [f"{found.versions:,} snapshots and tags"]
    figures.append(count_text(found.manifests, "manifest"))
    if found.files_of:
        figures.append(f"{count_text(counts.files, 'data file')} of {of}{more}")
        figures.append(count_text(counts.footers, "footer"))
    kinds = Counter(each.kind.value for each in found.findings)
    verdict = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "nothing is wrong"
    yield f"{name}: {verdict}; verified {', '.join(figures)}"
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


def _finding_text(each: Finding) -> Iterator[str]:
    yield f"  {each.kind.value}: {each.path}: {each.message}"
    if each.needed_by:
        more = f" and {len(each.needed_by) - 3:,} more" if len(each.needed_by) > 3 else ""
        yield f"    of {', '.join(each.needed_by[-3:])}{more}"
    yield f"    {each.advice}"


def _json(target: Target, found: Verified) -> dict[str, Any]:
    counts = found.counts
    return {
        "table": target.full_name,
        "location": target.ref.location,
        "whole": not found.findings,
        "findings": [{**asdict(each), "kind": each.kind.value} for each in found.findings],
        "not_verified": list(found.unknown),
        "snapshots_and_tags": found.versions,
        "manifests": found.manifests,
        "files_of": list(found.files_of),
        "data_files": counts.files,
        "footers": counts.footers,
    }
