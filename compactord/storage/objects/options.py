"""Options of object stores, buckets and their connections, as values."""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compactord.errors import CatalogOptionInvalid, StorageError
from compactord.storage.base import HADOOP, Capabilities, Storage
from compactord.text import resolve_option

# For options `proxy.…` of any store: ignored, they would send requests another way.
_PROXY = "compactord takes proxies from HTTPS_PROXY and NO_PROXY in the environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionNames:
    """The names of one kind of store, each without its prefix.

    `prefixes` all mean the same; `aliases` are other names of one that is read. `refused` would
    change what is read or written, or who asks; each with what to do instead.
    """

    prefixes: Sequence[str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str]


class Given:
    """The options of one store that a catalog has, by their names without a prefix.

    Each with its key and value as they were written, several times if it has several keys. It
    remembers what it was asked for: any other has no effect. Whatever reads a value raises
    `CatalogOptionInvalid` for one without a meaning, and for two that differ.
    """

    def __init__(self, names: OptionNames, found: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._names = names
        self._found = found
        self._asked: set[str] = set()
        # Names that `secret` was asked for, with the keys of their options.
        self.secrets: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        self._asked.add(name)
        given = self._found.get(name, ())
        for key, text in given[1:]:
            if text != given[0][1]:
                raise CatalogOptionInvalid(key, f"the value of {given[0][0]}, which means the same")
        return bool(given)

    def unknown(self) -> Sequence[str]:
        """The keys of options without an effect."""
        left = (given for name, given in self._found.items() if name not in self._asked)
        return [key for given in left for key, _ in given]

    def known(self) -> Sequence[str]:
        """The keys of options that may have one, given or not, with all prefixes and aliases."""
        names = (*self._asked, *self._names.aliases)
        return [f"{prefix}{name}" for prefix in self._names.prefixes for name in names]

    def key(self, name: str) -> str:
        """The option's key as it was written."""
        return self._found[name][0][0]

    def text(self, name: str) -> str:
        """The value, references resolved; empty where it is not given."""
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
        """Put the value, references as they were written, under `target`."""
        if name in self:
            self.secrets[target], into[target] = self._found[name][0]

    def pair(
        self, prefix: str, targets: Mapping[str, str], token: tuple[str, str], into: dict[str, str]
    ) -> None:
        """Put two keys that need each other under their targets, with the token of a session.

        `prefix` is that of a missing key in the error.
        """
        names = tuple(targets)
        for name, other in (names, names[::-1]):
            if name in self and other not in self:
                raise CatalogOptionInvalid(self.key(name), f"{prefix}{other} beside it")
        for name, target in targets.items():
            self.secret(name, target, into)
        if names[0] in self:
            self.secret(*token, into)

    def plain(self, name: str, target: str, into: dict[str, str]) -> None:
        """Put the value under `target`, if there is one."""
        text = self.text(name)
        if text:
            into[target] = text

    def choice(self, name: str, choices: Mapping[str, str], expected: str) -> str:
        """The meaning of a value that is one of a few, in any case; empty where it is not given."""
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
    """What a store makes of its own options.

    `narrowed` gives the plain name of one that may hold for a part of the store alone, and whether
    it does: such an option comes before one for everything; None: it is for another part. Raises
    `CatalogOptionInvalid` for what is refused.
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
    """How opendal opens a store that was `given` options.

    `options` are those of the service, `environment` are variables that it reads from the process.
    Both may hold `${…}`, which the process that opens the store resolves. `names_host`: as in
    `StoreLocation`.
    """

    service: str
    given: Given
    options: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    names_host: bool = False

    @property
    def is_ambient(self) -> bool:
        """Whether requests are neither signed by keys among the options nor anonymous."""
        is_anonymous = self.options.get("skip_signature") == "true"
        return bool(self.environment) or not (self.given.secrets or is_anonymous)


def is_address(host: str) -> bool:
    """Whether no name of a bucket can stand before the host's."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


# What the extra `stores` names: compactord itself is in no package index.
INSTALL_STORES = "pip install 'botocore>=1.35,<2' 'fsspec>=2024.12,<2027' 'opendal>=0.47.12,<0.48'"
# Of one request without an answer, or without progress.
TIMEOUT_S = 30.0
OBJECTS = Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket(ABC):
    """A bucket and how it is opened; each process opens it for itself.

    `root` is the bucket's URL as the user wrote it, `s3://bucket`: paths begin with it. `service`
    and `options` are the library's, `environment` what it reads from the process. Values of both
    may be references, which are resolved where the store is opened; secrets are nothing else.
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
        """See `StorageSpec`: a bucket is one, and what connects to it needs no store."""

    def key_of(self, path: str) -> str:
        """The name of the object at a path; empty for the bucket itself.

        Raises `StorageError` for paths of other stores, and for names that the library would
        change into others.
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
