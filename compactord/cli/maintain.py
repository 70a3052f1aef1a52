"""`compactord maintain`, `expire` and `orphans`: the kinds of maintenance for selected tables.

`expire` and `orphans` do one kind each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import methodcaller

from compactord.catalog.access import TableAccess
from compactord.cli.amounts import amount_of, check_amounts
from compactord.cli.compact import progress_reporter
from compactord.cli.maintenance import MaintenanceRun, Work, in_turn, of_choice, offered, result_of
from compactord.cli.names import unknown_choice
from compactord.cli.registries import registries_of
from compactord.cli.running import stop_on_signals
from compactord.cli.select import Result, SelectedTable, choose, note_if_unmanaged, over_tables
from compactord.clock import Clock, SystemClock
from compactord.config.model import Recovery
from compactord.config.policy import policy_for, setting_origin
from compactord.errors import StorageError, TransientStorageError, UnsupportedTable, UsageError
from compactord.maintenance.changelog_expiry import ExpireChangelogs
from compactord.maintenance.copied_files import CopyWatch
from compactord.maintenance.kind import AnyKind
from compactord.maintenance.orphan_search import OrphanSearch, TableFolders
from compactord.maintenance.orphans import (
    SweepForeign,
    SweepOrphans,
    files_report,
    owner_rule,
    remove_found,
    trash_of,
)
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.maintenance.used_names import Incomplete
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId
from compactord.paimon.options.catalogue import canonical_key
from compactord.paimon.schema import branch_of
from compactord.paimon.snapshot import branch_names
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.storage.calls import DeleteRateLimiter
from compactord.storage.open import with_others
from compactord.table.opening import OpenTable, describe_table
from compactord.text import count_text, size_text

_PATH_DIRECTORY = "data-file.path-directory"
_EXTERNAL_PATHS = "data-file.external-paths"
# Options that make compaction refuse a table, but affect only the places of files.
_PLACES = (_PATH_DIRECTORY, _EXTERNAL_PATHS, "index-file-in-data-file-dir")


def ruled_sweep(run: MaintenanceRun, target: SelectedTable) -> Result:
    """Runs `foreign_sweep` with the settings of the table's rule, if the rule enables it."""
    if target.policy.remove_foreign_files:
        silent = {"older_than": None, "trash": None, "external_paths": False}
        args = argparse.Namespace(**vars(run.args), **silent)
        return foreign_sweep(replace(run, args=args), target)
    key = setting_origin(run.choice.loaded, target.name, "remove_foreign_files")
    line = f"{run.choice.shown_name(target)}: {key} is false"
    return Result(lines=[line], found={"orphans": [], "left_alone": []})


def foreign_sweep(run: MaintenanceRun, target: SelectedTable) -> Result:
    """Removes what nothing names from one table, as `orphans` of its result.

    External paths are skipped unless they are requested and their store can be opened with the
    catalog's options. The table's rule sets the grace and the trash folder where arguments do not.
    Raises `TransientStorageError` where names in use cannot be known.
    """
    others_grace_ms = amount_of(run.args, "older_than", target.policy.foreign_files_older_than_ms)
    access = target.open()
    folders, unmanaged_reason, storage, table, bucket_folder = _places(run, target, access)
    holds = run.holds_of(access)
    newest = partial(_newest, access)
    hold = None if holds is None else holds.why_held(newest, bucket_folder)
    refusal = run.refusal(target, hold)
    rule = replace(owner_rule(run.clock, run.grace_ms), others_grace_ms=others_grace_ms)
    trash = _trash(run, target, access, folders)
    progress = progress_reporter(run.choice.shown_name(target), run.clock)
    copies = CopyWatch(run.grace_ms)
    why_wait = partial(copies.why_wait, table, rule.now_ms)
    search = OrphanSearch(storage, folders, rule, progress, why_wait)
    try:
        found = search.find()
    except Incomplete as why:
        raise TransientStorageError(target.ref.location, why.reason) from None
    if not run.is_dry:
        found = remove_found(
            storage, folders, search, found, trash=trash, is_stopped=run.stop.is_set
        )
    size = size_text(sum(orphan.size_bytes for orphan in found))
    what = f"{count_text(len(found), 'file')} that nothing names ({size})"
    shown = run.shown(target, None)
    errors = [] if search.uploads_error is None else [search.uploads_error]
    report = files_report(shown, found, what, errors)
    lines = [*report.lines]
    if run.is_dry:
        lines += [f"  {folder} (empty folder)" for folder in search.empty_folders]
    lines += [f"  not looked at: external path {place}" for place in unmanaged_reason]
    lines += refusal
    found_json = {**report.found, "left_alone": list(unmanaged_reason)}
    report = replace(report, lines=lines, found=found_json)
    return result_of(report, shown, was_stopped=run.stop.is_set())


def _places(
    run: MaintenanceRun, target: SelectedTable, access: TableAccess
) -> tuple[TableFolders, Sequence[str], Storage, OpenTable, Callable[[BucketId], str]]:
    """Where files of the table are looked for, external paths where they are not, a store, a table.

    The store has them all. Last comes where the files of a bucket are. Other tables may have the
    same external paths, and their files the same folders there.

    Raises `UnsupportedTable` for a table that is not compacted for another reason than that.
    """
    schema = access.newest_schema()
    texts = {canonical_key(key): text for key, text in schema.options.items()}
    usual = {key: text for key, text in texts.items() if key not in _PLACES}
    as_usual = replace(schema, options=usual)
    table = describe_table(access, as_usual, target.policy.options, target.registries)
    if table.refusals:
        raise UnsupportedTable(target.full_name, table.refusals)
    location = home = target.ref.location
    roots, unmanaged_reason = [], []
    others: dict[str, Storage] = {}
    inner = texts.get(_PATH_DIRECTORY, "").strip()
    if inner:
        if not all(map(paths.is_file_name, inner.split("/"))):
            raise UnsupportedTable(target.full_name, [f"option {_PATH_DIRECTORY}={inner}"])
        home = paths.join(location, inner)
        roots.append(home)
    for place in filter(None, map(str.strip, texts.get(_EXTERNAL_PATHS, "").split(","))):
        opened = _opened(run, target, access, place) if run.args.external_paths else None
        if opened is None:
            unmanaged_reason.append(place)
            continue
        storage, path = opened
        roots.append(paths.join(path, inner) if inner else path)
        if storage is not access.storage:
            others[path] = storage
    folders = TableFolders(
        location=location,
        partition_depth=len(schema.partition_keys),
        other_roots=tuple(roots),
        of_others=True,
    )
    # Readers find data files only below the inner folder.
    moved = replace(table, access=replace(access, ref=replace(access.ref, location=home)))
    storage = with_others(access.storage, others)
    return folders, unmanaged_reason, storage, table, moved.bucket_folder


def _newest(access: TableAccess) -> TableState:
    return access.newest_state().state


def _opened(
    run: MaintenanceRun, target: SelectedTable, access: TableAccess, place: str
) -> tuple[Storage, str] | None:
    """The store of a location and the path there; None if it cannot be opened."""
    path = _in_same_store(run, target, access, place)
    if path is not None:
        return access.storage, path
    section = run.choice.loaded.config.catalogs[target.catalog_name]
    # The table's options name the location, and any writer may set them.
    stores = target.registries.stores.limited((section.warehouse,), section.allow_schemes)
    try:
        storage, path = stores.open(place, section.options)
    except (UsageError, StorageError):
        return None
    # As the table's own: its deletions wait for their turn.
    return target.wrap_access(replace(access, storage=storage)).storage, path.rstrip("/")


def _trash(
    run: MaintenanceRun, target: SelectedTable, access: TableAccess, folders: TableFolders
) -> str | None:
    """The folder of this table in the trash. Raises `UsageError` for one that cannot be used."""
    given = run.args.trash or target.policy.foreign_files_trash
    if given is None:
        return None
    path = _in_same_store(run, target, access, given)
    key = "--trash" if run.args.trash else "foreign_files_trash"
    return trash_of(folders, target.full_name, f"{key} {given}", path)


def _in_same_store(
    run: MaintenanceRun, target: SelectedTable, access: TableAccess, place: str
) -> str | None:
    """The path of a location in the table's store, None if it is in another one."""
    try:
        found = target.registries.stores.located(place, _store_options(run, target))
    except UsageError:
        return None
    return found.path.rstrip("/") if found.spec == access.storage.spec else None


def _store_options(run: MaintenanceRun, target: SelectedTable) -> Mapping[str, str]:
    return run.choice.loaded.config.catalogs[target.catalog_name].options


_BRANCHES = "branches"


def maintain(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; returns the exit code, or raises `UsageError`."""
    works = choices(registries_of(args).maintenance(Recovery()))
    for name in args.only:
        if name not in works:
            raise unknown_choice("--only", name, list(works))
    names = [name for name, (_, is_usual) in works.items() if is_usual]
    asked = {name: works[name][0] for name in works if name in (args.only or names)}
    return _over(args, "it is maintained", partial(_of_kinds, asked), clock)


def expire(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    return _over(args, "snapshots expire", partial(of_choice, ExpireSnapshots.choice))


def orphans(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; returns the exit code, or raises `UsageError`."""
    if not args.foreign and (args.older_than or args.trash or args.external_paths):
        raise UsageError("--older-than, --trash and --external-paths need --foreign")
    work = foreign_sweep if args.foreign else partial(of_choice, SweepOrphans.choice)
    return _over(args, "left-over files are looked for", work, clock)


def _over(args: argparse.Namespace, note: str, work: Work, clock: Clock | None = None) -> int:
    check_amounts(args)
    choice = choose(args)
    recovery = choice.loaded.config.recovery
    if "orphan_grace" in args:
        grace_ms = amount_of(args, "orphan_grace", recovery.orphan_grace_ms)
        recovery = recovery.model_copy(update={"orphan_grace_ms": grace_ms})
    with stop_on_signals() as stop:
        own = clock or SystemClock(choice.zone)
        run = MaintenanceRun(
            args=args,
            choice=choice,
            clock=own,
            stop=stop,
            kinds=registries_of(args).maintenance(recovery),
            grace_ms=recovery.orphan_grace_ms,
        )
        note_if_unmanaged(args, choice, note)
        pace = DeleteRateLimiter(own, choice.loaded.config.limits.max_deletes_per_second)

        def named(target: SelectedTable) -> Result:
            result = work(run, replace(target, wrap_access=methodcaller("rate_limited", pace)))
            found = {"table": target.full_name, "dry_run": args.dry_run, **result.found}
            return Result(lines=result.lines, found=found, code=result.code)

        return over_tables(args, choice, named, passes_over=True, stop=stop)


def choices(kinds: Sequence[AnyKind]) -> Mapping[str, tuple[Work, bool]]:
    """The kinds that users can choose, in running order, and whether each runs by default.

    These are the offered kinds; snapshots of branches, which follow the table's; and files of other
    programs, which the command handles itself.
    """
    works: dict[str, tuple[Work, bool]] = {}
    for name, each in offered(kinds).items():
        works[name] = partial(of_choice, name), not any(kind.explicit_only for kind in each)
        if name == ExpireChangelogs.choice and ExpireSnapshots.choice in works:
            works[_BRANCHES] = _of_branches, True
    works[SweepForeign.name] = ruled_sweep, False
    # Kinds that must be named run last: the kinds before them may leave files over.
    return dict(sorted(works.items(), key=lambda work: not work[1][1]))


def _of_kinds(works: Mapping[str, Work], run: MaintenanceRun, target: SelectedTable) -> Result:
    """Runs all of these kinds. After a failure the next kind runs."""
    shown = run.choice.shown_name(target)
    turns = ((name, f"{shown}: {name}", partial(work, run, target)) for name, work in works.items())
    lines, kinds, code = in_turn(run, turns, raises_refusal=True)
    return Result(lines=lines, found={"kinds": kinds}, code=code)


def _of_branches(run: MaintenanceRun, target: SelectedTable) -> Result:
    """Expires the snapshots of all branches of one table but main; none of one that is a branch.

    Uses each branch's own options. The result has the findings of `expire` by branch. A branch that
    fails, for example without a schema, is reported and loses nothing; the next branch follows.
    Branches that the selection names themselves are skipped here.
    """
    works = (
        (
            branch.ref.branch,
            run.choice.shown_name(branch),
            partial(of_choice, ExpireSnapshots.choice, run, branch),
        )
        for branch in _branches(run, target)
    )
    lines, found, code = in_turn(run, works)
    return Result(lines=lines, found={_BRANCHES: found}, code=code)


def _branches(run: MaintenanceRun, target: SelectedTable) -> Iterator[SelectedTable]:
    ref = target.ref
    if ref.branch != paths.MAIN_BRANCH:
        return
    chosen = {each.name for each in run.choice.targets}
    for name in branch_names(target.open().storage, ref.location):
        branch = replace(target, ref=branch_of(ref, name))
        if branch.name not in chosen:
            yield replace(branch, policy=policy_for(run.choice.loaded.config, branch.name))
