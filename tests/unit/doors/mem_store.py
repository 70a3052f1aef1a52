"""`mem://bucket/path`: a store of this process, and all that the product has to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compactord.errors import AccessDenied, CatalogOptionInvalid, UsageError
from compactord.storage.base import Capabilities, Store, StoreLocation
from compactord.text import handed_over, resolve
from tests.storages import MemoryStorage

_KNOWN = ("mem.key", "mem.exclusive")
KEY = "only-for-those-who-open"
# What all processes find behind a bucket's name: its objects, and the key that it takes.
buckets: dict[str, dict[str, bytes]] = {}
accepted = {"key": KEY}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemSpec:
    """`key` is a reference: a value would travel with each subcompaction."""

    bucket: str
    key: str = field(repr=False)
    capabilities: Capabilities

    def open(self) -> Bucket:
        if resolve(self.key) != accepted["key"]:
            raise AccessDenied(self.bucket, "open failed (wrong key)")
        return Bucket(self)


class Bucket(MemoryStorage):
    """Paths begin with a slash. Cannot be pickled, as it holds a lock."""

    def __init__(self, spec: MemSpec) -> None:
        super().__init__()
        self.objects = buckets.setdefault(spec.bucket, {})
        self._spec = spec

    @property
    def spec(self) -> MemSpec:
        return self._spec

    @property
    def capabilities(self) -> Capabilities:
        return self._spec.capabilities


def _locate(location: str, options: Mapping[str, str]) -> StoreLocation:
    bucket, slash, path = location.removeprefix("mem://").partition("/")
    if not bucket:
        raise UsageError(f"{location}: a bucket is missing, as in mem://bucket/wh")
    if "mem.cipher" in options:
        raise CatalogOptionInvalid("mem.cipher", "no such option: nothing is encrypted")
    spec = MemSpec(
        bucket=bucket,
        key=handed_over(options.get("mem.key", "")),
        capabilities=Capabilities(excludes_java_writers="mem.exclusive" in options),
    )
    unknown = tuple(key for key in options if key not in _KNOWN)
    secrets = tuple(key for key in options if key == "mem.key")
    return StoreLocation(
        spec=spec, path=slash + path, secrets=secrets, unknown=unknown, known=_KNOWN
    )


MEM = Store(schemes=("mem",), locate=_locate, prefixes=("mem.",))
