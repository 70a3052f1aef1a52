"""Images without a container engine, as the archives that containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.settings import REGISTRY
from tests.deploy.imaging import Image
from tests.tools.obtain import tool_path

PAUSE = f"{REGISTRY}/pause:1"


def name_of(image: Image) -> str:
    """Says what is in it: the highest layer's name depends on all below it."""
    return f"{REGISTRY}/compactord:{image.layers[-1].name}"


def pack_pause(target: Path) -> None:
    """The image of pods' first program."""
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(tool_path("pause"), "pause")
    _pack(target, PAUSE, layer, {"Entrypoint": ["/pause"], "User": "65535:65535"})


def pack(image: Image, target: Path) -> None:
    """The project's image; takes as much disk as its files, twice."""
    layer = target.with_suffix(".layer")
    lower = ":".join(str(path) for path in reversed(image.layers))
    script = (
        f"mount -t overlay overlay -o lowerdir={lower} /mnt "
        f"&& tar -C /mnt --numeric-owner -cf {layer} ."
    )
    subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True)
    stage = image.stage
    settings = {
        "User": stage.user,
        "Env": [f"{name}={value}" for name, value in stage.environment.items()],
        "Entrypoint": list(stage.entrypoint),
        "Cmd": list(stage.command),
        "WorkingDir": stage.workdir,
        "Volumes": {path: {} for path in stage.volumes},
        "Labels": dict(stage.labels),
        "StopSignal": "SIGTERM",
    }
    _pack(target, name_of(image), layer, settings)


def _pack(target: Path, name: str, layer: Path, settings: Mapping[str, Any]) -> None:
    """An archive of one layer, whose file is removed."""
    with layer.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as tar:
        for member, content in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(layer, "layer.tar")
    layer.unlink()
