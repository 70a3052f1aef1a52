from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from compactord.errors import UsageError
from compactord.storage.local import LocalStorage
from compactord.storage.open import STORES


@pytest.mark.parametrize(
    "text",
    [
        "file:///data/w",
        "file:/data/w",
        "FILE:///data/w",
        "File:/data/x/../w/",
        "file://localhost/data/w",
        "file://LOCALHOST/data/w",
        "file:////data/w",
        "/data/w",
        "/data/x/../w/",
    ],
)
def test_local_places_may_have_a_scheme(text: str) -> None:
    storage, path = STORES.open(text, {})
    assert isinstance(storage, LocalStorage)
    assert path == "/data/w"


def test_a_relative_path_is_below_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert STORES.open("lake", {})[1] == os.path.join(str(tmp_path), "lake")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("file:w1", "absolute path"),
        ("file:", "absolute path"),
        ("file://", "absolute path"),
        ("file://localhost", "absolute path"),
        ("file://./w", "names another machine"),
        ("file://server/share", "server names another machine"),
    ],
)
def test_a_file_uri_that_names_no_folder_of_this_machine_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        STORES.open(text, {})


def test_a_percent_sign_of_a_uri_is_itself_as_in_java() -> None:
    assert STORES.open("file:///data/a%20b", {})[1] == "/data/a%20b"


def test_a_name_with_a_colon_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert STORES.open("lake:2", {})[1] == f"{tmp_path}/lake:2"


@pytest.mark.parametrize(
    "text", ["viewfs://bucket/w", "hdfs:/w", "hdfs:///w", "oss:/x", "s3:/x", "s3:///x"]
)
def test_other_schemes_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=text.split(":", maxsplit=1)[0]):
        STORES.open(text, {})


def test_what_opens_a_store_travels() -> None:
    storage, _ = STORES.open("/data/w", {})
    spec = storage.spec
    assert pickle.loads(pickle.dumps(spec)) == spec
