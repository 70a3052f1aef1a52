"""References in texts: `${env:NAME}` and `${file:/path}` stand for values that are read late.

`$${` stands for the signs `${` themselves. Values are not searched for references again.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping

from compactord.errors import CatalogOptionInvalid, UsageError

_REFERENCE = re.compile(r"\$(?:(\$)(?=\{)|\{([^{}]*)\})")
# Not `COMPACTORD__`, which begins the names of settings.
_HANDED = "COMPACTORD_SECRET_"
_FORMS = "${env:NAME} or ${file:/path}; $${ for the signs themselves"
# Between two looks at what may have been replaced.
_LOOK_S = 60.0
_lock = threading.Lock()
_handed: dict[str, str] = {}
_KEPT = "kept"
_kept: dict[str, str] = {}


class ReferenceMissing(UsageError):
    """What `reference`, as it was written, names is not there; `expected` says what should be."""

    def __init__(self, reference: str, expected: str) -> None:
        self.reference = reference
        self.expected = expected
        super().__init__(f"{reference}: expected {expected}")

    def __reduce__(self) -> tuple[type[ReferenceMissing], tuple[str, str]]:
        return ReferenceMissing, (self.reference, self.expected)


def has_reference(text: str) -> bool:
    """Whether there is a reference in the text, one that cannot be resolved included."""
    return any(found[2] is not None for found in _REFERENCE.finditer(text))


def resolve(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text with values in the place of its references; `environ` None: this process's.

    Raises `ReferenceMissing` for the first that has no value.
    """
    variables = os.environ if environ is None else environ
    return filled(text, lambda reference: value_of(reference, variables))


def resolve_option(key: str, text: str) -> str:
    """As `resolve`, of an option of a catalog. Raises `CatalogOptionInvalid`."""
    try:
        return resolve(text)
    except ReferenceMissing as error:
        raise CatalogOptionInvalid(key, error.expected) from None


def filled(text: str, value: Callable[[str], str]) -> str:
    """The text with `value` of each reference, `env:NAME` or the like, in its place."""
    return _REFERENCE.sub(lambda found: "$" if found[1] else value(found[2]), text)


def value_of(reference: str, environ: Mapping[str, str]) -> str:
    """The value of `env:NAME` or `file:/path`, or of one of `kept`. Raises `ReferenceMissing`."""
    kind, _, name = reference.partition(":")
    shown = f"${{{reference}}}"
    if kind == _KEPT and name in _kept:
        return _kept[name]
    if kind == "env" and name:
        value = environ.get(name)
        if value is None:
            raise ReferenceMissing(shown, f"the variable {name} to be set")
        return value
    if kind == "file" and os.path.isabs(name):
        try:
            with open(name, encoding="utf-8") as file:
                return file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
            raise ReferenceMissing(shown, f"a file that can be read ({why})") from None
    raise ReferenceMissing(shown, _FORMS)


class LateValues:
    """Texts by name, and what their references resolved to when they were last read.

    For what has to notice that a key in a file was replaced; any thread may ask.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self._values: dict[str, str] = {}
        self._looked_s = -math.inf

    def read(self) -> Mapping[str, str]:
        """Resolve all. Raises `ReferenceMissing`."""
        self._values = {name: resolve(text) for name, text in self._texts.items()}
        return self._values

    def forget(self) -> None:
        """What was read last is used nowhere: whatever is there counts as changed."""
        self._values = {}

    def have_changed(self, now_s: float) -> bool:
        """Whether a credential that was just refused has been replaced since it was read.

        Looks once a minute at most, as refusals have other reasons, too, and come in numbers; no in
        between, and while a reference has no value. `now_s` is monotonic.
        """
        if now_s - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now_s
        try:
            return self._values != {name: resolve(text) for name, text in self._texts.items()}
        except ReferenceMissing:
            return False


def escaped(text: str) -> str:
    """The text for which `resolve` returns `text`: what looks like a reference in it is none."""
    return text.replace("${", "$${")


def handed_over(text: str) -> str:
    """A reference that has the value of `text` in this process and in those it starts.

    A text with references stays as it is. The value of another one is put into a variable of this
    process's environment, so that it can stand nowhere else; a value has one variable.
    """
    if has_reference(text):
        return text
    value = resolve(text)
    with _lock:
        name = _handed.get(value)
        if name is None:
            name = _handed[value] = _HANDED + secrets.token_hex(8).upper()
            os.environ[name] = value
    return f"${{env:{name}}}"


def kept(name: str, value: str) -> str:
    """A reference to a value that this process alone has; `name` may get another one later.

    For values in any number: an environment is handed to each process that is started, as a whole,
    and may have no more than two megabytes.
    """
    _kept[name] = value
    return f"${{{_KEPT}:{name}}}"


def forget(reference: str) -> None:
    """The value of a reference that `kept` returned is needed no more."""
    _kept.pop(reference[len(f"${{{_KEPT}:") : -1], None)
