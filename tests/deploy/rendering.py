"""What is made from other files of this repository, and kept in it: `make manifests`.

The chart's schema takes in that of the configuration, the chart holds copies of the alerts and of
the dashboard (a packaged chart is on its own), and deploy/kubernetes/ is the chart rendered.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from compactord.config.load import json_schema
from tests.tools.obtain import tool_path

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "helm" / "compactord"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
_COPIES = {
    "files/compactord.rules.yaml": "deploy/prometheus/compactord.rules.yaml",
    "files/compactord.json": "deploy/grafana/compactord.json",
}
# Plain manifests and the values that they come from.
_MANIFESTS = {
    "local-on-volume.yaml": "local-on-volume-values.yaml",
    "spark-on-kubernetes.yaml": "spark-on-kubernetes-values.yaml",
}
_OF_HELM = re.compile(r"^ +(?:helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)
_KEY = re.compile(r" *(\w+):(?: .*)?")
_README = """\
# Chart compactord

Runs `compactord serve` for write-only ingestion jobs: one pod compacts the Paimon tables of a
warehouse, with a Spark inside it or with executor pods. `make manifests` generates this page from
`values.yaml`. `docs/operations.md` explains sizing, upgrades and stopping.

```
helm install compactord helm/compactord --namespace compactord --create-namespace \\
  --set image.registry=registry.example.com --set warehouse.existingClaim=my-warehouse \\
  --set config.catalogs.lake.warehouse=/warehouse
helm test compactord --namespace compactord
```

Build the image from the repository's `Dockerfile` and push it to your registry.

Objects are called RELEASE-compactord, or RELEASE if that contains the word. A name that a Service
must not have, such as `9lives` or `a.b`, is refused: set `fullnameOverride`.

The files in `ci/` are complete examples. Errors in values, including wrong keys of `config`, are
reported before the installation.

| key | default | meaning |
|---|---|---|
{rows}
"""


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Helm's answer; it reads and writes no file of the user's."""
    return subprocess.run(
        [tool_path("helm"), *arguments],
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def template(values: Path, *arguments: str, release_name: str = "compactord") -> str:
    """The chart rendered for namespace `compactord`."""
    release = (release_name, CHART, "--namespace", "compactord", "--values", values)
    done = helm("template", *release, *arguments)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def objects(rendered: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(rendered) if found]


def values_schema(written: Mapping[str, Any]) -> dict[str, Any]:
    """The chart's own part as it is written, and below `config` the configuration's schema.

    Helm reads draft 7, whose references may point to `$defs` as well.
    """
    config = json_schema()
    definitions = {f"config.{name}": part for name, part in config.pop("$defs").items()}
    config.pop("$schema")
    definitions["config"] = config
    renamed = json.loads(
        json.dumps(definitions).replace('"#/$defs/', '"#/$defs/config.'),
    )
    own = {
        name: part
        for name, part in written["$defs"].items()
        if name != "config" and not name.startswith("config.")
    }
    return {**written, "$defs": {**own, **renamed}}


def chart_readme(values: str) -> str:
    """The chart's page, with a row for every key; the comment above a key says what it is."""
    rows: list[str] = []
    comment = ""
    path: list[str] = []
    tree = yaml.safe_load(values)
    for line in values.splitlines():
        text = line.strip()
        if text.startswith("# "):
            comment = f"{comment} {text[2:]}".strip()
            continue
        if found := _KEY.fullmatch(line):
            path = [*path[: (len(line) - len(text)) // 2], found[1]]
            if comment:
                # A section has no value of its own to show.
                shown = "" if text.endswith(":") else f"`{json.dumps(_at(tree, path))}`"
                rows.append(f"| `{'.'.join(path)}` | {shown} | {_cell(comment)} |")
        comment = ""
    return _README.format(rows="\n".join(rows))


def _at(tree: Any, path: Sequence[str]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _cell(comment: str) -> str:
    return comment.replace("|", "\\|").replace("<", "&lt;")


def chart_files() -> dict[Path, str]:
    """Files of the chart that are made, and what they have to hold."""
    schema = CHART / "values.schema.json"
    texts = {schema: json.dumps(values_schema(json.loads(schema.read_text())), indent=2) + "\n"}
    texts[CHART / "README.md"] = chart_readme((CHART / "values.yaml").read_text())
    for copy, original in _COPIES.items():
        texts[CHART / copy] = (ROOT / original).read_text()
    return texts


def manifests() -> dict[Path, str]:
    """Plain manifests, made from the chart as it is."""
    return {
        ROOT / "deploy" / "kubernetes" / name: _manifest(CHART / "ci" / values)
        for name, values in _MANIFESTS.items()
    }


def _manifest(values: Path) -> str:
    head = (
        "# Made by `make manifests` from helm/compactord and its "
        f"ci/{values.name}: edit those.\n"
        "# Put your registry in the place of registry.example.com. Without Helm:\n"
        "#   kubectl create namespace compactord && kubectl apply --filename FILE\n"
    )
    return head + _OF_HELM.sub("", template(values, "--skip-tests"))


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(
        prog="python -m tests.deploy.rendering", description=__doc__
    ).parse_args(arguments)
    for make in (chart_files, manifests):
        for path, text in make().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
