"""A secret under every name that may have one is in nothing that is shown, sent or logged."""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path

import pytest
import structlog

from compactord.config.choices import LogFormat, LogLevel
from compactord.engine.jvm import LEAST
from compactord.engine.masters import Messages
from compactord.service.logs import configure_logs
from compactord.storage.open import STORES
from tests.fsspec_files import fsspec_at
from tests.unit.cli.warehouses import configuration, said

_PLANTED = "s3same-wJalrXUtnFEMI"
_FSSPEC = ("auth", "headers", "login", "connect_args", "key", "whatever", "client_kwargs")
_SETTINGS = (
    *("spark.executorEnv.PGPASS", "spark.executorEnv.ANY", "spark.yarn.appMasterEnv.ANY"),
    *("spark.kubernetes.driverEnv.ANY", "spark.hadoop.fs.s3a.secret.key"),
    *("spark.ssl.keyPassword", "spark.authenticate.secret"),
)
_URIS = (
    f"jdbc:mysql://root:PW/{_PLANTED}@h/db",
    f"jdbc:mysql://root:{_PLANTED}/x@h/db",
    f"jdbc:mysql://root:12/{_PLANTED}@h/db",
    f"jdbc:mysql://root:p {_PLANTED}@h/db",
    f"jdbc:postgresql://h/db?password=a@{_PLANTED}",
    f"jdbc:postgresql://(host=h,password={_PLANTED})/db",
    f"jdbc:oracle:thin:scott/{_PLANTED}@h",
)
_WAREHOUSES = (
    f"s3://KEY:{_PLANTED}@bucket/wh",
    f"s3://KEY:{_PLANTED}/x@bucket/wh",
    f"s3://KEY:{_PLANTED}/x@bucket/wh@2026",
    f"abfss://box:{_PLANTED}@account.dfs.core.windows.net/wh",
    f"memory://me:{_PLANTED}@host/wh",
)


def _options() -> dict[str, str]:
    found = {f"fsspec.{name}": _PLANTED for name in _FSSPEC}
    return found | {"fs.gs.http.headers.X": _PLANTED, "fsspec.enabled": "true"}


def test_config_show_and_check_hide_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogs = {
        f"u{index}": {"warehouse": "/wh", "metastore": "jdbc", "options": {"uri": uri}}
        for index, uri in enumerate(_URIS)
    }
    catalogs |= {
        f"w{index}": {"warehouse": warehouse, "options": _options()}
        for index, warehouse in enumerate(_WAREHOUSES)
    }
    text = json.dumps({"catalogs": catalogs, "spark": {"conf": dict.fromkeys(_SETTINGS, _PLANTED)}})
    found = said(capsys, "config", "check", "--config", configuration(tmp_path, text), code=2)
    # One can be used: its driver takes the password from there.
    assert [name for name in catalogs if f"catalogs.{name}." not in found] == ["u4"]
    assert _PLANTED not in found


@pytest.mark.parametrize("arguments", [("config", "show"), ("config", "show", "--json")])
def test_config_show_hides_what_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    lake = {"warehouse": "memory://host/wh", "options": _options(), "unlocked_writers": "guarded"}
    conf = {**dict.fromkeys(_SETTINGS, _PLANTED), "spark.cores.max": "4"}
    text = json.dumps({"catalogs": {"lake": lake}, "spark": {"master": None, "conf": conf}})
    found = said(capsys, *arguments, "--config", configuration(tmp_path, text))
    assert "memory://host/wh" in found
    assert "fsspec.enabled" in found
    assert found.count("***") == len(_FSSPEC) + len(_SETTINGS) + 1
    assert _PLANTED not in found


@pytest.mark.parametrize("warehouse", _WAREHOUSES)
@pytest.mark.parametrize("command", ["tables", "doctor"])
def test_a_location_with_a_password_is_refused_without_it(
    capsys: pytest.CaptureFixture[str], command: str, warehouse: str
) -> None:
    found = said(capsys, command, "--warehouse", warehouse, code=2)
    assert "without user and password" in found
    assert _PLANTED not in found


@pytest.mark.parametrize("name", _FSSPEC)
def test_no_task_carries_them(name: str) -> None:
    options = {f"fsspec.{name}": _PLANTED}
    spec, path = fsspec_at("ftp://host/wh", options)
    assert STORES.literal_secrets("ftp://host/wh", options) == (f"fsspec.{name}",)
    assert _PLANTED.encode() not in pickle.dumps(spec)
    assert _PLANTED not in repr(spec) + path


def test_logs_and_messages_of_spark_hide_them() -> None:
    stream = io.StringIO()
    configure_logs(level=LogLevel.INFO, format=LogFormat.CONSOLE, stream=stream)
    values = dict.fromkeys((*_SETTINGS, *_options()), _PLANTED) | {"fsspec.enabled": "true"}
    texts = [f"{key}={value}" for key, value in values.items() if value == _PLANTED]
    structlog.get_logger("compactord").warning(
        "planted", options=values, texts=texts, uris=_URIS[:3] + _WAREHOUSES
    )
    messages = Messages("spark://h:7077", dict.fromkeys(_SETTINGS, _PLANTED))
    assert _PLANTED not in stream.getvalue()
    assert _PLANTED not in messages.brief(f"cannot start with {_PLANTED}")
    pattern = LEAST["spark.redaction.regex"].removeprefix("(?i)")
    assert all(re.search(pattern, key, re.IGNORECASE) for key in _SETTINGS)
