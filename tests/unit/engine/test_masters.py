from __future__ import annotations

import pytest

from compactord.engine.kinds import check_engine
from compactord.engine.masters import shown_master
from compactord.errors import UsageError

SECRET = "s3same-wJalrXUtnFEMI"


@pytest.mark.parametrize(
    "master",
    [
        None,
        "local",
        "local[1]",
        "local[*]",
        "local[4,2]",
        "local[*, 2]",
        "local-cluster[1,2,1024]",
        "spark://head:7077",
        "spark://a:7077,b:7077",
        "spark://[::1]:7077",
        "yarn",
        "k8s://https://host:6443",
        "k8s://host",
        "sc://host",
        "sc://host:15002/;token=x",
        "mesos://host:5050",
    ],
)
def test_masters_that_spark_can_mean_pass(master: str | None) -> None:
    check_engine(master, {"spark.executor.memory": "1g"})


@pytest.mark.parametrize(
    "master",
    [
        "",
        " ",
        "foo",
        "local[0]",
        "local[x]",
        "local[-1]",
        "local[",
        "local[2]x",
        "local[1,0]",
        "localhost",
        "spark://",
        "spark://head",
        "spark:head:7077",
        "sc://",
        "sc://:15002",
        "k8s://",
        "yarn-client",
        "SPARK://head:7077",
        "plugin://whatever",
    ],
)
def test_masters_that_no_spark_can_mean_are_refused(master: str) -> None:
    with pytest.raises(UsageError, match=r"--master .* is not a Spark master; expected local"):
        check_engine(master, {})


@pytest.mark.parametrize(
    ("master", "setting", "instead"),
    [
        (None, "spark.master", "give the master by itself"),
        ("spark://head:7077", "spark.master", "give the master by itself"),
        (None, "spark.remote", "as the master, sc://"),
        (None, "spark.pyspark.python", "start compactord with that one"),
        ("local[2]", "spark.pyspark.python", "start compactord with that one"),
        ("spark://head:7077", "spark.pyspark.driver.python", "start compactord with that Python"),
        (None, "executor.memory", "begin with 'spark.'"),
    ],
)
def test_settings_of_no_effect_are_refused_with_what_to_do_instead(
    master: str | None, setting: str, instead: str
) -> None:
    with pytest.raises(UsageError, match=instead):
        check_engine(master, {setting: "x"})


def test_workers_of_a_cluster_may_have_another_python() -> None:
    check_engine("spark://head:7077", {"spark.pyspark.python": "/opt/python"})


@pytest.mark.parametrize(
    ("master", "shown"),
    [
        ("local[2]", "local[2]"),
        ("spark://a:7077,b:7077", "spark://a:7077,b:7077"),
        ("k8s://https://host:6443", "k8s://https://host:6443"),
        (f"k8s://https://me:{SECRET}@host:6443", "k8s://https://***@host:6443"),
        ("sc://head:15002", "sc://head:15002"),
        (f"sc://head:15002/;token={SECRET}", "sc://head:15002/;***"),
        (f"sc://head/;use_ssl=true;x-own-header=a {SECRET}", "sc://head/;***"),
        (f"sc://head;token=a@{SECRET}", "sc://head;***"),
        (f"sc://me:{SECRET}@head", "sc://***@head"),
    ],
)
def test_a_master_is_shown_without_what_gives_access(master: str, shown: str) -> None:
    assert shown_master(master) == shown


@pytest.mark.parametrize(
    "master", ["SC://head/;token={}", "sc:/head;x-own-header={} {}", "x token={}"]
)
def test_a_master_that_is_refused_is_quoted_without_secrets(master: str) -> None:
    with pytest.raises(UsageError, match="not a Spark master") as raised:
        check_engine(master.format(SECRET, SECRET), {})
    assert SECRET not in str(raised.value)
