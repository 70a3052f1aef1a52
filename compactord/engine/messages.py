"""Messages of Spark and Java for our errors and logs: short, without secrets of the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from compactord.engine.masters import shown_master
from compactord.text import HIDDEN, is_secret_key, redact_text

MESSAGE_CHARACTERS_MAX = 800
_HEADINGS = ("Driver stacktrace:", "JVM stacktrace:", "Traceback (most recent call last):")
# Stack frames, and what every start says.
_NOT_SAID = (
    "\tat ",
    "\t...",
    "WARNING: Using incubator modules",
    "Setting default log level",
    "To adjust logging level",
)
_WARNING = re.compile(r"[-0-9]+ [:,.0-9]+ WARN ")
# Why no executor pod starts: the API server's refusal, or else a warning. Spark goes on until it
# gives up, and says other things in the end.
_OF_EXECUTOR_PODS = (
    re.compile(r"(Caused by: )?io\.fabric8\.kubernetes\."),
    re.compile(
        r"[-0-9]+ [:,.0-9]+ WARN org\.apache\.spark\.scheduler\.cluster\.k8s\."
        r"(?!.*client has been closed)"
    ),
)
# The API server's answer once more, with all its fields.
_STATUS = re.compile(r" Received status: Status\(.*")
# What is shorter is no secret: `true` and `128` stand under such names, too, and in any text.
_SECRET_CHARACTERS_MIN = 6


class Messages:
    """Texts about one engine. `master` is its address as it may be shown."""

    def __init__(self, master: str, settings: Mapping[str, str]) -> None:
        self.master = shown_master(master)
        self._master = master
        self._secrets = sorted(set(_secrets(master, settings)), key=len, reverse=True)

    def redacted(self, text: str) -> str:
        """The text without the values of secret-like settings, wherever they occur in it."""
        text = text.replace(self._master, self.master)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return redact_text(text)

    def brief(self, problem: Exception | str) -> str:
        """The part of an error from Java that people need: its own message, without the stack.

        Of a long one both ends.
        """
        lines = self.redacted(str(problem)).splitlines()
        own = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
        text = " ".join(line for line in own if line not in _HEADINGS)
        text = text.replace(" Traceback (most recent call last):", "")
        if len(text) > MESSAGE_CHARACTERS_MAX:
            half = MESSAGE_CHARACTERS_MAX // 2
            text = f"{text[:half]} … {text[-half:]}"
        return text

    def last_words(self, log: str) -> str:
        """The end of a JVM's log as a sentence; empty if there is none.

        Without stack frames; warnings only when nothing else was said. Why Kubernetes started no
        executor comes first, however long ago that was.
        """
        lines = [line for line in log.splitlines() if not line.startswith(_NOT_SAID)]
        said = [shown for line in lines if (shown := _STATUS.sub("", line).strip())]
        tail = ([line for line in said if not _WARNING.match(line)] or said)[-3:]
        pods = _why_no_executor(said)
        # Redacted before it is cut: half a secret would not be recognised.
        text = self.redacted(" | ".join(tail))[-MESSAGE_CHARACTERS_MAX:]
        if pods and pods not in tail:
            first = self.redacted(pods)[: MESSAGE_CHARACTERS_MAX // 2]
            text = f"{first} | {text[-(MESSAGE_CHARACTERS_MAX - len(first)) :]}"
        return f" Its last output: {text}" if text else ""


def _why_no_executor(said: Sequence[str]) -> str:
    """The last line of a log that says it; empty if none does."""
    for pattern in _OF_EXECUTOR_PODS:
        found = [line for line in said if pattern.match(line)]
        if found:
            return found[-1]
    return ""


def _secrets(master: str, settings: Mapping[str, str]) -> Iterator[str]:
    """Texts that must not be shown; each line of a value separately."""
    values = [value for name, value in settings.items() if is_secret_key(name)]
    if master.startswith("sc:"):
        for parameter in master.split(";")[1:]:
            name, _, value = parameter.partition("=")
            if is_secret_key(name):
                values += [value, unquote(value)]
    for value in values:
        for line in value.splitlines():
            if len(line.strip()) >= _SECRET_CHARACTERS_MIN:
                yield line.strip()
