"""How the embedded Spark's JVM is started, and the archive of its classes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from compactord.engine.jvm import (
    ClassArchive,
    JvmCommand,
    cache_folder,
    jvm_command,
    starts_without_submit,
)
from compactord.errors import EngineUnavailable


@pytest.mark.parametrize(
    ("master", "settings", "alone"),
    [
        ("local", {}, True),
        ("local[4]", {"spark.driver.memory": "1g", "spark.executorEnv.A": "b"}, True),
        ("local[*, 2]", {"spark.app.name": "x"}, True),
        ("local-cluster[2,1,512]", {}, False),
        ("spark://head:7077", {}, False),
        ("local[2]", {"spark.jars": "/a.jar"}, False),
        ("local[2]", {"spark.driver.extraClassPath": "/a"}, False),
        ("local[2]", {"spark.plugins": "org.example.Plugin"}, False),
        ("local[2]", {"spark.ui.enabled": "true"}, False),
    ],
)
def test_settings_that_need_spark_submit_get_it(
    master: str, settings: dict[str, str], alone: bool
) -> None:
    assert starts_without_submit(master, settings) is alone


def test_the_class_path_has_what_is_needed_and_options_are_whole(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for name in ("spark-core_2.13-4.jar", "hive-exec-2.jar", "log4j-core-2.jar", "parquet-x.jar"):
        (tmp_path / "jars" / name).touch()
    settings = {
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": '-XX:+UseSerialGC "-Djava.io.tmpdir=/a b"',
    }
    command = jvm_command(Path("/j/bin/java"), tmp_path, settings)
    assert [jar.name for jar in command.jars] == ["log4j-core-2.jar", "spark-core_2.13-4.jar"]
    java, _, path, *_, heap, collector, folder, more, main = command.arguments("-Xshare:auto")
    assert (java, path) == ("/j/bin/java", os.pathsep.join(map(str, command.jars)))
    assert (heap, collector, folder) == ("-Xmx600m", "-XX:+UseSerialGC", "-Djava.io.tmpdir=/a b")
    assert (more, main.rpartition(".")[2]) == ("-Xshare:auto", "PythonGatewayServer")


def test_a_spark_without_jars_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=f"no Spark in {tmp_path}"):
        jvm_command(Path("/java"), tmp_path, {"spark.driver.memory": "1g"})


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/h"}, "/h/.cache/compactord/jvm"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/compactord/jvm"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "c"}, "/h/.cache/compactord/jvm"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_archives_are_in_the_user_s_cache(environment: dict[str, str], folder: str | None) -> None:
    assert cache_folder(environment) == (None if folder is None else Path(folder))


# A Java that makes an archive out of the list that it is given.
_JAVA = """\
#!/bin/sh
for argument do
  case "$argument" in
    -XX:SharedClassListFile=*) list=${argument#*=} ;;
    -XX:SharedArchiveFile=*) archive=${argument#*=} ;;
  esac
done
cp "$list" "$archive"
"""


def _command(folder: Path, *, heap: str = "600m") -> JvmCommand:
    java = folder / "java"
    java.write_text(_JAVA)
    java.chmod(0o755)
    (folder / "a.jar").write_text("jar")
    os.utime(folder / "a.jar", (1, 1))
    os.utime(java, (1, 1))
    options = (f"-Xmx{heap}", f"-Djava.io.tmpdir={folder}/of-this-start")
    return JvmCommand(java=java, jars=(folder / "a.jar",), options=options)


def _archive(folder: Path, *, java_version: int = 17, heap: str = "600m") -> ClassArchive:
    command = _command(folder, heap=heap)
    return ClassArchive(
        folder / "cache", command, java_version=java_version, list_in=folder / "scratch"
    )


def _made(archive: ClassArchive, scratch: Path) -> None:
    """The end of a JVM that listed its classes; what makes the archive from them has ended."""
    cache = scratch.parent / "cache"
    (scratch / "classes.txt").write_text("java/lang/Object id: 0\n")
    archive.make()
    until = time.monotonic() + 60
    while not archive.is_there or list(cache.glob("*.making")):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_first_start_lists_classes_and_the_next_uses_the_archive(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    first = _archive(tmp_path)
    assert not first.is_there
    assert first.options()[0] == f"-XX:DumpLoadedClassList={tmp_path}/scratch/classes.txt"
    _made(first, tmp_path / "scratch")
    (file,) = (tmp_path / "cache").glob("*.jsa")
    assert _archive(tmp_path).options()[0] == f"-XX:SharedArchiveFile={file}"
    assert file.stat().st_mode & 0o077 == 0
    # Another heap, or other jars: another archive.
    assert not _archive(tmp_path, heap="1g").is_there
    _archive(tmp_path).forget()
    assert not _archive(tmp_path).is_there


def test_only_a_few_archives_are_kept(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    for number in range(5):
        _made(_archive(tmp_path, heap=f"{600 + number}m"), tmp_path / "scratch")
    assert len(list((tmp_path / "cache").glob("*.jsa"))) == 3
    assert _archive(tmp_path, heap="604m").is_there


def test_one_process_makes_it_while_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    archive = _archive(tmp_path)
    name = Path(archive.options()[0]).name
    assert name == "classes.txt"
    _made(archive, tmp_path / "scratch")
    (file,) = (tmp_path / "cache").glob("*.jsa")
    archive.forget()
    making = file.with_suffix(".making")
    making.mkdir()
    archive.make()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [making.name]
    # One that was killed long ago is in nobody's way.
    os.utime(making, (1, 1))
    _made(archive, tmp_path / "scratch")


@pytest.mark.parametrize("why", ["old Java", "no folder", "others may write", "a file"])
def test_without_a_place_or_a_java_for_it_there_is_none(why: str, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    cache = tmp_path / "cache"
    if why == "others may write":
        cache.mkdir()
        cache.chmod(0o777)
    elif why == "a file":
        cache.touch()
    archive = ClassArchive(
        None if why == "no folder" else cache,
        _command(tmp_path),
        java_version=11 if why == "old Java" else 21,
        list_in=tmp_path / "scratch",
    )
    (tmp_path / "scratch" / "classes.txt").touch()
    assert archive.options() == ()
    archive.make()
    assert not archive.is_there
