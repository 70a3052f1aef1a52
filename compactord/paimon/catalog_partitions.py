"""What a catalog may keep of a table's partitions beside their files: entries and events.

A partition is named by its spec: the texts of its values by column, not escaped, in the order of
the partition columns (`paths.partition_spec`). Sources: table/{PartitionModification,
PartitionMarkDone}.java. All methods raise what the catalog's calls raise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

PartitionSpec: TypeAlias = Mapping[str, str]


class PartitionEntries(Protocol):
    """A catalog that lists the partitions of a table by itself, as its writers tell it."""

    def add(self, specs: Sequence[PartitionSpec]) -> None:
        """Entries that are there already stay as they are."""

    def drop(self, specs: Sequence[PartitionSpec]) -> None:
        """Entries alone, never files; what is not there is passed over."""

    def added_ms(self, spec: PartitionSpec) -> int | None:
        """When the entry was made, in ms since the epoch by the catalog's clock; None: no entry."""


class PartitionEvents(Protocol):
    """A catalog that is told that a partition is done, and knows of each only whether it was."""

    def mark_done(self, spec: PartitionSpec) -> None:
        """Sent once: where the answer is lost, it may have had its effect."""

    def are_done(self, specs: Sequence[PartitionSpec]) -> Sequence[bool]:
        """Whether each was marked, ever."""


def done_spec(spec: PartitionSpec) -> PartitionSpec:
    """The entry that says that a partition is done (partition/actions/AddDonePartitionAction.java):
    its last value ends with `.done`.
    """
    *_, (name, text) = spec.items()
    return {**spec, name: f"{text}.done"}
