"""The calls of a Hive metastore that are used, as they go over a connection.

Field numbers are those of hive_metastore.thrift (Apache Hive 2.3 to 4), of which this is a small
part: Thrift skips fields that are not named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thrift.Thrift import TType

EXCLUSIVE, TABLE_LEVEL = 3, 2
ACQUIRED, WAITING = 1, 2
# The option that says how many tables are asked for at once.
BATCH, BATCH_MAX = "hive.metastore.batch.retrieve.max", 1_000
# What marks a partition as done (`PartitionEventType.LOAD_DONE`).
LOAD_DONE = 1

_TEXT, _NUMBER, _ENUM = (TType.STRING, "UTF8"), (TType.I64, None), (TType.I32, None)
_FLAG = (TType.BOOL, None)
_TEXTS = (TType.LIST, (TType.STRING, "UTF8", False))
_TEXTS_BY_TEXT = (TType.MAP, (TType.STRING, "UTF8", TType.STRING, "UTF8", False))

# What is read of every descriptor and of every table.
_PLACE = ((2, "location", _TEXT), (3, "input", _TEXT), (4, "output", _TEXT))
_TABLE = (
    *((1, "name", _TEXT), (2, "database", _TEXT), (4, "created_s", _ENUM)),
    (9, "parameters", _TEXTS_BY_TEXT),
)


def _spec(*fields: tuple[int, str, tuple[int, Any]]) -> tuple[Any, ...]:
    """What Thrift's protocols read and write a struct by: a field at the place of its number."""
    found: list[Any] = [None] * (max((number for number, _, _ in fields), default=-1) + 1)
    for number, name, (kind, of) in fields:
        found[number] = (number, kind, name, of, None)
    return tuple(found)


class Struct:
    """Values by the names of the fields; None where one is not there."""

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
    """What a partition's is a copy of. Without skewed values, which Paimon's tables have not."""

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
    """An entry; the metastore says by its own clock when it was made."""

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
    """A request that entries be added. `wants_answer`: the answer is to have them."""

    thrift_spec = _spec(
        (1, "database", _TEXT),
        (2, "table", _TEXT),
        (3, "partitions", _list_of(HivePartition)),
        (4, "skips_known", _FLAG),
        (5, "wants_answer", _FLAG),
    )


class AddedPartitions(Struct):
    """Nothing that is looked at."""


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
    """What asks about a lock, prolongs it and gives it back."""

    thrift_spec = _spec((1, "lock_id", _NUMBER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much of an answer is read, and how many items each list or mapping in it may have.

    An object of Python takes up to 300 bytes, of which one byte may be sent.
    """

    bytes_max: int
    items_max: int
    advice: str = ""


# Of what says yes, no or a number; of names; of a table with its columns; of up to 300 tables
# without theirs, which are sent all the same.
_SMALL = Bound(bytes_max=64 << 10, items_max=100)
_NAMES = Bound(bytes_max=8 << 20, items_max=200_000)
_ONE = Bound(bytes_max=4 << 20, items_max=20_000)
_MANY = Bound(
    bytes_max=16 << 20,
    items_max=2_000,
    advice=f"; a lower {BATCH} asks for fewer tables at once",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`faults` are the exceptions that are declared, from number 1 on."""

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
