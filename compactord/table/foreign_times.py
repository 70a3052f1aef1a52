"""A note on times in files of other writers, which Java 2.0.0 may read wrongly."""

from __future__ import annotations

from collections.abc import Sequence

from compactord.paimon.types import MOMENTS, TICKS_PRECISION_MAX, AtomicType
from compactord.plan.shape import BucketShape
from compactord.table.opening import OpenTable
from compactord.text import count_text


def foreign_note(table: OpenTable, shapes: Sequence[BucketShape]) -> str | None:
    """That Java may read times of other writers' files wrongly, where the table has some."""
    count = sum(shape.foreign_file_count for shape in shapes)
    names = [
        field.name
        for field in table.schema.fields
        if isinstance(field.type, AtomicType)
        and field.type.root in MOMENTS
        and (field.type.precision or 0) <= TICKS_PRECISION_MAX
    ]
    if not count or not names:
        return None
    return (
        f"{count_text(count, 'file')} with names of other writers: where one has times in another "
        f"unit than the table (columns {', '.join(names)}), Java 2.0.0 may read them wrongly by a "
        "factor of 1,000, and compactord reads them rightly; inspect reads no footers to find out"
    )
