"""The used calls of a Hive metastore, in Thrift's encoding.

Field numbers: hive_metastore.thrift (Apache Hive 2.3 to 4). Only a small part is
defined here: Thrift skips unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thrift.Thrift import TType

EXCLUSIVE, TABLE_LEVEL = 3, 2
ACQUIRED, WAITING = 1, 2
# Option for the number of tables in one request.
BATCH, BATCH_MAX = "hive.metastore.batch.retrieve.max", 1_000
# Event that marks a partition as done (`PartitionEventType.LOAD_DONE`).
LOAD_DONE = 1

_TEXT, _NUMBER, _ENUM = (TType.STRING, "UTF8"), (TType.I64, None), (TType.I32, None)
_FLAG = (TType.BOOL, None)
_TEXTS = (TType.LIST, (TType.STRING, "UTF8", False))
_TEXTS_BY_TEXT = (TType.MAP, (TType.STRING, "UTF8", TType.STRING, "UTF8", False))

# Fields read of every descriptor and of every table.
_PLACE = ((2, "location", _TEXT), (3, "input", _TEXT), (4, "output", _TEXT))
_TABLE = (
    *((1, "name", _TEXT), (2, "database", _TEXT), (4, "created_s", _ENUM)),
    (9, "parameters", _TEXTS_BY_TEXT),
)


def _spec(*fields: tuple[int, str, tuple[int, Any]]) -> tuple[Any, ...]:
    """A struct's definition for Thrift's protocols: each field at the index of its number."""
    found: list[Any] = [None] * (max((number for number, _, _ in fields), default=-1) + 1)
    for number, name, (kind, of) in fields:
        found[number] = (number, kind, name, of, None)
    return tuple(found)


class Struct:
    """Values by field names; None if absent."""

    thrift_spec: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, **values: object) -> None:
        for field in filter(None, self.thrift_spec):
            setattr(self, field[2], values.get(field[2]))

    def read(self, protocol: Any) -> None:
        if protocol._fast_decode is None:
            protocol.readStruct(self, self.thrift_spec)
        else:
            protocol._fast_decode(self, protocol, [type(self), self.thrift_spec])

    def write(self, protocol: Any) -> None:
        protocol.writeStruct(self, self.thrift_spec)


def _of(kind: type[Struct]) -> tuple[int, Any]:
    return TType.STRUCT, [kind, kind.thrift_spec]


def _list_of(kind: type[Struct]) -> tuple[int, Any]:
    return TType.LIST, (TType.STRUCT, [kind, kind.thrift_spec], False)


class Fault(Struct):
    thrift_spec = _spec((1, "message", _TEXT))


class StorageDescriptor(Struct):
    location: str | None
    input: str | None
    output: str | None
    thrift_spec = _spec(*_PLACE)


class Column(Struct):
    thrift_spec = _spec((1, "name", _TEXT), (2, "type", _TEXT), (3, "comment", _TEXT))


class Order(Struct):
    thrift_spec = _spec((1, "column", _TEXT), (2, "order", _ENUM))


class Serde(Struct):
    thrift_spec = _spec(
        (1, "name", _TEXT), (2, "library", _TEXT), (3, "parameters", _TEXTS_BY_TEXT)
    )


class WholeDescriptor(StorageDescriptor):
    """The descriptor that partitions copy. Without skewed values, which Paimon's tables lack."""

    thrift_spec = _spec(
        *_PLACE,
        (1, "columns", _list_of(Column)),
        (5, "compressed", _FLAG),
        (6, "buckets", _ENUM),
        (7, "serde", _of(Serde)),
        (8, "bucket_columns", _TEXTS),
        (9, "sort_columns", _list_of(Order)),
        (10, "parameters", _TEXTS_BY_TEXT),
        (12, "in_folders", _FLAG),
    )


class HiveTable(Struct):
    name: str
    database: str
    created_s: int
    sd: StorageDescriptor | None
    parameters: Mapping[str, str] | None
    thrift_spec = _spec(*_TABLE, (7, "sd", _of(StorageDescriptor)))


class WholeTable(HiveTable):
    sd: WholeDescriptor | None
    thrift_spec = _spec(*_TABLE, (7, "sd", _of(WholeDescriptor)))


class HivePartition(Struct):
    """An entry; the metastore sets its time by its own clock."""

    values: Sequence[str]
    created_s: int | None
    sd: WholeDescriptor | None
    thrift_spec = _spec(
        (1, "values", _TEXTS),
        (2, "database", _TEXT),
        (3, "table", _TEXT),
        (4, "created_s", _ENUM),
        (5, "used_s", _ENUM),
        (6, "sd", _of(WholeDescriptor)),
        (7, "parameters", _TEXTS_BY_TEXT),
    )


class NewPartitions(Struct):
    """A request to add entries. `wants_answer`: the answer contains them."""

    thrift_spec = _spec(
        (1, "database", _TEXT),
        (2, "table", _TEXT),
        (3, "partitions", _list_of(HivePartition)),
        (4, "skips_known", _FLAG),
        (5, "wants_answer", _FLAG),
    )


class AddedPartitions(Struct):
    """An answer whose content is ignored."""


class LockComponent(Struct):
    """Without an operation's type, as in Java."""

    thrift_spec = _spec(
        (1, "type", _ENUM), (2, "level", _ENUM), (3, "database", _TEXT), (4, "table", _TEXT)
    )


class LockRequest(Struct):
    thrift_spec = _spec(
        (1, "components", _list_of(LockComponent)), (3, "user", _TEXT), (4, "host", _TEXT)
    )


class LockResponse(Struct):
    lock_id: int
    state: int
    thrift_spec = _spec((1, "lock_id", _NUMBER), (2, "state", _ENUM))


class LockId(Struct):
    """The request to check, prolong and release a lock."""

    thrift_spec = _spec((1, "lock_id", _NUMBER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Limits of an answer: its bytes, and the items of each list or mapping in it.

    One byte of an answer may become a Python object of up to 300 bytes.
    """

    bytes_max: int
    items_max: int
    advice: str = ""


# For answers that are a flag or a number; names; a table with its columns; up to 300 tables without
# columns, which are sent nevertheless.
_SMALL = Bound(bytes_max=64 << 10, items_max=100)
_NAMES = Bound(bytes_max=8 << 20, items_max=200_000)
_ONE = Bound(bytes_max=4 << 20, items_max=20_000)
_MANY = Bound(
    bytes_max=16 << 20,
    items_max=2_000,
    advice=f"; a lower {BATCH} requests fewer tables at once",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call; `faults` are its declared exceptions, from number 1 on."""

    arguments: tuple[Any, ...]
    result: type[Struct]
    has_value: bool
    faults: tuple[str, ...]
    bound: Bound


def _call(
    arguments: Sequence[tuple[int, Any]],
    value: tuple[int, Any] | None,
    *faults: str,
    bound: Bound = _SMALL,
) -> Call:
    fields = [(number, f"fault{number}", _of(Fault)) for number in range(1, len(faults) + 1)]
    if value is not None:
        fields.append((0, "value", value))
    return Call(
        arguments=_spec(*((n, f"argument{n}", kind) for n, kind in enumerate(arguments, start=1))),
        result=type("Result", (Struct,), {"thrift_spec": _spec(*fields)}),
        has_value=value is not None,
        faults=faults,
        bound=bound,
    )


NO_OBJECT, NO_DATABASE = "NoSuchObjectException", "UnknownDBException"
NO_LOCK = "NoSuchLockException"
_META, _NO_TXN, _ABORTED = "MetaException", "NoSuchTxnException", "TxnAbortedException"
_PARTITION = (_TEXT, _TEXT, _TEXTS)
_EVENT = (_TEXT, _TEXT, _TEXTS_BY_TEXT, _ENUM)
_OF_EVENTS = (
    *(_META, NO_OBJECT, NO_DATABASE, "UnknownTableException"),
    *("UnknownPartitionException", "InvalidPartitionException"),
)
CALLS: Mapping[str, Call] = {
    "get_all_databases": _call((), _TEXTS, _META, bound=_NAMES),
    "get_all_tables": _call((_TEXT,), _TEXTS, _META, bound=_NAMES),
    "get_table": _call((_TEXT, _TEXT), _of(WholeTable), _META, NO_OBJECT, bound=_ONE),
    "get_table_objects_by_name": _call(
        (_TEXT, _TEXTS),
        _list_of(HiveTable),
        *(_META, "InvalidOperationException", NO_DATABASE),
        bound=_MANY,
    ),
    "add_partitions_req": _call(
        (_of(NewPartitions),),
        _of(AddedPartitions),
        *("InvalidObjectException", "AlreadyExistsException", _META),
    ),
    "drop_partition": _call((*_PARTITION, _FLAG), _FLAG, NO_OBJECT, _META),
    "get_partition": _call(_PARTITION, _of(HivePartition), _META, NO_OBJECT, bound=_ONE),
    "markPartitionForEvent": _call(_EVENT, None, *_OF_EVENTS),
    "isPartitionMarkedForEvent": _call(_EVENT, _FLAG, *_OF_EVENTS),
    "lock": _call((_of(LockRequest),), _of(LockResponse), _NO_TXN, _ABORTED),
    "check_lock": _call((_of(LockId),), _of(LockResponse), _NO_TXN, _ABORTED, NO_LOCK),
    "heartbeat": _call((_of(LockId),), None, NO_LOCK, _NO_TXN, _ABORTED),
    "unlock": _call((_of(LockId),), None, NO_LOCK, "TxnOpenException"),
}
