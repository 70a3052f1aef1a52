"""Buckets that were compacted before their table looked up what keys have above level 0.

A key then may have records on several levels above 0: parts of its state, or records of which the
lowest one counts and the others are not marked as deleted. Readers who merge no levels see each.
Before anything else is compacted, one merge of all levels above 0 makes one record of them.
What is on the highest of these levels hides nothing, so files there need no look.

A merge of parts has to take in every record of a key. One of whole states has to take the one of
the lowest level, which has the others in it; where a state is one of the records, both come to the
same. So of whole states beside parts only that can be merged. In tables whose rows are marked, a
delete that came while others were on two levels has marked one of them and is gone: what readers
see again since then stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from compactord.errors import FormatError
from compactord.model import SortedRun
from compactord.paimon.data_file import DataFile
from compactord.paimon.options.table_options import CompactionOptions


def holds_parts(
    runs: Sequence[SortedRun], partial_schemas: Set[int], *, is_one_record: bool
) -> bool:
    """Whether states of keys are spread over levels, by files that have one of these schemas.

    `is_one_record`: the state of a key is one of its records. Raises `FormatError` where it is not,
    and whole states lie beside parts: nobody knows which parts they have in them.
    """
    middle = [file for run in runs if 0 < run.level < runs[-1].level for file in run.files]
    parts = [file for file in middle if file.schema_id in partial_schemas]
    if parts and len(parts) < len(middle) and not is_one_record:
        raise FormatError(
            parts[0].file_name,
            "it was compacted while the table did not look keys up, others of its bucket while it "
            "did: which rows they hold together cannot be told",
        )
    return bool(parts)


def is_from_before(files: Iterable[DataFile], schemas: Set[int]) -> bool:
    """Whether levels above 0 are merged into one first: some file of these schemas hides others."""
    above = [file for file in files if file.level > 0]
    highest = max((file.level for file in above), default=0)
    return any(file.level < highest and file.schema_id in schemas for file in above)


def begins_text(options: CompactionOptions) -> str:
    """What levels of before are merged for, of a table."""
    does = "looks up what keys have above"
    if options.lookup is not None and options.lookup.marks:
        does = "marks rows that others replace (deletion-vectors.enabled)"
    return f"{does}; levels above 0 were compacted before it did and are merged into one first"
