"""Which name nodes a location in HDFS means, by Hadoop's files, the environment and options."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.storage.hdfs.spec import HdfsSpec, default_fs, settings_of
from compactord.storage.open import STORES

_NODES = "dfs.ha.namenodes.lake"
_FIRST, _SECOND = (f"dfs.namenode.rpc-address.lake.nn{number}" for number in (1, 2))
_HA = {_NODES: "nn1, nn2", _FIRST: "a:8020", _SECOND: "b:8020"}


def _site(folder: Path, name: str = "hdfs-site.xml", **more: str) -> str:
    """A file of Hadoop's with two name nodes and more; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(
        f"<property>\n<name>{key}</name>\n<value> {value} </value>\n</property>"
        for key, value in {**_HA, **more}.items()
    )
    (folder / name).write_text(f"<?xml version='1.0'?>\n<configuration>{text}</configuration>")
    return str(folder)


def _spec(location: str, options: dict[str, str]) -> HdfsSpec:
    spec = STORES.located(location, options).spec
    assert isinstance(spec, HdfsSpec)
    return spec


@pytest.mark.parametrize(
    ("location", "options", "root", "path", "address"),
    [
        ("hdfs://node:9000/wh", {}, "hdfs://node:9000", "hdfs://node:9000/wh", "node:9000"),
        ("hdfs://node/wh/a/", {}, "hdfs://node", "hdfs://node/wh/a", "node:8020"),
        ("HDFS://node", {}, "hdfs://node", "hdfs://node", "node:8020"),
        ("hdfs://lake/wh", _HA, "hdfs://lake", "hdfs://lake/wh", "lake"),
        ("hdfs://other/wh", _HA, "hdfs://other", "hdfs://other/wh", "other:8020"),
    ],
)
def test_a_location_names_a_service_or_a_node(
    location: str, options: dict[str, str], root: str, path: str, address: str
) -> None:
    options = {f"hadoop.{key}": text for key, text in options.items()}
    found = STORES.located(location, options)
    spec = _spec(location, options)
    assert (spec.root, found.path, spec.address) == (root, path, f"hdfs://{address}")
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_what_is_read_later_counts_as_in_java(tmp_path: Path) -> None:
    home, given, named = tmp_path / "home", tmp_path / "given", tmp_path / "named"
    _site(home / "conf", **{_FIRST: "1:1"})
    environment, options = {"HADOOP_HOME": str(home)}, {}

    def first() -> str:
        return settings_of("lake", options, environment)[_FIRST]

    assert first() == "1:1"
    _site(home / "etc" / "hadoop", **{_FIRST: "2:2"})
    assert first() == "2:2"
    options["hadoop-conf-dir"] = _site(given, "core-site.xml", **{_FIRST: "3:3"})
    assert first() == "3:3"
    _site(given, **{_FIRST: "4:4"})
    assert first() == "4:4"
    environment["HADOOP_CONF_DIR"] = _site(named, **{_FIRST: "5:5"})
    assert first() == "5:5"
    options[_FIRST] = "6:6"
    assert first() == "6:6"


def test_a_spec_takes_along_what_a_worker_needs_and_nothing_else(tmp_path: Path) -> None:
    kept = {"dfs.replication": "2", "dfs.client.use.datanode.hostname": "true"}
    more = {**kept, "fs.s3a.secret.key": "hunter2", "dfs.blocksize": "1m"}
    options = {"hadoop-conf-dir": "${env:CONF}"}
    with pytest.raises(CatalogOptionInvalid, match=r"hadoop-conf-dir: .*CONF to be set"):
        _spec("hdfs://lake/wh", options)
    options = {"hadoop-conf-dir": _site(tmp_path, **more)}
    settings = dict(_spec("hdfs://lake/wh", options).settings)
    attempts = {"dfs.client.failover.max.attempts": "2"}
    assert settings == {**_HA, **attempts, _NODES: "nn1,nn2", **kept}


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    options = {"hadoop-conf-dir": _site(tmp_path)}
    before = _spec("hdfs://lake/wh", options)
    assert _spec("hdfs://lake/wh", options) == before
    _site(tmp_path, **{_FIRST: "elsewhere:8020"})
    assert _spec("hdfs://lake/wh", options) != before


@pytest.mark.parametrize(
    ("location", "options", "why"),
    [
        ("hdfs:///wh", {}, "a name service is missing, as in hdfs://service/warehouse"),
        ("hdfs:/wh", {}, "a name service is missing"),
        ("hdfs://lake/wh", {_NODES: "nn1"}, f"{_FIRST} is missing, though {_NODES} has nn1"),
        ("hdfs://lake/wh", {"hadoop-conf-dir": "/none"}, "core-site.xml or hdfs-site.xml"),
    ],
)
def test_what_leads_nowhere_is_refused(location: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        STORES.located(location, options)


def test_a_file_that_is_no_xml_is_named(tmp_path: Path) -> None:
    (tmp_path / "hdfs-site.xml").write_text("<configuration>")
    with pytest.raises(CatalogOptionInvalid, match=r"a folder with hdfs-site\.xml \(no element"):
        _spec("hdfs://lake/wh", {"hadoop-conf-dir": str(tmp_path)})


def test_options_without_an_effect_are_named() -> None:
    options = {
        "hadoop.dfs.replication": "2",
        "dfs.replicaton": "2",
        "hadoop.dfs.blocksize": "1m",
        "s3.endpoint": "e",
        **_HA,
    }
    assert STORES.without_effect("hdfs://lake/wh", options) == (
        "dfs.replicaton (did you mean dfs.replication?)",
        "hadoop.dfs.blocksize",
        "s3.endpoint",
    )
    assert STORES.without_effect("s3://b/wh", {"hadoop-conf-dir": "/x"}) == ("hadoop-conf-dir",)


def test_hive_s_default_store_is_that_of_the_first_core_site(tmp_path: Path) -> None:
    given = _site(tmp_path / "a", "core-site.xml", **{"fs.defaultFS": "hdfs://a"})
    named = _site(tmp_path / "b", "core-site.xml", **{"fs.defaultFS": "hdfs://b"})
    assert default_fs({}, {}) == ""
    assert default_fs({}, {"HADOOP_CONF_DIR": named}) == "hdfs://b"
    assert default_fs({"hadoop-conf-dir": given}, {"HADOOP_CONF_DIR": named}) == "hdfs://a"
