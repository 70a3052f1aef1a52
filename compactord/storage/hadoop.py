"""Hadoop's configuration files, in the folders where Java looks for them."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from compactord.errors import CatalogOptionInvalid
from compactord.text import resolve_option

CONF_DIR = "hadoop-conf-dir"
_DEFAULT_FS = "fs.defaultFS"


def site_properties(path: Path, option: str) -> Mapping[str, str]:
    """The properties of one of Hadoop's files, which is trusted like the options.

    Raises `CatalogOptionInvalid` for `option`, which named the folder.
    """
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, ElementTree.ParseError) as error:
        raise CatalogOptionInvalid(option, f"a folder with {path.name} ({error})") from None


@functools.lru_cache(maxsize=16)
def _parsed(path: Path, changed_ns: int) -> Mapping[str, str]:
    # Called for each table of a metastore.
    root = ElementTree.parse(path).getroot()
    return {
        (each.findtext("name") or "").strip(): (each.findtext("value") or "").strip()
        for each in root.iter("property")
    }


def default_fs(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> str:
    """`fs.defaultFS` of the first core-site.xml that Java's Hive catalog finds, or an empty text.

    Raises `CatalogOptionInvalid`.
    """
    home = environment.get("HADOOP_HOME")
    folders = [conf_dir(options), environment.get("HADOOP_CONF_DIR"), *folders_of(home)]
    for folder in filter(None, folders):
        path = Path(folder) / "core-site.xml"
        if path.is_file():
            return site_properties(path, CONF_DIR).get(_DEFAULT_FS, "")
    return ""


def folders_of(home: str | None) -> tuple[str, ...]:
    """The folders of configuration files below HADOOP_HOME."""
    return (f"{home}/conf", f"{home}/etc/hadoop") if home else ()


def conf_dir(options: Mapping[str, str]) -> str:
    """The folder that options name, or an empty text. Raises `CatalogOptionInvalid`."""
    return resolve_option(CONF_DIR, options.get(CONF_DIR, "")).strip()
