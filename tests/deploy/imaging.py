"""Builds the image of a Dockerfile without a container engine, and runs containers of it.

As a container engine does: each step is a layer of an overlay file system, kept under a name that
says what went into it. Debian's base comes from debootstrap. Needs root, and namespaces.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.dockerfile import Copy, Run, Stage, read_dockerfile

CONTEXT = Path(__file__).parent.parent.parent
BASE = "debian:bookworm-slim"
SECONDS_MAX = 1500
# How this machine reaches the package registries.
_OF_NETWORK = ("PIP_CERT", "PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")
_CERTIFICATES = "/etc/ssl/certs"


@dataclass(frozen=True, slots=True)
class Image:
    """Layers from the lowest to the highest; `stage` holds the settings of its containers."""

    layers: tuple[Path, ...]
    stage: Stage


def why_not_here(cache: Path) -> str | None:
    """What this machine lacks to build images; None when it lacks nothing."""
    if os.geteuid() != 0:
        return "it needs root"
    if shutil.which("debootstrap") is None:
        return "debootstrap is not installed: apt-get install debootstrap"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        lower, upper, work, merged = (Path(folder, name) for name in "luwm")
        for path in (lower, upper, work, merged):
            path.mkdir()
        mount = f"mount -t overlay overlay -o {_overlay((lower,), upper, work)} {merged}"
        tried = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", mount],
            capture_output=True,
            text=True,
            check=False,
        )
    return tried.stderr.strip() if tried.returncode else None


def build(context: Path, cache: Path, arguments: Mapping[str, str]) -> Image:
    """The image of `context`'s Dockerfile; steps that were made before are taken from the cache.

    Layers that this image does not need are removed. Two builds at a time take turns.
    """
    layers_root = cache / "layers"
    layers_root.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(context, cache, layers_root, arguments)


def _build(context: Path, cache: Path, layers_root: Path, arguments: Mapping[str, str]) -> Image:
    used: set[Path] = set()
    images: dict[str, Image] = {}
    for stage in read_dockerfile(context / "Dockerfile", arguments):
        layers: tuple[Path, ...] = (_base(stage.base, layers_root),)
        for step in stage.steps:
            key = hashlib.sha256(f"{layers[-1].name} {_said(step, context, images)}".encode())
            layer = layers_root / key.hexdigest()[:16]
            if not layer.exists():
                _make_layer(step, layers, layer, context=context, images=images, cache=cache)
            layers = (*layers, layer)
        used.update(layers)
        images[stage.name] = Image(layers, stage)
    for leftover in set(layers_root.iterdir()) - used:
        shutil.rmtree(leftover)
    return images[""]


def container(
    image: Image,
    arguments: Sequence[str],
    *,
    volumes: Mapping[str, Path] | None = None,
    environment: Mapping[str, str] | None = None,
    entrypoint: Sequence[str] | None = None,
) -> list[str]:
    """The command that runs a container as Kubernetes would run it with our chart.

    Its root is read-only, what the image declares as volumes is empty and writable, the user is the
    image's and can gain no rights, and its first program is process 1 of a PID namespace. It shares
    the network with this machine. `volumes` maps places in it to folders that are mounted there,
    writable.
    """
    stage = image.stage
    root = "/mnt"
    mounted = volumes or {}
    script = [
        "set -e",
        # A layer of the container's own, as an engine makes it: names, and places to mount at.
        f"mount -t tmpfs -o mode=755 tmpfs {root}",
        f"mkdir -p {root}/etc {' '.join(f'{root}{path}' for path in mounted)}",
        f"cp /etc/hosts /etc/resolv.conf {root}/etc",
        f"mount -t overlay overlay -o {_overlay((*image.layers, Path(root)))} {root}",
        *_system_mounts(root),
        *(f"mount -t tmpfs -o mode=1777 tmpfs {root}{path}" for path in stage.volumes),
        *(f"mount --bind {folder} {root}{path}" for path, folder in mounted.items()),
    ]
    variables = {**stage.environment, **(environment or {})}
    first = [*(stage.entrypoint if entrypoint is None else entrypoint), *arguments]
    start = ["chroot", f"--userspec={stage.user}", "--groups=", root, "/usr/bin/env", "-i"]
    start += [f"--chdir={stage.workdir}", *(f"{k}={v}" for k, v in variables.items()), *first]
    script.append(
        f"exec setpriv --no-new-privs --bounding-set=-all,+setuid,+setgid,+sys_chroot "
        f"{shlex.join(start)}"
    )
    return [*_NAMESPACES, "sh", "-c", "\n".join(script)]


_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private")


def _base(image: str, layers_root: Path) -> Path:
    if image != BASE:
        raise ValueError(f"only {BASE} can be had without a container engine, not {image}")
    layer = layers_root / "base-bookworm"
    if not layer.exists():
        partial = Path(tempfile.mkdtemp(dir=layers_root, prefix="partial-"))
        partial.chmod(0o755)
        _checked(["debootstrap", "--variant=minbase", "bookworm", str(partial)])
        partial.rename(layer)
    return layer


def _said(step: Run | Copy, context: Path, images: Mapping[str, Image]) -> str:
    """All that a step's outcome depends on, but for what the registries answer."""
    if isinstance(step, Run):
        return repr(step)
    if step.stage is not None:
        return f"{step!r} {images[step.stage].layers[-1].name}"
    digest = hashlib.sha256()
    for source in step.sources:
        for path in sorted((context / source).rglob("*")) or [context / source]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(context)}\0".encode() + path.read_bytes())
    return f"{step!r} {digest.hexdigest()}"


def _make_layer(
    step: Run | Copy,
    below: tuple[Path, ...],
    layer: Path,
    *,
    context: Path,
    images: Mapping[str, Image],
    cache: Path,
) -> None:
    work = Path(tempfile.mkdtemp(dir=layer.parent, prefix="partial-"))
    upper = work / "upper"
    for folder in (upper, work / "work"):
        folder.mkdir()
    script = ["set -e", f"mount -t overlay overlay -o {_overlay(below, upper, work / 'work')} /mnt"]
    script += _run(step, cache) if isinstance(step, Run) else _copied(step, context, images, work)
    _checked([*_NAMESPACES, "sh", "-c", "\n".join(script)])
    upper.rename(layer)
    shutil.rmtree(work)


def _run(step: Run, cache: Path) -> list[str]:
    script = [*_system_mounts("/mnt"), "mount -t tmpfs tmpfs /mnt/tmp"]
    for target in step.caches:
        kept = cache / "mounts" / target.strip("/").replace("/", "-")
        kept.mkdir(parents=True, exist_ok=True)
        script += [f"mkdir -p /mnt{target}", f"mount --bind {kept} /mnt{target}"]
    # The certificates and names that this machine trusts; they stay out of the layer.
    script += [
        "touch /mnt/etc/resolv.conf && mount --bind /etc/resolv.conf /mnt/etc/resolv.conf",
        f"mkdir -p /mnt/run/certificates && mount --bind {_CERTIFICATES} /mnt/run/certificates",
    ]
    network = {name: os.environ[name] for name in _OF_NETWORK if name in os.environ}
    if "PIP_CERT" in network:
        network["PIP_CERT"] = network["PIP_CERT"].replace(_CERTIFICATES, "/run/certificates")
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **network}
    variables |= {"DEBIAN_FRONTEND": "noninteractive", **step.environment}
    command = ["chroot", "/mnt", "/usr/bin/env", "-i", *(f"{k}={v}" for k, v in variables.items())]
    script.append(shlex.join([*command, "/bin/sh", "-c", step.command]))
    return script


def _copied(step: Copy, context: Path, images: Mapping[str, Image], work: Path) -> list[str]:
    """A folder's content is copied into the target, files into or as the target."""
    script = []
    origin = context
    if step.stage is not None:
        origin = work / "from"
        origin.mkdir()
        script.append(f"mount -t overlay overlay -o {_overlay(images[step.stage].layers)} {origin}")
    target = f"/mnt{step.target}"
    is_folder = step.target.endswith("/")
    script.append(f"mkdir -p {target if is_folder else Path(target).parent}")
    for source in step.sources:
        path = f"{origin}/{source.strip('/')}"
        # Python's caches of this machine are kept out, as .dockerignore does.
        copy = f"tar -C {path} --exclude=__pycache__ -cf - . | tar -C {target} -xpf -"
        script.append(
            f"if [ -d {path} ]; then mkdir -p {target} && {copy}; else cp -p {path} {target}; fi"
        )
        if step.mode is not None:
            script.append(f"chmod {step.mode:o} {target}")
    if step.stage is None:
        script.append(f"chown -R 0:0 {target}")
    else:
        script.append(f"umount {origin}")
    return script


def _system_mounts(root: str) -> list[str]:
    return [
        f"mount -t proc proc {root}/proc",
        f"mount -t tmpfs -o mode=755 tmpfs {root}/dev",
        *(
            f"touch {root}/dev/{name} && mount --bind /dev/{name} {root}/dev/{name}"
            for name in ("null", "zero", "full", "random", "urandom", "tty")
        ),
        f"ln -s /proc/self/fd {root}/dev/fd && mkdir -m 1777 {root}/dev/shm",
    ]


def _overlay(layers: Sequence[Path], upper: Path | None = None, work: Path | None = None) -> str:
    # The highest comes first.
    options = "lowerdir=" + ":".join(str(layer) for layer in reversed(layers))
    if upper is not None:
        options += f",upperdir={upper},workdir={work}"
    return options


def _checked(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise RuntimeError(f"a step of the image gave exit code {done.returncode}:\n{tail}")
