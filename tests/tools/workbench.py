"""Builds a tool with the clients of the package registries.

Each client gets one exact version, and its result is compared with a checksum, so that a registry
cannot return anything else. Clients use the hosts in the configuration of the machine's owner.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import ssl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

SECONDS_MAX = 3600
TAIL_LINES = 20
_PYTHON_PROGRAM = """\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
PYTHONPATH=$here/packages
export PYTHONPATH
exec '{python}' -m {module} "$@"
"""


class ToolError(RuntimeError):
    """A tool is missing, or could not be obtained; the text names the tool and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """One tool in the making.

    `folder` becomes the tool's own on success. `scratch` is always deleted. `sources` and `objects`
    are Go's caches; they outlive a run that was stopped, so that the next one continues. `programs`
    belong to the tools that this one needs.
    """

    folder: Path
    scratch: Path
    sources: Path
    objects: Path
    programs: Mapping[str, Path]

    def run(
        self, *command: str | Path, environment: Mapping[str, str] | None = None, cwd: Path
    ) -> str:
        """Standard output of a command. Raises `ToolError` with the end of its output if it
        fails.
        """
        try:
            done = subprocess.run(
                command,
                # Go and npm leave temporary files when they are stopped.
                env={**os.environ, "TMPDIR": str(self.scratch), **(environment or {})},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ToolError(f"`{_shown(command)}` took over {SECONDS_MAX} s") from error
        except OSError as error:
            raise ToolError(f"`{_shown(command)}` does not start: {error}") from error
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-TAIL_LINES:])
            raise ToolError(f"`{_shown(command)}` gave exit code {done.returncode}:\n{tail}")
        return done.stdout

    def wheel(self, requirement: str, sha256: str) -> None:
        """Unpack a wheel of PyPI into the folder, without what it depends on."""
        wanted = self.scratch / "requirements.txt"
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        self.run(
            *pip,
            *("--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes"),
            *("--target", self.folder, "--requirement", wanted),
            cwd=self.scratch,
        )

    def python_packages(self, requirement: str, module: str, program: str) -> None:
        """Packages of PyPI with all they depend on, and a program that runs one of their modules.

        The newest of what they depend on: a server for tests is no part of the product.
        """
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        packages = self.folder / "packages"
        self.run(
            *pip, "--only-binary", ":all:", "--target", packages, requirement, cwd=self.scratch
        )
        start = self.folder / program
        # Not the Python of an environment, which is deleted with its checkout.
        python = os.path.realpath(sys.executable)
        start.write_text(_PYTHON_PROGRAM.format(python=python, module=module))
        start.chmod(0o755)

    def npm_packages(self, package: str) -> None:
        """A package of npm with all it depends on, in `node_modules`; no scripts are run."""
        self._npm("install", "--no-save", "--ignore-scripts", package, cwd=self.folder)

    def npm_package(self, package: str, sha512: str) -> Path:
        """Unpacked folder, inside the scratch, of a package of npm; its scripts are not run.

        `sha512` is base64, as a lock file of npm has it.
        """
        target = self.scratch / hashlib.sha256(package.encode()).hexdigest()[:8]
        target.mkdir()
        self._npm("pack", package, "--ignore-scripts", "--pack-destination", target, cwd=target)
        (archive,) = target.glob("*.tgz")
        digest = hashlib.sha512(archive.read_bytes()).digest()
        found = base64.b64encode(digest).decode()
        if found != sha512:
            raise ToolError(f"npm's {package} has sha512 {found}, expected {sha512}")
        self.unpack_tar(archive, target)
        return target / "package"

    def _npm(self, *arguments: str | Path, cwd: Path) -> None:
        node = self.programs["node"]
        npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        environment = {"npm_config_cache": str(self.scratch / "npm")}
        # Node trusts its own list of authorities, which lacks one that the machine's owner added.
        bundle = ssl.get_default_verify_paths().cafile
        if bundle and "NODE_EXTRA_CA_CERTS" not in os.environ:
            environment["NODE_EXTRA_CA_CERTS"] = bundle
        self.run(node, npm, *arguments, "--silent", environment=environment, cwd=cwd)

    def unpack_tar(self, archive: Path, target: Path) -> None:
        """Unpack as the current user: root would keep the owners in the archive."""
        tar = ("tar", "--extract", "--no-same-owner", "--no-same-permissions")
        self.run(*tar, "--file", archive, "--directory", target, cwd=target)

    def unpack_brotli(self, archive: Path, target: Path) -> None:
        """Python's library knows no Brotli, but Node's does."""
        script = (
            "const [from, to] = process.argv.slice(1);"
            "const fs = require('fs');"
            "const decoder = require('zlib').createBrotliDecompress({ chunkSize: 1 << 20 });"
            "require('stream').pipeline(fs.createReadStream(from), decoder,"
            " fs.createWriteStream(to), error => { if (error) throw error; });"
        )
        self.run(self.programs["node"], "-e", script, archive, target, cwd=self.scratch)

    def go_module(self, module: str, h1: str) -> Path:
        """Source of a Go module; `h1` is its checksum as a go.sum has it."""
        answer = json.loads(self.go("mod", "download", "-json", module, cwd=self.scratch))
        if answer["Sum"] != f"h1:{h1}":
            raise ToolError(f"Go module {module} is {answer['Sum']}, expected h1:{h1}")
        return Path(answer["Dir"])

    def go_build(
        self,
        source: Path,
        *packages: str,
        tags: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Build commands of a module into the folder, with values of variables of their packages.

        It happens inside the module, so that its own go.sum fixes all it depends on, by checksum.
        """
        linked = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in variables.items())])
        build = ("build", "-trimpath", "-buildvcs=false", f"-ldflags={linked}", f"-tags={tags}")
        self.go(*build, "-o", f"{self.folder}/", *packages, cwd=source)

    def go(self, *arguments: str, cwd: Path) -> str:
        """Standard output of the `go` command, which leaves nothing outside of the cache."""
        environment = {
            "CGO_ENABLED": "0",  # there may be no C compiler
            "GOCACHE": str(self.objects),
            "GOFLAGS": "-modcacherw",  # otherwise only root could remove it
            "GOMODCACHE": str(self.sources),
            "GOPATH": str(self.scratch / "go"),
            "GOTOOLCHAIN": "local",
            # A module may ship the workspace of its repository, whose other modules are not there.
            "GOWORK": "off",
        }
        return self.run(self.programs["go"], *arguments, environment=environment, cwd=cwd)


def _shown(command: tuple[str | Path, ...]) -> str:
    shown = shlex.join(map(str, command))
    return shown if len(shown) <= 300 else shown[:300] + " …"
