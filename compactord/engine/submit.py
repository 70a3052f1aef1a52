"""Arguments for spark-submit; settings go into a file, because all users can see command lines."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from compactord.redaction import SECRET

# For Spark's pages and event logs. Spark's default misses account keys and passphrases.
LEAST = {"spark.redaction.regex": f"(?i){SECRET}"}
_PROPERTIES_FILE = "--properties-file"
_PLAIN = re.compile(r"[A-Za-z0-9._/-]")


def submit_arguments(
    file: Path, settings: Mapping[str, str], *, given: str, defaults: Path | None
) -> list[str]:
    """Write the settings to `file` and return the arguments of spark-submit.

    `given` are other arguments, quoted as in a shell; `defaults` is the settings file to use if
    they name none. Spark reads only one file (4.0 and later could read two), so the user's is
    copied to the beginning of ours: the last setting of a name counts.

    Raises `OSError` if `file` exists already, or if the user's file cannot be read.
    """
    arguments, theirs = _without_file(shlex.split(given))
    if theirs is None and defaults is not None and defaults.is_file():
        theirs = defaults
    below = b"" if theirs is None else theirs.read_bytes()
    # Empty lines, as their last one may end in a backslash.
    content = _lines(LEAST) + below + b"\n\n" + _lines(settings)
    # The mode holds from the first moment on, whatever the umask is.
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(content)
    return [_PROPERTIES_FILE, str(file), *arguments]


def _without_file(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Arguments of spark-submit without the file of settings, and that file."""
    kept: list[str] = []
    file: Path | None = None
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if name == _PROPERTIES_FILE:
            file = Path(value if equals else next(left, ""))
        else:
            kept.append(argument)
    return kept, file


def _lines(settings: Mapping[str, str]) -> bytes:
    """In the format of java.util.Properties."""
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()]
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    """Every character that may have a special meaning is escaped as UTF-16 units."""
    return "".join(sign if _PLAIN.match(sign) else _units(sign) for sign in text)


def _units(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
