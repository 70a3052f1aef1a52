from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.engine.jvm import submit_arguments


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _submitted(folder: Path, given: str, defaults: Path | None = None) -> tuple[list[str], str]:
    """The arguments behind the file, and what is in it before our settings."""
    file = folder / "ours"
    first, name, *rest = submit_arguments(
        file, {"spark.ours": "a b"}, given=given, defaults=defaults
    )
    assert (first, name) == ("--properties-file", str(file))
    before, _, ours = file.read_text().rpartition("\n\n")
    assert ours == "spark.ours=a\\u0020b\n"
    least, _, theirs = before.partition("\n")
    assert least.startswith("spark.redaction.regex=")
    return rest, theirs


def test_only_its_owner_can_read_the_file_whatever_the_umask_is(tmp_path: Path) -> None:
    _submitted(tmp_path, "pyspark-shell")
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o600


def test_a_file_that_somebody_else_has_put_there_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "ours").touch(0o666)
    with pytest.raises(FileExistsError):
        _submitted(tmp_path, "pyspark-shell")
    assert (tmp_path / "ours").read_bytes() == b""


@pytest.mark.parametrize(
    ("given", "arguments", "theirs"),
    [
        ("pyspark-shell", ["pyspark-shell"], "spark.a 1\\"),
        ("--conf 'spark.b=1 2' x", ["--conf", "spark.b=1 2", "x"], "spark.a 1\\"),
        ("--properties-file {} x", ["x"], "spark.other 1"),
        ("--verbose --properties-file={} x", ["--verbose", "x"], "spark.other 1"),
    ],
)
def test_what_the_user_gave_to_spark_submit_holds(
    tmp_path: Path, given: str, arguments: list[str], theirs: str
) -> None:
    defaults, other = tmp_path / "defaults", tmp_path / "other"
    defaults.write_text("spark.a 1\\")
    other.write_text("spark.other 1")
    assert _submitted(tmp_path, given.format(other), defaults) == (arguments, theirs)


def test_there_need_be_no_defaults_but_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    assert _submitted(tmp_path, "x", tmp_path / "none") == (["x"], "")
    with pytest.raises(FileNotFoundError):
        submit_arguments(
            tmp_path / "new", {}, given=f"--properties-file {tmp_path}/none x", defaults=None
        )
