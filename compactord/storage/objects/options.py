"""Options of object stores, buckets and their connections, as values."""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compactord.errors import CatalogOptionInvalid, StorageError
from compactord.storage.base import HADOOP, Capabilities, Storage
from compactord.text import resolve_option

# For options `proxy.…` of any store: ignoring them would change the route of requests.
_PROXY = "compactord takes proxies from HTTPS_PROXY and NO_PROXY in the environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionNames:
    """The option names of one kind of store, without prefixes.

    `prefixes` are equivalent; `aliases` map other names to the one that is read. `refused` options
    would change data or identity; the value is the advice shown instead.
    """

    prefixes: Sequence[str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str]


class Given:
    """The options of one store in a catalog, by their names without a prefix.

    Each has its key and value as written, several times if it was given under several keys. Names
    that are never read count as options without an effect. Reading raises `CatalogOptionInvalid`
    for an invalid value, and for two values that differ.
    """

    def __init__(self, names: OptionNames, found: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._names = names
        self._found = found
        self._requested: set[str] = set()
        # Names read by `secret`, with the keys of their options.
        self.secrets: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        self._requested.add(name)
        given = self._found.get(name, ())
        for key, text in given[1:]:
            if text != given[0][1]:
                raise CatalogOptionInvalid(key, f"the value of {given[0][0]}, which means the same")
        return bool(given)

    def unknown(self) -> Sequence[str]:
        left = (given for name, given in self._found.items() if name not in self._requested)
        return [key for given in left for key, _ in given]

    def known(self) -> Sequence[str]:
        """Keys of options that may have an effect, given or not, with all prefixes and aliases."""
        names = (*self._requested, *self._names.aliases)
        return [f"{prefix}{name}" for prefix in self._names.prefixes for name in names]

    def key(self, name: str) -> str:
        """The option's key as it was written."""
        return self._found[name][0][0]

    def text(self, name: str) -> str:
        """The value with references resolved; empty if not given."""
        if name not in self:
            return ""
        key, text = self._found[name][0]
        return resolve_option(key, text).strip()

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text in ("", "true", "false"):
            return default if text == "" else text == "true"
        raise CatalogOptionInvalid(self.key(name), "true or false")

    def secret(self, name: str, target: str, into: dict[str, str]) -> None:
        """Copy the value, references unresolved, to `target`."""
        if name in self:
            self.secrets[target], into[target] = self._found[name][0]

    def pair(
        self, prefix: str, targets: Mapping[str, str], token: tuple[str, str], into: dict[str, str]
    ) -> None:
        """Copy two keys that require each other to their targets, with a session's token.

        Raises `CatalogOptionInvalid` if one is missing; `prefix` is its prefix in the error.
        """
        names = tuple(targets)
        for name, other in (names, names[::-1]):
            if name in self and other not in self:
                raise CatalogOptionInvalid(self.key(name), f"{prefix}{other} as well")
        for name, target in targets.items():
            self.secret(name, target, into)
        if names[0] in self:
            self.secret(*token, into)

    def plain(self, name: str, target: str, into: dict[str, str]) -> None:
        """Copy the value to `target` if it is given."""
        text = self.text(name)
        if text:
            into[target] = text

    def choice(self, name: str, choices: Mapping[str, str], expected: str) -> str:
        """The meaning of a value from a fixed set, in any case; empty if not given."""
        text = self.text(name)
        if not text:
            return ""
        if text.lower() not in choices:
            raise CatalogOptionInvalid(self.key(name), expected)
        return choices[text.lower()]


def given(
    options: Mapping[str, str],
    names: OptionNames,
    *,
    narrowed: Callable[[str], tuple[str, bool] | None] = lambda name: (name, False),
) -> Given:
    """The options of one store.

    `narrowed` maps a name to its plain name and whether it applies only to a part of the store;
    such an option wins over a general one. It returns None for options of other parts. Raises
    `CatalogOptionInvalid` for refused options.
    """
    wide: dict[str, list[tuple[str, str]]] = {}
    narrow: dict[str, list[tuple[str, str]]] = {}
    for key, text in options.items():
        bare = key.removeprefix(HADOOP)
        prefix = next(each for each in names.prefixes if bare.startswith(each))
        found = narrowed(bare[len(prefix) :])
        if found is None:
            continue
        name, is_narrow = found
        name = names.aliases.get(name, name)
        instead = _PROXY if name.startswith("proxy.") else names.refused.get(name)
        if instead is not None:
            raise CatalogOptionInvalid(key, f"no such option: {instead}")
        (narrow if is_narrow else wide).setdefault(name, []).append((key, text))
    return Given(names, {**wide, **narrow})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreService:
    """An opendal service and its configuration, from `given` options.

    `options` configure the service; `environment` are variables that it reads from the process.
    Both may contain `${…}`, resolved by the process that opens the store. `names_host`: see
    `StoreLocation`.
    """

    service: str
    given: Given
    options: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    names_host: bool = False

    @property
    def is_ambient(self) -> bool:
        """Whether requests use the machine's identity: without keys and not anonymous."""
        is_anonymous = self.options.get("skip_signature") == "true"
        return bool(self.environment) or not (self.given.secrets or is_anonymous)


def is_address(host: str) -> bool:
    """Whether the host is an IP address, to which a bucket's name cannot be prepended."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


# The extra `stores`, spelled out: compactord itself is in no package index.
INSTALL_STORES = "pip install 'botocore>=1.35,<2' 'fsspec>=2024.12,<2027' 'opendal>=0.47.12,<0.48'"
# Time limit of a request without an answer or without progress.
TIMEOUT_S = 30.0
OBJECTS = Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket(ABC):
    """A bucket and its configuration; each process opens it separately.

    `root` is the bucket's URL as the user wrote it, `s3://bucket`, which all paths start with.
    `service` and `options` are the library's, `environment` are variables it reads. Values of both
    may be references, resolved where the store is opened. Secrets are always references.
    """

    root: str
    service: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    capabilities: Capabilities = OBJECTS
    timeout_s: float = TIMEOUT_S

    @property
    def scheme(self) -> str:
        return self.root.partition(":")[0]

    @abstractmethod
    def open(self) -> Storage:
        """The store. A bucket is a `StorageSpec`; code that only connects needs no store."""

    def key_of(self, path: str) -> str:
        """The name of the object at a path; empty for the bucket itself.

        Raises `StorageError` for paths of other stores, and for names that the library would
        normalise.
        """
        if path in (self.root, self.root + "/"):
            return ""
        if not path.startswith(self.root + "/"):
            raise StorageError(path, f"the path is outside the store {self.root}")
        key = path[len(self.root) + 1 :]
        if key != key.strip() or key.endswith("/") or "" in key.split("/"):
            raise StorageError(
                path, "the store's library cannot address this name (empty parts, outer spaces)"
            )
        return key
