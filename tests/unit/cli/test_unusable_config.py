"""Configurations that `serve` cannot use: it ends at once and names what is wrong."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from compactord.cli.command import main


def _ends(folder: Path, text: str) -> int:
    (folder / "compactord.yaml").write_text(text)
    return main(["serve", "--config", str(folder / "compactord.yaml")])


def test_all_problems_of_a_configuration_are_said_at_once_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
catalogs:
  lake:
    warehous: /nowhere
service:
  http: {port: 99999}
retry: {task_attempts: 0}
shutdown: {grace: 10 s, commit_reserve: 20 s}
"""
    monkeypatch.setenv("COMPACTORD__LOG__LEVEL", "loud")
    assert _ends(tmp_path, text) == 2
    log, err = capsys.readouterr()
    assert log == ""
    for word in (
        "warehous",
        "compactord.yaml:3",
        "port",
        "task_attempts",
        "commit_reserve",
        "LOG__LEVEL",
    ):
        assert word in err, (word, err)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("catalogs: [", "compactord.yaml:1"),
        ("", "catalogs"),
        ("\x00", "compactord.yaml"),
        ("a: &a [*a]", "a"),
        ("catalogs: {lake: {warehouse: 's3://bucket/wh'}}", "s3"),
        ("catalogs: {lake: {warehouse: /tmp}}\nspark: {conf: {foo: bar}}", "foo"),
        ("catalogs: {lake: {warehouse: /tmp}}\nlimits: {memory: 33 mb}", "memory"),
        ("catalogs: {lake: {warehouse: /tmp}}\nservice: {http: {bind: 192.0.2.1}}", "192.0.2.1"),
    ],
    ids=["yaml", "empty", "binary", "circle", "scheme", "spark-conf", "memory", "address"],
)
def test_a_configuration_that_cannot_be_used_ends_the_start_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, word: str
) -> None:
    assert _ends(tmp_path, text) == 2
    assert word in capsys.readouterr().err


def test_a_configuration_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.yaml")]) == 2
    assert str(tmp_path / "none.yaml") in capsys.readouterr().err


def test_a_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lake = f"catalogs: {{lake: {{warehouse: {tmp_path}}}}}"
        http = f"service: {{http: {{bind: 127.0.0.1, port: {port}}}}}"
        assert _ends(tmp_path, f"{lake}\n{http}\n") == 2
    assert str(port) in capsys.readouterr().err


def test_a_warehouse_that_is_not_there_ends_the_start_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"catalogs: {{lake: {{warehouse: {tmp_path}/none}}}}\nlog: {{format: json}}\n"
    assert _ends(tmp_path, text) == 2
    log, err = capsys.readouterr()
    assert f"catalogs.lake.warehouse is {tmp_path}/none: expected a folder that exists" in err
    assert (log, err.count(f"{tmp_path}/none:")) == ("", 1)
