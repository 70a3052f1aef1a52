"""Tags expire as their files say, as the service expires them."""

from __future__ import annotations

from dataclasses import asdict

from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import MaintenanceRun, Work, looked_back, off_by_rule
from compactord.maintenance.tag_deletion import TagDeletion, TagKept
from compactord.maintenance.tag_expiry import ExpiredTags, due_tags, expire_tags
from compactord.table.opening import OpenTable
from compactord.table.report import count_text


def tag_expiry(run: MaintenanceRun) -> Work:
    """Expires the tags of one table. Its result has the fields of `ExpiredTags`.

    In a dry run `files` has what would go if each tag expired alone.
    """

    def work(target: Target) -> Result:
        why_not = off_by_rule(run, target, "expire_tags")
        if why_not is not None:
            return _result(run, target, ExpiredTags(why_not=why_not))
        followed = looked_back(target, run.clock, run.stop)
        table, why = followed.table, followed.why_keep()
        if why is None and not table.options.maintenance.expires_tags:
            why = "the table's options say so"
        if why is not None:
            return _result(run, target, ExpiredTags(why_not=why))
        if run.is_dry:
            return _previewed(run, target, table)
        done = expire_tags(table, run.clock.now_ms(), run.clock.time_zone)
        return _result(run, target, done)

    return work


def _previewed(run: MaintenanceRun, target: Target, table: OpenTable) -> Result:
    now_ms = run.clock.now_ms()
    names: list[str] = []
    data_files: list[str] = []
    metadata: list[str] = []
    why_not = None
    try:
        for tag in due_tags(table, now_ms, run.clock.time_zone):
            plan = TagDeletion(table, tag, now_ms).plan
            names.append(tag.name)
            data_files += plan.data_files
            metadata += [tag.path, *plan.metadata]
    except TagKept as kept:
        why_not = str(kept)
    figures = ExpiredTags(
        tags=names,
        data_files=len(data_files),
        metadata=len(metadata) - len(names),
        why_not=why_not,
    )
    return _result(run, target, figures, [*data_files, *metadata])


def _result(
    run: MaintenanceRun, target: Target, done: ExpiredTags, files: list[str] | None = None
) -> Result:
    name = run.choice.shown_name(target)
    verb = "would expire" if run.is_dry else "expired"
    if done.tags:
        counts = count_text(done.data_files, "data file"), count_text(done.metadata, "other file")
        lines = [
            f"{name}: {verb} {count_text(len(done.tags), 'tag')} ({', '.join(done.tags)}): "
            f"{', '.join(counts)}"
        ]
    else:
        lines = [f"{name}: no tag {verb}"]
    if done.why_not is not None:
        lines.append(f"  {'' if not done.tags else 'no more '}because {done.why_not}")
    more = {} if files is None else {"files": files}
    return Result(lines=lines, found={**asdict(done), **more})
