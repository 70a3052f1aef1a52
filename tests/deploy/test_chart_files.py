"""The chart's files: values that it refuses, what it is made of, what is made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import compactord
from tests.deploy.rendered import EVERYTHING, LOCAL, Object
from tests.deploy.rendering import CHART, ROOT, chart_files, helm, manifests, objects, template

# -- wrong values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imag.tag=1"], "additional properties 'imag' not allowed"),
        (["image.tagg=1"], "additional properties 'tagg' not allowed"),
        (["config.limits.task_slot=1"], "additional properties 'task_slot' not allowed"),
        (["config.limits.task_slots=0"], "/config/limits/task_slots"),
        (["config.defaults.expire_snapshots=false"], "/config/defaults/expire_snapshots"),
        (["config.catalogs=null"], "/config/catalogs"),
        (["config.shutdown.grace=soon"], "/config/shutdown/grace"),
        (["config.shutdown.grace=300"], "/config/shutdown/grace"),
        (["config.shutdown.grace=2 d"], "is no duration with its unit, such as 300 s"),
        (["config.service.http.port=0"], "probes need a certain one"),
        (["config.service.http.bind=127.0.0.1"], "cannot be reached by probes"),
        (["config.catalogs.lake.warehouse=viewfs://name/wh"], "is not supported yet"),
        (
            [r"config.catalogs.lake.options.s3\.secret-key=hunter2"],
            "do not put a secret into a ConfigMap; write ${file:/run/secrets/compactord/NAME}",
        ),
        (
            [
                "executors.enabled=true",
                r"config.catalogs.lake.options.s3\.secret-key=${file:/run/secrets/compactord/k}",
            ],
            "set executors.existingSecret",
        ),
        (
            ["executors.enabled=true", r"config.catalogs.lake.options.s3\.secret-key=${env:K}"],
            "set executors.extraEnv or executors.extraEnvFrom",
        ),
        (["executors.enabled=true", "config.spark.master=spark://x:7077"], "exclude each other"),
        (["serviceMonitor.enabled=true", "podMonitor.enabled=true"], "exclude each other"),
        (["executors.conf.hadoop=1"], "/executors/conf"),
        (
            ["executors.enabled=true", r"executors.conf.spark\.executor\.cores=8"],
            "is set by executors.cores",
        ),
        (
            ["executors.enabled=true", r"config.spark.conf.spark\.executor\.instances=8"],
            "is set by executors.instances",
        ),
        (["executors.cpuLimit=two"], "/executors/cpuLimit"),
        (["service.port=70000"], "/service/port"),
        (["image.registry="], "image.registry: give the registry that you pushed the image to"),
        (["image.registry=null"], "missing property 'registry'"),
        (["image.registry=oci://registry.example.com/"], "/image/registry"),
        (["configReload=sometimes"], "/configReload"),
        (["prometheusRule.runbookBaseUrl=https://x.example.com"], "/prometheusRule/runbookBaseUrl"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_values_are_refused_with_their_place(arguments: list[str], message: str) -> None:
    sets = [word for argument in arguments for word in ("--set", argument)]
    with pytest.raises(ValueError, match=re.escape(message)):
        template(LOCAL, *sets)


@pytest.mark.parametrize("name", ["9lives", "a.b.c", "compactord.prod"])
def test_a_release_whose_service_would_be_refused_is_refused_before(name: str) -> None:
    with pytest.raises(ValueError, match=rf"would be named {name}.*: set fullnameOverride to a"):
        template(LOCAL, release_name=name)
    with pytest.raises(ValueError, match="would be named 9x"):
        template(LOCAL, "--set", "fullnameOverride=9x", release_name=name)
    rendered = template(LOCAL, "--set", "fullnameOverride=lives", release_name=name)
    assert {o["metadata"]["name"] for o in objects(rendered)} == {"lives", "lives-test"}


def test_values_without_a_catalog_are_refused() -> None:
    done = helm("template", "x", CHART)
    assert "missing property 'catalogs'" in done.stderr


# -- files that are made


@pytest.mark.parametrize(
    ("path", "text"), chart_files().items(), ids=lambda value: getattr(value, "name", "")
)
def test_a_made_file_of_the_chart_is_what_would_be_made_now(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make manifests`"


@pytest.mark.parametrize("name", ["local-on-volume.yaml", "spark-on-kubernetes.yaml"])
def test_a_plain_manifest_is_what_would_be_made_now(name: str) -> None:
    texts = {path.name: text for path, text in manifests().items()}
    assert (ROOT / "deploy" / "kubernetes" / name).read_text() == texts[name], (
        "run `make manifests`"
    )
    assert "helm" not in re.sub(r"^#.*$", "", texts[name], flags=re.MULTILINE).lower()
    assert {path.name for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml")} == texts.keys()


def test_the_schema_and_the_values_have_the_same_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert _schema_keys(schema, schema["$defs"]) - {"global"} == _value_keys(values)


def _schema_keys(schema: Object, definitions: Object) -> set[str]:
    found = set()
    for name, part in schema["properties"].items():
        found.add(name)
        reference = part.get("$ref", "").removeprefix("#/$defs/")
        part = definitions.get(reference, part)
        if reference != "config" and "properties" in part:
            found |= {f"{name}.{key}" for key in _schema_keys(part, definitions)}
    return found


def _value_keys(values: Object) -> set[str]:
    # What is Kubernetes' own is passed on, whatever its keys.
    passed_on = {"podSecurityContext", "securityContext", "requests", "limits", "labels"}
    found = set()
    for name, value in values.items():
        found.add(name)
        if isinstance(value, dict) and name not in passed_on:
            found |= {f"{name}.{key}" for key in _value_keys(value)}
    return found


def test_every_value_is_explained() -> None:
    rows = set(re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    leaves = {
        key
        for key in _value_keys(values)
        if not any(other.startswith(f"{key}.") for other in _value_keys(values))
    }
    # Kubernetes' own words, under the comment of their section.
    known = {"periodSeconds", "timeoutSeconds", "failureThreshold"}
    assert {key for key in leaves - rows if key.rsplit(".", 1)[-1] not in known} == set()


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (compactord.__version__,) * 2


def test_a_packaged_chart_is_whole(tmp_path: Path) -> None:
    done = helm("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    from_package = helm("template", "x", package, "--values", EVERYTHING)
    from_folder = helm("template", "x", CHART, "--values", EVERYTHING)
    assert from_package.stdout == from_folder.stdout
    assert "CompactordDown" in from_package.stdout


def test_the_chart_is_installed_everywhere_with_a_registry() -> None:
    """Otherwise nodes would look for the image at a registry that does not have it."""
    root = CHART.parent.parent
    pages = [root / "README.md", root / "docs" / "operations.md", CHART / "README.md"]
    found = re.findall(r"helm install (?:.*\\\n)*.*", "\n".join(page.read_text() for page in pages))
    assert len(found) == 2
    for command in found:
        assert "--set image.registry=" in command
        sets = re.findall(r"--set (\S+)", command)
        words = [word for each in sets for word in ("--set", each)]
        assert helm("template", "x", CHART, *words).returncode == 0
