"""Checks of a Spark master and of settings before anything is started."""

from __future__ import annotations

import re
from collections.abc import Mapping

from compactord.errors import UsageError
from compactord.text import HIDDEN, redact_text

_NUMBER = "[1-9][0-9]{0,5}"
_LOCAL = re.compile(rf"local(?:\[(?:{_NUMBER}|\*)(?: *, *{_NUMBER})?\])?")
_LOCAL_CLUSTER = re.compile(rf"local-cluster\[ *{_NUMBER} *, *{_NUMBER} *, *{_NUMBER} *\]")
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
# What spark-submit takes, and Spark Connect; mesos until Spark 3.
_REST = {
    "spark": re.compile(rf"{_HOST}:[0-9]{{1,5}}(?:,{_HOST}:[0-9]{{1,5}})*"),
    "sc": re.compile(rf"{_HOST}(?::[0-9]{{1,5}})?(?:/.*)?"),
    "k8s": re.compile(r"[^/].*"),
    "mesos": re.compile(r"[^/].*"),
}
MASTERS = (
    "local, local[N] or local[*] with N at least 1, spark://HOST:PORT, sc://HOST:PORT, k8s://… "
    "or yarn"
)
_INSTEAD = {
    "spark.master": "give the master by itself, not among the settings",
    "spark.remote": "give a server of Spark Connect as the master, sc://HOST:PORT",
    "spark.pyspark.driver.python": "start compactord with that Python",
}
_EMBEDDED_INSTEAD = {
    "spark.pyspark.python": "the embedded Spark uses compactord's: start compactord with that one"
}


def check_spark(master: str | None, settings: Mapping[str, str]) -> None:
    """Raises `UsageError` for a master that Spark does not know, and for settings without effect.

    `master` None is the embedded Spark.
    """
    if master is not None and not is_master(master):
        shown = shown_master(master)
        raise UsageError(f"--master {shown!r} is not a Spark master; expected {MASTERS}")
    for name in settings:
        if not name.startswith("spark."):
            raise UsageError(f"Spark settings begin with 'spark.', this one does not: {name}")
        instead = what_instead(name, master)
        if instead is not None:
            raise UsageError(f"--spark-conf {name} has no effect: {instead}")


def is_local(master: str | None) -> bool:
    """Whether workers are processes that this one starts, with its environment."""
    return master is None or _LOCAL.fullmatch(master) is not None


def is_embedded(master: str | None) -> bool:
    """Whether merges run on this machine, in this process's own Spark."""
    return master is None or master.startswith("local")


def what_instead(setting: str, master: str | None) -> str | None:
    """What to do instead of setting something that has no effect; None for other settings."""
    instead = _INSTEAD.get(setting)
    if instead is None and is_embedded(master):
        instead = _EMBEDDED_INSTEAD.get(setting)
    return instead


def shown_master(master: str) -> str:
    """The address without credentials, and without the parameters of Spark Connect."""
    address, semicolon, _ = master.partition(";")
    if semicolon and master.lower().startswith("sc:"):
        return f"{redact_text(address)};{HIDDEN}"
    return redact_text(master)


def is_master(text: str) -> bool:
    """Whether the text has the form of a Spark master."""
    if text == "yarn" or _LOCAL.fullmatch(text) or _LOCAL_CLUSTER.fullmatch(text):
        return True
    scheme, _, rest = text.partition("://")
    return scheme in _REST and _REST[scheme].fullmatch(rest) is not None
