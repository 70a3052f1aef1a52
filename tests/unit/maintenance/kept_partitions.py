"""A catalog that keeps entries and events of partitions in memory, and may fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from compactord.errors import CatalogUnavailable
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents, PartitionSpec


def text(spec: PartitionSpec) -> str:
    return "/".join(f"{name}={value}" for name, value in spec.items())


@dataclass(slots=True)
class KeptPartitions(PartitionEntries, PartitionEvents):
    """`made_ms` are the entries, by the catalog's clock `now_ms`, `marked` the events.

    Call `fails_at` of those that change something fails (counting from 1), before or after its
    `effect`; `before` is called before each of them.
    """

    now_ms: int = 0
    made_ms: dict[str, int] = field(default_factory=dict)
    marked: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fails_at: int = 0
    after_effect: bool = False
    before: Callable[[], None] = lambda: None

    def add(self, specs: Sequence[PartitionSpec]) -> None:
        for spec in specs:
            self._change("add", spec, lambda one: self.made_ms.setdefault(one, self.now_ms))

    def drop(self, specs: Sequence[PartitionSpec]) -> None:
        for spec in specs:
            self._change("drop", spec, lambda one: self.made_ms.pop(one, None))

    def added_ms(self, spec: PartitionSpec) -> int | None:
        return self.made_ms.get(text(spec))

    def mark_done(self, spec: PartitionSpec) -> None:
        self._change("mark", spec, self.marked.append)

    def are_done(self, specs: Sequence[PartitionSpec]) -> Sequence[bool]:
        self.calls += [f"asks {text(spec)}" for spec in specs]
        return [text(spec) in self.marked for spec in specs]

    @property
    def changes(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("asks")]

    def _change(self, name: str, spec: PartitionSpec, effect: Callable[[str], object]) -> None:
        self.before()
        self.calls.append(f"{name} {text(spec)}")
        fails = len(self.changes) == self.fails_at
        if fails and not self.after_effect:
            raise CatalogUnavailable("thrift://h:1", "out of order")
        effect(text(spec))
        if fails:
            raise CatalogUnavailable("thrift://h:1", "out of order")
