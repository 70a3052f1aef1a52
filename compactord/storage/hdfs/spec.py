"""Locations in HDFS: which name service, what a client has to know of it, and the path there.

That is what Hadoop's files, the environment and a catalog's options say. A spec takes what it needs
of them along, so that workers need no files. Source: utils/HadoopUtils.java
(`getHadoopConfiguration`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.references import ReferenceMissing, resolve
from compactord.storage.base import HADOOP, Located, Store

CONF_DIR = "hadoop-conf-dir"
# How the other options begin, which are properties of hdfs-site.xml.
PROPERTIES = "dfs."
REPLICATION = "dfs.replication"
# How often the library asks again where a name node did not answer.
ATTEMPTS = "dfs.client.failover.max.attempts"
# What else the library knows, and is to be told: what is not named here has no effect.
_CLIENT = (
    REPLICATION,
    "dfs.client.block.write.replace-datanode-on-failure.best-effort",
    "dfs.client.block.write.replace-datanode-on-failure.enabled",
    "dfs.client.block.write.replace-datanode-on-failure.policy",
    "dfs.client.socket-timeout",
    "dfs.client.use.datanode.hostname",
    "dfs.data.transfer.protection",
    "hadoop.security.authentication",
)
_DEFAULT_FS = "fs.defaultFS"
_NAME_NODES = "dfs.ha.namenodes"
_ADDRESS = "dfs.namenode.rpc-address"
# Where a name node listens whose port nobody names.
_PORT = 8020

if TYPE_CHECKING:
    from compactord.storage.hdfs.store import HdfsStorage

# What the extra `hdfs` names: compactord itself is in no package index.
INSTALL_HDFS = "pip install 'hdfs-native>=0.14.7,<0.15'"
# Of a call without an answer.
ANSWER_S = 30.0


def site_properties(path: Path, option: str) -> Mapping[str, str]:
    """The properties of a file of Hadoop's; whoever writes it is trusted like the options.

    Raises `CatalogOptionInvalid` for `option`, which named its folder.
    """
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, ElementTree.ParseError) as error:
        raise CatalogOptionInvalid(option, f"a folder with {path.name} ({error})") from None


@functools.lru_cache(maxsize=16)
def _parsed(path: Path, changed_ns: int) -> Mapping[str, str]:
    # Asked for each table of a metastore.
    root = ElementTree.parse(path).getroot()
    return {
        (each.findtext("name") or "").strip(): (each.findtext("value") or "").strip()
        for each in root.iter("property")
    }


def default_fs(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> str:
    """`fs.defaultFS` of the first core-site.xml where Java's Hive catalog looks; else empty.

    Raises `CatalogOptionInvalid`.
    """
    home = environment.get("HADOOP_HOME")
    folders = [_conf_dir(options), environment.get("HADOOP_CONF_DIR"), *_folders_of(home)]
    for folder in filter(None, folders):
        path = Path(folder) / "core-site.xml"
        if path.is_file():
            return site_properties(path, CONF_DIR).get(_DEFAULT_FS, "")
    return ""


def settings_of(
    service: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What a client needs to know of a name service, or of the host of a name node.

    What comes later counts, as in Java: files in HADOOP_HOME, in the option's folder, in
    HADOOP_CONF_DIR, options. Raises `CatalogOptionInvalid`, and `UsageError` where a name node of
    the service has no address.
    """
    found: dict[str, str] = {}
    home, own = environment.get("HADOOP_HOME"), _conf_dir(options)
    for folder in filter(None, (*_folders_of(home), own, environment.get("HADOOP_CONF_DIR"))):
        paths = [Path(folder) / name for name in ("core-site.xml", "hdfs-site.xml")]
        if folder == own and not any(path.is_file() for path in paths):
            raise CatalogOptionInvalid(CONF_DIR, "a folder with core-site.xml or hdfs-site.xml")
        for path in filter(Path.is_file, paths):
            found.update(site_properties(path, CONF_DIR))
    for key, text in options.items():
        found[key.removeprefix(HADOOP)] = _resolved(key, text)
    kept = {key: found[key] for key in _CLIENT if found.get(key)}
    names = f"{_NAME_NODES}.{service}"
    nodes = [node.strip() for node in found.get(names, "").split(",") if node.strip()]
    if nodes:
        # Each name node once more than the others: further attempts are ours.
        kept |= {names: ",".join(nodes), ATTEMPTS: str(len(nodes))}
    for node in nodes:
        address = f"{_ADDRESS}.{service}.{node}"
        if not found.get(address):
            raise UsageError(f"hdfs://{service}: {address} is missing, though {names} has {node}")
        kept[address] = found[address]
    return kept


def address_of(service: str, settings: Mapping[str, str]) -> str:
    """The URL of a name service, or that of a name node, with its port."""
    is_whole = f"{_NAME_NODES}.{service}" in settings or service.rpartition(":")[2].isdecimal()
    return f"hdfs://{service}" if is_whole else f"hdfs://{service}:{_PORT}"


def is_known(name: str) -> bool:
    """Whether an option, without what comes before Hadoop's, is looked at for some name service."""
    return name in (CONF_DIR, *_CLIENT) or name.startswith((f"{_NAME_NODES}.", f"{_ADDRESS}."))


def _folders_of(home: str | None) -> tuple[str, ...]:
    return (f"{home}/conf", f"{home}/etc/hadoop") if home else ()


def _conf_dir(options: Mapping[str, str]) -> str:
    return _resolved(CONF_DIR, options.get(CONF_DIR, ""))


def _resolved(key: str, text: str) -> str:
    try:
        return resolve(text).strip()
    except ReferenceMissing as error:
        raise CatalogOptionInvalid(key, error.expected) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsSpec:
    """A name service as the user wrote it, `hdfs://service`, with which paths begin.

    `settings` are Hadoop's properties of it. Tickets and user are found where it is opened.
    """

    root: str
    settings: tuple[tuple[str, str], ...] = ()
    answer_s: float = ANSWER_S

    @property
    def address(self) -> str:
        """The URL that is connected to."""
        return address_of(self.root.partition("://")[2], dict(self.settings))

    def open(self) -> HdfsStorage:
        """Asks nothing. Raises `UsageError` when the extra is missing."""
        # Imported here: the package has to be usable without the extra.
        try:
            from compactord.storage.hdfs.store import HdfsStorage
        except ImportError as error:
            raise UsageError(
                f"{self.root}: HDFS needs a package that is not installed "
                f"({error.name or error}): {INSTALL_HDFS}"
            ) from None
        return HdfsStorage(self)


def _locate(location: str, options: Mapping[str, str]) -> Located:
    """The name service of a URL, and the URL without slashes at its end."""
    scheme, _, rest = location.partition(":")
    service, _, path = rest.removeprefix("//").partition("/")
    if not service:
        raise UsageError(
            f"{location}: a name service is missing, as in {scheme}://service/warehouse or "
            f"{scheme}://namenode:8020/warehouse"
        )
    settings = settings_of(service, options)
    root = f"hdfs://{service}"
    path = path.strip("/")
    return Located(
        spec=HdfsSpec(root=root, settings=tuple(sorted(settings.items()))),
        path=f"{root}/{path}" if path else root,
        unknown=tuple(key for key in options if not is_known(key.removeprefix(HADOOP))),
        known=(CONF_DIR, *settings),
    )


HDFS = Store(schemes=("hdfs",), locate=_locate, prefixes=(CONF_DIR, PROPERTIES))
