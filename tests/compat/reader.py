"""Reads tables with pypaimon and prints them as JSON; runs in a Python that has pypaimon.

    python reader.py WAREHOUSE TABLE...

One line per table: {"rows": [[...], ...]}. Values take the form that `tests.oracle.judge`
describes.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import sys
from typing import Any

import pypaimon

_UTC = datetime.timezone.utc
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def value_json(value: Any) -> Any:
    """A value as Arrow gives it, in the judge's form."""
    match value:
        case bytes():
            return f"x:{value.hex()}"
        case decimal.Decimal():
            return f"{value:f}"
        case datetime.datetime():
            micros = (value.replace(tzinfo=_UTC) - _EPOCH) // _MICROSECOND
            return f"{micros // 1000}:{micros % 1000 * 1000}"
        case datetime.date():
            return (value - _EPOCH.date()).days
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case float() if value == 0 and math.copysign(1, value) < 0:
            return "-0.0"
        case list() | tuple():
            return [value_json(item) for item in value]
        case dict():
            return [value_json(item) for item in value.values()]
        case _:
            return value


def read_rows(warehouse: str, name: str) -> list[list[Any]]:
    """All rows of a batch read."""
    table = pypaimon.CatalogFactory.create({"warehouse": warehouse}).get_table(name)
    builder = table.new_read_builder()
    splits = builder.new_scan().plan().splits()
    rows = builder.new_read().to_arrow(splits)
    columns = [[value_json(value) for value in column.to_pylist()] for column in rows.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def main() -> None:
    warehouse, *names = sys.argv[1:]
    for name in names:
        print(json.dumps({"rows": read_rows(warehouse, name)}))


if __name__ == "__main__":
    main()
