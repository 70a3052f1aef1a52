"""Obtain, once, the servers that tests of object stores use: `python -m tests.tools.store_servers`.

moto is had from PyPI, into an environment of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MOTO = "moto-5.2.5"
_SECONDS_MAX = 1800
_TAIL_LINES = 20


class ServerMissing(RuntimeError):
    """A server is not in the cache, or could not be obtained."""


def cache_root() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "compactord" / "stores"


def program(name: str) -> Path:
    """A server's program; `ServerMissing` says how it is obtained."""
    path = cache_root() / PROGRAMS[name]
    if not path.exists():
        raise ServerMissing(f"{name} is missing: run `python -m tests.tools.store_servers {name}`")
    return path


def _moto(folder: Path) -> None:
    # An environment cannot be moved, so it is made where it stays; the program comes last.
    venv.create(folder, with_pip=True, clear=True)
    package = MOTO.replace("-", "[server]==", 1)
    _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", package)


PROGRAMS: Mapping[str, str] = {"moto": f"{MOTO}/bin/moto_server"}
_MAKERS: Mapping[str, Callable[[Path], None]] = {"moto": _moto}


def _run(*command: str | Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerMissing(str(error)) from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
        raise ServerMissing(f"`{' '.join(map(str, command))}` failed:\n{tail}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.store_servers", description=__doc__
    )
    parser.add_argument("name", nargs="*", help="of " + ", ".join(PROGRAMS) + "; default: all")
    failed = False
    for name in parser.parse_args(arguments).name or list(PROGRAMS):
        path = cache_root() / PROGRAMS[name]
        if path.exists():
            continue
        print(f"stores: {name} …", file=sys.stderr, flush=True)
        try:
            folder = cache_root() / Path(PROGRAMS[name]).parts[0]
            folder.parent.mkdir(parents=True, exist_ok=True)
            _MAKERS[name](folder)
        except ServerMissing as error:
            failed = True
            print(f"stores: {name} could not be obtained: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
