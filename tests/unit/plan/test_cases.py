"""Readable tables of planning decisions: `cases/*.txt`.

A case is a line `= name`, a command with options, one line of files (`-` for none), `----` and the
expected answer. Files are named a, b, c … in their order and written `level:size` with optional
parts: `@min-max` the key range, `!n` the deletes among its rows (`!?` unknown), `~n` the age in
minutes, `*` made by a compaction, `^xn` a deletion vector in the index file x for n (`?`: unknown
how many) of its 100 rows, `'` of a schema without deletion vectors. Level-0 files are listed newest
first. Sizes are bytes; on append tables they are MB, files have no level and are listed in arrival
order. With vectors=1 what is found above is marked, with vectors=2 it is merged, too.

COMPACTORD_REWRITE_CASES=1 writes the answers as they now are; review the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactord.model import PickRule, Rewrite, Section, TableKind, Upgrade
from compactord.paimon.data_file import DataFile, FileSource
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.options.table_options import LookupOptions
from compactord.plan.picks import bucket_runs, level_count
from compactord.plan.sections import interval_partition
from compactord.plan.table import Strategy, plan_bucket
from compactord.plan.triggers import pick_universal
from tests.unit.plan.builders import (
    MARKS,
    MB,
    NOW_MS,
    append_options,
    bucket_of,
    compaction_options,
    data_file,
    key_of,
    names,
    plan_request,
)

# A schema without deletion vectors.
UNMARKED = 0
CASES = Path(__file__).parent / "cases"
FILE = re.compile(
    r"((?P<level>\d+):)?(?P<size>\d+)(@(?P<min>\d+)-(?P<max>\d+))?(!(?P<deletes>\d+|\?))?"
    r"(~(?P<age>\d+))?(?P<compacted>\*)?(\^(?P<index>[a-z])(?P<vector>\d+|\?))?(?P<old>')?"
)
OPTIONS = {
    "levels": "num_levels",
    "trigger": "compaction_trigger",
    "amp": "max_size_amplification_percent",
    "ratio": "size_ratio_percent",
    "offpeak-ratio": "offpeak_ratio_percent",
    "offpeak-start": "offpeak_start_hour",
    "offpeak-end": "offpeak_end_hour",
    "force-level-0": "force_up_level_0",
    "interval": "optimization_interval_ms",
    "total": "total_size_threshold",
    "incremental": "incremental_size_threshold",
    "force-rewrite": "force_rewrite_all_files",
    "target": "target_file_size",
    "min-files": "min_file_num",
    "open-cost": "open_file_cost",
}


def parse_file(text: str, position: int, count: int, unit: int) -> DataFile:
    found = FILE.fullmatch(text)
    assert found, text
    newest_first = found["level"] is not None
    sequence = count - position if newest_first else position
    span = int(found["min"] or position), int(found["max"] or position)
    return data_file(
        chr(ord("a") + position),
        level=int(found["level"] or 0),
        size=int(found["size"]) * unit,
        keys=span,
        sequences=(sequence, sequence),
        rows=100,
        deletes=None if found["deletes"] == "?" else int(found["deletes"] or 0),
        created_ms=NOW_MS - int(found["age"] or 0) * 60_000,
        source=FileSource.COMPACT if found["compacted"] else FileSource.APPEND,
        schema_id=UNMARKED if found["old"] else 1,
    )


def parse_vectors(texts: list[str]) -> dict[str, VectorRef]:
    """The deletion vectors of the files that have any."""
    found = {
        chr(ord("a") + position): re.search(r"\^([a-z])(\d+|\?)", text)
        for position, text in enumerate(texts)
    }
    return {
        name: VectorRef(
            path=match[1],
            offset=1,
            length=9,
            cardinality=None if match[2] == "?" else int(match[2]),
        )
        for name, match in found.items()
        if match
    }


def lookup_of(vectors: int) -> LookupOptions | None:
    if not vectors:
        return None
    return replace(
        MARKS, upgrades=vectors == 1, is_one_record=vectors == 1, finds_values=vectors == 2
    )


def show_sections(sections: tuple[Section, ...]) -> str:
    return " ; ".join(
        " | ".join(" ".join(names(run.files)) for run in section.runs) for section in sections
    )


def pick_case(rule: PickRule, files: list[DataFile], settings: dict[str, Any]) -> str:
    hour = settings.pop("hour", 12)
    last_full = settings.pop("last-full", None)
    options = compaction_options(**{OPTIONS[name]: value for name, value in settings.items()})
    runs = bucket_runs(files, key_of)
    assert [file for run in runs for file in run.files] == files, "listed in run order"
    pick = pick_universal(
        runs,
        level_count(max((file.level for file in files), default=-1), options.num_levels),
        options,
        rule=rule,
        now_ms=0,
        last_full_ms=None if last_full is None else -last_full,
        hour_of_day=hour,
    )
    if pick is None:
        return "none"
    return f"{' '.join(names(pick.files))} -> L{pick.output_level} {pick.reason.value}"


def plan_case(strategy: Strategy, files: list[DataFile], settings: dict[str, Any]) -> str:
    vectors, lookup = settings.pop("deleted", {}), lookup_of(settings.pop("vectors", 0))
    options = compaction_options(
        **{OPTIONS[name]: value for name, value in settings.items()},
        lookup=lookup,
        force_up_level_0=lookup is not None,
    )
    request = plan_request(
        strategy=strategy,
        options=options,
        vectors_of=lambda bucket: vectors,
        unmarked_schemas={UNMARKED} if lookup else frozenset(),
    )
    plan = plan_bucket(bucket_of(files), request)
    if not plan.compactions:
        return "none"
    (compaction,) = plan.compactions
    head = f"L{compaction.output_level} {compaction.reason.value}"
    lines = [head + (" drop-deletes" if compaction.drop_deletes else "")]
    for action in compaction.actions:
        match action:
            case Rewrite(sections=sections):
                lines.append(f"rewrite {show_sections(sections)}{show_above(action)}")
            case Upgrade(file=file):
                lines.append(f"upgrade {file.file_name}{show_above(action)}")
    return "\n".join(lines)


def show_above(action: Rewrite | Upgrade) -> str:
    found = " ".join(file.file_name for run in action.above for file in run.files)
    if not action.marks or not found:
        return ""
    return f", finds and marks in {found}" if action.finds_values else f", marks in {found}"


def append_case(
    kind: TableKind, strategy: Strategy, files: list[DataFile], settings: dict[str, Any]
) -> str:
    vectors = settings.pop("deleted", {})
    options = append_options(
        **{
            OPTIONS[name]: value * (MB if name in ("target", "open-cost") else 1)
            for name, value in settings.items()
        }
    )
    request = plan_request(
        kind, strategy=strategy, options=options, vectors_of=lambda bucket: vectors
    )
    plan = plan_bucket(bucket_of(files), request)
    lines = [f"{' '.join(names(c.inputs))} {c.reason.value}" for c in plan.compactions]
    return "\n".join([*lines, *plan.notes]) or "none"


def sections_case(files: list[DataFile], settings: dict[str, Any]) -> str:
    assert not settings
    return show_sections(interval_partition(files, key_of))


COMMANDS: dict[str, tuple[int, Callable[[list[DataFile], dict[str, Any]], str]]] = {
    "pick": (1, lambda *case: pick_case(PickRule.RELEASE_2_0, *case)),
    "pick-2.1": (1, lambda *case: pick_case(PickRule.RELEASE_2_1, *case)),
    "minor": (1, lambda *case: plan_case(Strategy.MINOR, *case)),
    "full": (1, lambda *case: plan_case(Strategy.FULL, *case)),
    "sections": (1, sections_case),
    "unaware-minor": (
        MB,
        lambda *case: append_case(TableKind.APPEND_UNAWARE, Strategy.MINOR, *case),
    ),
    "unaware-full": (
        MB,
        lambda *case: append_case(TableKind.APPEND_UNAWARE, Strategy.FULL, *case),
    ),
    "bucketed-minor": (
        MB,
        lambda *case: append_case(TableKind.APPEND_BUCKETED, Strategy.MINOR, *case),
    ),
    "bucketed-full": (
        MB,
        lambda *case: append_case(TableKind.APPEND_BUCKETED, Strategy.FULL, *case),
    ),
}


def parse_question(
    command_line: str, files_line: str
) -> tuple[str, list[DataFile], dict[str, Any]]:
    command, *settings = command_line.split()
    unit, _ = COMMANDS[command]
    texts = [] if files_line == "-" else files_line.split()
    files = [parse_file(text, at, len(texts), unit) for at, text in enumerate(texts)]
    pairs = dict(setting.split("=") for setting in settings)
    return command, files, {name: int(value) for name, value in pairs.items()}


def parse_block(block: str) -> tuple[str, str, str, str]:
    """The question as it is written, its two lines, and the expected answer."""
    question, _, expected = block.partition("\n----\n")
    _, command_line, files_line = [
        line for line in question.splitlines() if not line.startswith("#")
    ]
    return question, command_line, files_line, expected.rstrip("\n")


def cases() -> Iterator[Any]:
    for path in sorted(CASES.glob("*.txt")):
        for block in path.read_text().split("\n\n"):
            if "----" in block:
                title = next(line for line in block.splitlines() if line.startswith("= "))
                yield pytest.param(path, block, id=f"{path.stem}: {title[2:]}")


@pytest.mark.parametrize(("path", "block"), list(cases()))
def test_case(path: Path, block: str) -> None:
    question, command_line, files_line, expected = parse_block(block)
    command, files, settings = parse_question(command_line, files_line)
    if vectors := parse_vectors(files_line.split()):
        settings["deleted"] = vectors
    actual = COMMANDS[command][1](files, settings)
    if os.environ.get("COMPACTORD_REWRITE_CASES"):
        whole = path.read_text()
        path.write_text(whole.replace(block.rstrip("\n"), f"{question}\n----\n{actual}"))
        return
    assert actual == expected


def test_every_case_file_is_read() -> None:
    found = [parameter.id for parameter in cases()]
    assert len(found) == len(set(found)) >= 50
