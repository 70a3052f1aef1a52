"""A pass that only marks rows of other files as deleted needs no more than the keys of its own."""

from __future__ import annotations

from dataclasses import replace

from compactord.kernels.functions.registry import LAST_RECORD
from compactord.model import MergeSpec, Subcompaction
from compactord.paimon.merge_rules import NO_RULES


def with_keys_alone(whole: Subcompaction, source: MergeSpec) -> Subcompaction:
    """The same marks, from as few columns as possible; nothing is to be written."""
    return replace(
        whole,
        fields=tuple(field for field in whole.fields if field.name in source.key_columns),
        source=replace(
            source,
            merge_engine=LAST_RECORD,
            rules=NO_RULES,
            sequence_fields=(),
            finds_values=False,
        ),
    )
