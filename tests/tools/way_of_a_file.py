"""Lists the stops of a data file between a poll and the snapshot.

A stop is a function of ours outside `storage` that another module calls with the file's record
(`DataFile`, `ManifestEntry`, `InputFile`) or with an immutable value that holds it: a plan, a
decision, a worker's share, a change. Methods of such a value are no stops, nor are owners of the
state of a whole table. Run `python -m tests.tools.way_of_a_file`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import compactord
from compactord.model import InputFile
from compactord.paimon.data_file import DataFile
from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from tests.builders import compact, fill_keyed, keyed_table, writer
from tests.storages import MemoryStorage

_ROOT = Path(compactord.__file__).parent
_DEPTH_MAX = 12
# Their values hold every file of a table.
_WHOLE_TABLES = ("compactord.state.table_state", "compactord.state.live_files")
# Functions that Python makes of a part of another, or of a class's fields.
_MADE = ("<", "__init__", "__post_init__", "__eq__", "__hash__", "__setstate__", "__getstate__")


def stops(storage: Storage, table: TableRef, file_name: str) -> tuple[str, ...]:
    """`module.function` of each stop of a live file in one compaction, by first calls."""
    found: dict[str, None] = {}

    def traced(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith(_MADE):
            return
        module = _module_of(code)
        if module is None or module.startswith("storage"):
            return
        caller = frame.f_back
        while caller is not None and caller.f_code.co_name.startswith("<"):
            caller = caller.f_back
        if caller is not None and _module_of(caller.f_code) == module:
            return
        stop = f"{module}.{code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}"
        if stop not in found and any(_holds(each, file_name) for each in _arguments(frame)):
            found[stop] = None

    sys.setprofile(traced)
    try:
        compact(storage, table)
    finally:
        sys.setprofile(None)
    return tuple(found)


def _arguments(frame: FrameType) -> Iterator[object]:
    """The arguments of the function, except the value whose method it is."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    for name in code.co_varnames[:count]:
        if name != "self" and name in frame.f_locals:
            yield frame.f_locals[name]


def _module_of(code: CodeType) -> str | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(_ROOT):
        return None
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts)


def _holds(value: object, file_name: str, depth: int = 0) -> bool:
    if depth > _DEPTH_MAX:
        return False
    match value:
        case DataFile():
            return value.file_name == file_name
        case InputFile():
            return value.path.endswith(file_name)
        case dict():
            held = iter(value.values())
        case tuple() | list():
            held = iter(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if not value.__dataclass_params__.frozen or type(value).__module__ in _WHOLE_TABLES:  # type: ignore[attr-defined]
                return False
            held = (getattr(value, each.name, None) for each in dataclasses.fields(value))
        case _:
            return False
    return any(_holds(each, file_name, depth + 1) for each in held)


def stops_of_one() -> tuple[str, ...]:
    """The stops of a file of a small table that is made for it."""
    storage = MemoryStorage()
    table = keyed_table(storage, "/warehouse/db.db/t", buckets=1)
    fill_keyed(writer(storage, table), commits=6)
    state = load_state(storage, table)
    (bucket,) = state.files.bucket_ids()
    return stops(storage, table, state.files.files_in(bucket)[0].file_name)


def main() -> int:
    found = stops_of_one()
    for number, stop in enumerate(found, 1):
        print(f"{number:3}  {stop}")
    modules = {stop.rpartition(".")[0] for stop in found}
    print(f"{len(found)} stops in {len(modules)} modules")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
