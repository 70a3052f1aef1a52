"""Containers of the image, or the nearest thing to them that a machine allows.

The image proper needs root, debootstrap and overlay mounts. Without them what remains to be proved
is that the packages of requirements/, and nothing else, make a `compactord` that works.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from compactord.engine.jvm import find_java
from tests.deploy import imaging
from tests.deploy.rendering import ROOT
from tests.spark.remote import descendants

# As uid and gid in the image, and so the owner of volumes.
USER = 10001


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """`image` is None where there is only the packages' environment."""

    image: imaging.Image | None
    _command: Callable[[Sequence[str], Path, Path | None, Mapping[str, str]], list[str]]

    @classmethod
    def of_image(cls, image: imaging.Image) -> Containers:
        def command(
            arguments: Sequence[str],
            data: Path,
            config: Path | None,
            environment: Mapping[str, str],
        ) -> list[str]:
            volumes = {"/srv": data}
            if config is not None:
                volumes["/etc/compactord"] = config
            return imaging.container(image, arguments, volumes=volumes, environment=environment)

        return cls(image=image, _command=command)

    @classmethod
    def of_packages(cls, cache: Path) -> Containers:
        python = _locked_packages(cache)
        entrypoint = ROOT / "deploy" / "image" / "entrypoint.py"
        java = find_java(pyspark.__version__, os.environ, cache)

        def command(
            arguments: Sequence[str],
            data: Path,
            config: Path | None,
            environment: Mapping[str, str],
        ) -> list[str]:
            variables = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment}
            variables |= {"TMPDIR": tempfile.gettempdir(), "JAVA_HOME": str(java.home)}
            words = [word.replace("/srv", str(data)) for word in arguments]
            if config is not None:
                words = [word.replace("/etc/compactord", str(config)) for word in words]
            set_to = [f"{name}={value}" for name, value in variables.items()]
            return ["/usr/bin/env", "-i", *set_to, str(python), str(entrypoint), *words]

        return cls(image=None, _command=command)

    def start(
        self,
        *arguments: str,
        data: Path,
        config: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """A container in which the folder `data` is /srv and `config` is /etc/compactord.

        Its first program leads a session of its own; `first_program` finds it.
        """
        if self.image is not None:
            _give_away(data)
        return subprocess.Popen(
            self._command(arguments, data, config, environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, data=data) as process:
            out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def run_python(self, program: str, data: Path) -> subprocess.CompletedProcess[str]:
        """Instead of compactord a program in the image's Python; only of the image itself."""
        assert self.image is not None, "there is an image"
        return subprocess.run(
            imaging.container(
                self.image,
                ["-c", program],
                volumes={"/srv": data},
                entrypoint=["/opt/compactord/bin/python"],
            ),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def first_program(self, process: subprocess.Popen[str]) -> int:
        """What a kubelet would send signals to: process 1 of the container."""
        if self.image is None:
            return process.pid
        # `unshare` stays outside; its only child is inside.
        children = [
            pid
            for pid in descendants(process.pid)
            if Path(f"/proc/{pid}/status").read_text().split("PPid:\t")[1].split()[0]
            == str(process.pid)
        ]
        (first,) = children
        return first


def _give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)


def _locked_packages(cache: Path) -> Path:
    """A Python with exactly the locked packages and this compactord, nothing of ours else."""
    locks = [ROOT / "requirements" / name for name in ("build.txt", "runtime.txt")]
    folder = cache / f"packages-{_digest(locks)}"
    python = folder / "bin" / "python"
    pip = (str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    # There once all packages are; it names the compactord beside them, if that one is whole.
    installed = folder / ".compactord"
    if not installed.exists():
        for old in cache.glob("packages-*"):
            shutil.rmtree(old)
        # Its scripts name the folder, so it is made where it stays.
        _checked(sys.executable, "-m", "venv", str(folder))
        for path in locks:
            _checked(*pip, "--require-hashes", "--requirement", str(path))
        installed.touch()
    sources = [ROOT / "pyproject.toml"]
    sources += sorted(
        path
        for path in (ROOT / "compactord").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    if installed.read_text() != (ours := _digest(sources)):
        installed.write_text("")
        with tempfile.TemporaryDirectory() as copy:
            # Its build leaves folders in the sources.
            for name in ("pyproject.toml", "README.md"):
                shutil.copy(ROOT / name, copy)
            shutil.copytree(ROOT / "compactord", Path(copy, "compactord"))
            _checked(*pip, "--no-index", "--force-reinstall", copy)
        installed.write_text(ours)
    return python


def _digest(paths: Sequence[Path]) -> str:
    """Of this Python and the files' names and contents."""
    key = hashlib.sha256(sys.version.encode())
    for path in paths:
        key.update(str(path).encode())
        key.update(path.read_bytes())
    return key.hexdigest()[:16]


def _checked(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} gave {done.returncode}:\n{done.stderr[-3000:]}")
