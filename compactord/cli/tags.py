"""Tags are created as the tables' options say, and expire as their files say, as by the service."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from compactord import ids
from compactord.amounts import count_text
from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import MaintenanceRun, looked_back, off_by_rule
from compactord.maintenance.kind import because
from compactord.maintenance.planned_deletion import TableChanged
from compactord.maintenance.tag_creation import TagProgress
from compactord.maintenance.tag_deletion import DueTag, TagDeletion
from compactord.maintenance.tag_expiry import ExpiredTags, ExpireTags, due_tags, expire_tags
from compactord.maintenance.tag_writing import CreatedTags, CreateTags, create_tags, tags_due
from compactord.table.opening import OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What was done, or would be; `files` are those that would go."""

    created: CreatedTags
    expired: ExpiredTags
    files: list[str] | None = None


def tags_upkeep(run: MaintenanceRun, target: Target) -> Result:
    """Creates the tags of one table that are due, and expires those whose time has passed.

    Its result has the fields of `ExpiredTags`, also of those that are too many after others were
    created. In a dry run `files` has what would go if each tag expired alone.
    """
    no_creation = off_by_rule(run, target, CreateTags.rule)
    no_expiry = off_by_rule(run, target, ExpireTags.rule)
    if no_creation is None or no_expiry is None:
        followed = looked_back(target, run.clock, run.stop)
        table, why_keep = followed.table, followed.why_keep()
        options = table.options.maintenance
        if options.tag_creation is None:
            no_creation = options.tag_creation_refusal
        else:
            no_creation = no_creation or why_keep
        no_expiry = no_expiry or why_keep
        if not options.expires_tags:
            no_expiry = no_expiry or "the table's options say so"
        do = _preview if run.is_dry else _carry_out
        done = do(run, table, may_create=no_creation is None, may_expire=no_expiry is None)
    else:
        done = _Done(created=CreatedTags(), expired=ExpiredTags())
    if no_creation is not None:
        done = replace(done, created=CreatedTags(why_not=no_creation))
    if no_expiry is not None:
        done = replace(done, expired=replace(done.expired, why_not=no_expiry))
    return _result(run, target, done)


def _carry_out(
    run: MaintenanceRun, table: OpenTable, *, may_create: bool, may_expire: bool
) -> _Done:
    created, expired, zone = CreatedTags(), ExpiredTags(), run.clock.time_zone
    if may_create:
        now_ms, owner = run.clock.now_ms(), ids.this_process()
        created = create_tags(table, TagProgress(), owner=owner, now_ms=now_ms, zone=zone)
    if may_expire:
        expired = expire_tags(table, run.clock.now_ms(), zone)
    surplus = created.surplus
    return _Done(
        created=created,
        expired=ExpiredTags(
            tags=(*surplus.tags, *expired.tags),
            data_files=surplus.data_files + expired.data_files,
            metadata=surplus.metadata + expired.metadata,
            why_not=surplus.why_not or expired.why_not,
        ),
    )


def _preview(run: MaintenanceRun, table: OpenTable, *, may_create: bool, may_expire: bool) -> _Done:
    now_ms, zone = run.clock.now_ms(), run.clock.time_zone
    created: dict[str, int] = {}
    going: dict[str, DueTag] = {}
    if may_create:
        due = tags_due(table, TagProgress(), now_ms=now_ms, zone=zone)
        created = {each.name: each.snapshot.id for each in due.tags}
        going = {each.name: each for each in due.surplus}
    if may_expire:
        going |= {each.name: each for each in due_tags(table, now_ms, zone)}
    names: list[str] = []
    data_files: list[str] = []
    metadata: list[str] = []
    why_not = None
    try:
        for tag in going.values():
            plan = TagDeletion(table, tag, now_ms).plan
            names.append(tag.name)
            data_files += plan.data_files
            metadata += [tag.path, *plan.metadata]
    except TableChanged as kept:
        why_not = str(kept)
    figures = ExpiredTags(
        tags=names,
        data_files=len(data_files),
        metadata=len(metadata) - len(names),
        why_not=why_not,
    )
    return _Done(created=CreatedTags(tags=created), expired=figures, files=[*data_files, *metadata])


def _result(run: MaintenanceRun, target: Target, done: _Done) -> Result:
    name = run.choice.shown_name(target)
    created, expired = done.created, done.expired
    lines = []
    if created.tags:
        verb = "would create" if run.is_dry else "created"
        count = count_text(len(created.tags), "tag")
        lines.append(f"{name}: {verb} {count} ({', '.join(created.tags)})")
    if created.why_not is not None:
        lines.append(f"{name}: no {'more ' if created.tags else ''}tags created")
    lines += because(created.why_not, has_some=False)
    verb = run.expired
    if expired.tags:
        counts = (
            count_text(expired.data_files, "data file"),
            count_text(expired.metadata, "other file"),
        )
        lines.append(
            f"{name}: {verb} {count_text(len(expired.tags), 'tag')} ({', '.join(expired.tags)}): "
            f"{', '.join(counts)}"
        )
    else:
        lines.append(f"{name}: no tag {verb}")
    lines += because(expired.why_not, has_some=expired.tags)
    found: dict[str, Any] = {
        "created": dict(created.tags),
        "created_why_not": created.why_not,
        **asdict(expired),
    }
    if done.files is not None:
        found["files"] = done.files
    return Result(lines=lines, found=found)
