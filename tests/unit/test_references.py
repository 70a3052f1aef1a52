"""References: read late, and handed to other processes in the place of secrets."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from compactord.text import (
    LateValues,
    ReferenceMissing,
    handed_over,
    has_reference,
    kept,
    resolve,
)

_ENVIRONMENT = {"A": "a", "B": "${env:A}"}


@pytest.mark.parametrize(
    ("text", "value", "is_reference"),
    [
        ("plain", "plain", False),
        ("${env:A}", "a", True),
        ("x-${env:A}-${env:B}", "x-a-${env:A}", True),
        ("$${env:A}", "${env:A}", False),
        ("$x {y}", "$x {y}", False),
    ],
)
def test_a_text_is_resolved_once(text: str, value: str, is_reference: bool) -> None:
    assert resolve(text, _ENVIRONMENT) == value
    assert has_reference(text) is is_reference


def test_what_was_replaced_is_noticed_by_a_look_a_minute(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first")
    late = LateValues({"key": f"${{file:{key}}}", "user": "$${me}"})
    assert late.read() == {"key": "first", "user": "${me}"}
    for now_s, text, has_changed in [
        (0, "first", False),
        (59, "second", False),
        (60, "second", True),
        (119, "second", False),
        (120, "first", False),
        (180, None, False),
        (240, "third", True),
    ]:
        key.unlink() if text is None else key.write_text(text)
        assert late.have_changed(now_s) is has_changed, now_s
    assert late.read()["key"] == "third"


def test_a_file_is_read_without_its_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2\n")
    assert resolve(f"${{file:{tmp_path}/key}}") == "hunter2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${env:NONE}", "the variable NONE to be set"),
        ("${file:/none/at/all}", "a file that can be read (No such file or directory)"),
        ("${file:relative}", "${env:NAME} or ${file:/path}"),
        ("${NAME}", "${env:NAME} or ${file:/path}"),
    ],
)
def test_what_is_not_there_is_named(text: str, expected: str) -> None:
    with pytest.raises(ReferenceMissing) as raised:
        resolve(text, {})
    assert (raised.value.reference, expected in raised.value.expected) == (text, True)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_value_of_this_process_alone_may_become_another() -> None:
    reference = kept("of a test", "first")
    assert has_reference(reference)
    assert resolve(reference) == "first"
    assert kept("of a test", "second") == reference
    assert resolve(reference) == "second"
    assert not {"first", "second"} & set(os.environ.values())


def test_a_secret_is_handed_to_started_processes_under_one_name() -> None:
    handed = handed_over("a$${b}-hunter2")
    assert handed == handed_over("a$${b}-hunter2") != handed_over("another")
    assert "hunter2" not in handed
    assert handed_over("${env:A}") == "${env:A}"
    program = f"from compactord.text import resolve; print(resolve({handed!r}))"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert asked.stdout.decode().strip() == "a${b}-hunter2"
    assert not any(name.startswith("COMPACTORD__") for name in os.environ)
