"""Kinds of errors: members for our classes, other names as they are, across processes."""

from __future__ import annotations

import json
import pickle

import pytest

from compactord import errors
from compactord.errors import ErrorKind

# Kinds of failures without a class.
_WITHOUT_CLASS = {ErrorKind.NONE, ErrorKind.CANCELLED, ErrorKind.TIME_LIMIT_PASSED}


@pytest.mark.parametrize("kind", sorted(set(ErrorKind) - _WITHOUT_CLASS))
def test_each_kind_is_the_name_of_a_class(kind: ErrorKind) -> None:
    error = getattr(errors, kind.value)
    assert issubclass(error, errors.CompactordError)
    assert ErrorKind.of(error("/t", "bad")) is kind


@pytest.mark.parametrize("name", ["AnalysisException", "FormatError", ""])
def test_a_kind_survives_other_processes_and_json(name: str) -> None:
    kind = ErrorKind(name)
    assert pickle.loads(pickle.dumps(kind)) == kind == name
    assert json.dumps({"error": kind}) == json.dumps({"error": name})
    assert f"{kind}" == name
    assert kind in {ErrorKind(name)}
