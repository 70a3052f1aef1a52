"""Writes the metrics of each table, metric by metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compactord.service.exposition import (
    Family,
    FamilyKind,
    Sample,
    labels_of,
    write_family,
    write_summary,
)
from compactord.service.table_catalogue import (
    TABLE_LABELS,
    Value,
    Values,
    is_polled,
    table_catalogue,
)
from compactord.service.view import TableView

_DURATION = Family(
    name="compactord_table_compaction_duration_seconds",
    kind=FamilyKind.SUMMARY,
    labels=TABLE_LABELS,
    meaning="Time from start to closed outputs of compactions.",
)


class TableMetrics:
    """Writes the metrics of tables."""

    def __init__(self) -> None:
        self._metrics = table_catalogue()

    @property
    def families(self) -> tuple[Family, ...]:
        """All that may be written."""
        return (*(metric.family for metric in self._metrics), _DURATION)

    def write(self, tables: Sequence[TableView], *, is_openmetrics: bool) -> str:
        named = [(table, labels_of(table.name._asdict())) for table in tables]
        concerned = {
            concerns: [pair for pair in named if concerns(pair[0])]
            for concerns in {metric.concerns for metric in self._metrics}
        }
        texts = [
            write_family(
                metric.family,
                _samples(metric, concerned[metric.concerns]),
                is_openmetrics=is_openmetrics,
            )
            for metric in self._metrics
        ]
        durations = (
            (name, table.counters.compaction_seconds_sum, table.counters.compaction_seconds_count)
            for table, name in concerned[is_polled]
        )
        texts.append(write_summary(_DURATION, durations, is_openmetrics=is_openmetrics))
        return "".join(texts)


def _samples(metric: Value | Values, named: Sequence[tuple[TableView, str]]) -> Iterable[Sample]:
    match metric:
        case Value(read=read):
            return [(name, read(table)) for table, name in named]
        case Values(read=read_all):
            return [
                (f"{name},{labels}", value)
                for table, name in named
                for labels, value in read_all(table)
            ]
