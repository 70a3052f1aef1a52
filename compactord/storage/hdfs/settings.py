"""Client settings of an HDFS name service: from Hadoop's files, environment and options.

Source: utils/HadoopUtils.java (`getHadoopConfiguration`). A spec carries the settings, so workers
need no files.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.storage.base import HADOOP, Storage
from compactord.storage.hadoop import CONF_DIR, conf_dir, folders_of, site_properties
from compactord.text import resolve_option

# Prefix of the other options, which are properties of hdfs-site.xml.
PROPERTIES = "dfs."
REPLICATION = "dfs.replication"
# How often the library repeats a call that a name node did not answer.
ATTEMPTS = "dfs.client.failover.max.attempts"
# Other properties that the library reads. Any that is not listed here has no effect.
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
_NAME_NODES = "dfs.ha.namenodes"
_ADDRESS = "dfs.namenode.rpc-address"
# The default port of a name node.
_PORT = 8020


def settings_of(
    service: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The settings that a client needs for a name service, or for the host of a name node.

    As in Java, later sources win: files in HADOOP_HOME, in the option's folder, in HADOOP_CONF_DIR,
    options. Raises `CatalogOptionInvalid`, and `UsageError` if a name node of the service has no
    address.
    """
    found: dict[str, str] = {}
    home, own = environment.get("HADOOP_HOME"), conf_dir(options)
    for folder in filter(None, (*folders_of(home), own, environment.get("HADOOP_CONF_DIR"))):
        paths = [Path(folder) / name for name in ("core-site.xml", "hdfs-site.xml")]
        if folder == own and not any(path.is_file() for path in paths):
            raise CatalogOptionInvalid(CONF_DIR, "a folder with core-site.xml or hdfs-site.xml")
        for path in filter(Path.is_file, paths):
            found.update(site_properties(path, CONF_DIR))
    for key, text in options.items():
        found[key.removeprefix(HADOOP)] = resolve_option(key, text).strip()
    kept = {key: found[key] for key in _CLIENT if found.get(key)}
    names = f"{_NAME_NODES}.{service}"
    nodes = [node.strip() for node in found.get(names, "").split(",") if node.strip()]
    if nodes:
        # Each name node once: further attempts are made by the store.
        kept |= {names: ",".join(nodes), ATTEMPTS: str(len(nodes))}
    for node in nodes:
        address = f"{_ADDRESS}.{service}.{node}"
        if not found.get(address):
            raise UsageError(f"hdfs://{service}: {address} is missing, though {names} has {node}")
        kept[address] = found[address]
    return kept


def address_of(service: str, settings: Mapping[str, str]) -> str:
    """The URL of a name service, or of a name node with its port."""
    is_whole = f"{_NAME_NODES}.{service}" in settings or service.rpartition(":")[2].isdecimal()
    return f"hdfs://{service}" if is_whole else f"hdfs://{service}:{_PORT}"


def is_known(name: str) -> bool:
    """Whether an option, without Hadoop's prefix, is used for any name service."""
    return name in (CONF_DIR, *_CLIENT) or name.startswith((f"{_NAME_NODES}.", f"{_ADDRESS}."))


# Time limit of one call.
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NameService(ABC):
    """A name service as the user wrote it, `hdfs://service`, which all its paths start with.

    `settings` are Hadoop's properties for it. Tickets and the user are found in the process that
    opens it.
    """

    root: str
    settings: tuple[tuple[str, str], ...] = ()
    answer_s: float = ANSWER_S

    @property
    def address(self) -> str:
        """The URL of the connection."""
        return address_of(self.root.partition("://")[2], dict(self.settings))

    @abstractmethod
    def open(self) -> Storage:
        """The store. A name service is a `StorageSpec`; code that only connects needs no store."""
