"""Protocols of catalogs that keep partition entries and events.

A partition is named by its spec: the texts of its values by column, not escaped, in the order of
the partition columns (`paths.partition_spec`). All methods raise the errors of the catalog's
requests. A module of its own: catalogs implement the protocols and options refer to them.
Sources: table/{PartitionModification,PartitionMarkDone}.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

PartitionSpec: TypeAlias = Mapping[str, str]


class PartitionEntries(Protocol):
    """A catalog that lists the partitions of a table from entries that writers add."""

    def add(self, specs: Sequence[PartitionSpec]) -> None:
        """Existing entries stay as they are."""

    def drop(self, specs: Sequence[PartitionSpec]) -> None:
        """Drops entries only, never files. Missing entries are ignored."""

    def added_ms(self, spec: PartitionSpec) -> int | None:
        """Creation time of the entry in ms since the epoch, by the catalog's clock, or None without
        an entry.
        """


class PartitionEvents(Protocol):
    """A catalog that receives an event when a partition is done, and records whether it got one."""

    def mark_done(self, spec: PartitionSpec) -> None:
        """Sends the event once. If the response is lost, it may have been applied."""

    def are_done(self, specs: Sequence[PartitionSpec]) -> Sequence[bool]:
        """Whether each partition was ever marked."""


def done_spec(spec: PartitionSpec) -> PartitionSpec:
    """The entry that marks a partition as done: its last value ends with `.done`.

    Source: partition/actions/AddDonePartitionAction.java.
    """
    *_, (name, text) = spec.items()
    return {**spec, name: f"{text}.done"}
