"""Commands on a warehouse in S3: by arguments and configuration, and what they do not show."""

from __future__ import annotations

import json
import pickle
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from compactord.catalog.open import open_catalog
from compactord.cli.command import main
from compactord.model import Subcompaction
from compactord.storage.open import STORES
from tests import builders
from tests.databases import sqlite_database
from tests.inline_engine import InlineEngine
from tests.store_servers import ACCESS_KEY, SECRET_KEY, StoreServer, s3
from tests.tools.store_faults import Fault, How, Request, from_nth
from tests.tools.store_proxy import StoreProxy

_KEYS = (ACCESS_KEY, SECRET_KEY)


class Away(InlineEngine):
    """Subcompactions go to their worker as bytes, which are kept in `sent`."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def submit(self, subcompaction: Subcompaction) -> None:
        self.sent.append(pickle.dumps(subcompaction))
        super().submit(pickle.loads(self.sent[-1]))


def _filled(server: StoreServer, name: str) -> str:
    """The URL of a warehouse with a table `db.t` that is due."""
    warehouse = f"{server.root}/{name}"
    storage, path = STORES.open(warehouse, server.options)
    table = builders.keyed_table(storage, f"{path}/db.db/t")
    builders.fill_keyed(builders.writer(storage, table), commits=6)
    return warehouse


def _arguments(server: StoreServer, warehouse: str, **more: str) -> list[str]:
    options = {**server.options, **more}
    given = [
        text for key, value in options.items() for text in ("--catalog-option", f"{key}={value}")
    ]
    return ["--warehouse", warehouse, *given]


def _said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Both outputs of a command, which show no key."""
    assert main(arguments) == code, capsys.readouterr()
    found = "".join(capsys.readouterr())
    assert not [key for key in _KEYS if key in found]
    return found


def test_a_warehouse_without_a_lock_is_refused_unless_it_is_guarded(
    moto: StoreServer, capsys: pytest.CaptureFixture[str]
) -> None:
    warehouse = _filled(moto, "guarded")
    where = _arguments(moto, warehouse)
    assert "metastore jdbc" in _said(capsys, "tables", *where, code=2)
    guarded = (*where, "--unlocked-writers", "guarded")
    assert "db.t" in _said(capsys, "tables", *guarded)
    for command in ("inspect", "plan"):
        _said(capsys, command, *guarded, "--table", "db.t")


def test_a_configuration_names_keys_by_reference_and_one_refused_catalog_fails_alone(
    moto: StoreServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warehouse = _filled(moto, "configured")
    monkeypatch.setenv("LAKE_KEY", ACCESS_KEY)
    (tmp_path / "secret").write_text(SECRET_KEY + "\n")
    uri = sqlite_database(tmp_path / "c.db", ["db.t"])
    path = tmp_path / "compactord.yaml"
    path.write_text(
        textwrap.dedent(
            f"""\
            catalogs:
              lake:
                metastore: jdbc
                warehouse: {warehouse}
                options:
                  uri: "{uri}"
                  s3.endpoint: "{moto.options["s3.endpoint"]}"
                  s3.access-key: ${{env:LAKE_KEY}}
                  s3.secret-key: ${{file:{tmp_path}/secret}}
              unlocked:
                warehouse: {warehouse}
                options:
                  s3.endpoint: "{moto.options["s3.endpoint"]}"
                  s3.access-key: {ACCESS_KEY}
                  s3.secret-key: {SECRET_KEY}
            """
        )
    )
    found = _said(capsys, "tables", "--config", str(path), code=3)
    assert "lake.db.t" in found
    assert "catalog unlocked" in found
    _said(capsys, "plan", "--config", str(path), "--catalog", "lake", "--table", "db.t")
    shown = _said(capsys, "config", "show", "--config", str(path))
    assert "catalogs.lake.options.s3.access-key = ${env:LAKE_KEY}" in shown
    assert "catalogs.unlocked.options.s3.secret-key = ***" in shown
    remote = ("--set", "spark.master=spark://elsewhere:7077")
    refused = _said(capsys, "config", "check", "--config", str(path), *remote, code=2)
    assert "catalogs.unlocked.options.s3.secret-key is ***: expected ${file:/path}" in refused
    assert "catalogs.lake.options" not in refused


def test_no_key_stands_in_a_task(moto: StoreServer, tmp_path: Path) -> None:
    options = {**moto.options, "uri": sqlite_database(tmp_path / "c.db", ["db.t"])}
    catalog = open_catalog(_filled(moto, "tasks"), metastore="jdbc", options=options)
    engine, table = Away(), catalog.open(catalog.find_table("db.t"))
    totals = builders.compact(
        table.storage,
        table.ref,
        publisher=table.publisher,
        start_engine=lambda: engine,
    )
    assert (totals.snapshots, totals.failures) == ([7], [])
    assert engine.sent
    assert not [key for sent in engine.sent for key in _KEYS if key.encode() in sent]
    assert not [key for key in _KEYS if key in repr(catalog.warehouse_storage.spec)]


@pytest.mark.parametrize(
    "command", [("tables",), ("maintain", "--all"), ("compact", "--tables", "d.*")]
)
def test_a_prefix_without_objects_has_no_tables_yet(
    moto: StoreServer, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    where = (*_arguments(moto, "s3://lake/nothing-here"), "--unlocked-writers", "guarded")
    assert "no tables yet\n" in _said(capsys, *command, *where)


@pytest.mark.parametrize(
    ("warehouse", "more", "expected", "advice"),
    [
        ("s3://no-such-bucket/wh", {}, "there is no such bucket: check its", "correct the bucket"),
        ("s3://lake/wh", {"s3.endpoint": "http://127.0.0.1:1"}, "check the end", "the endpoint"),
    ],
)
def test_a_mistake_is_one_error_with_its_remedy(
    moto: StoreServer,
    capsys: pytest.CaptureFixture[str],
    *,
    warehouse: str,
    more: dict[str, str],
    expected: str,
    advice: str,
) -> None:
    where = (*_arguments(moto, warehouse, **more), "--unlocked-writers", "guarded")
    shown = _said(capsys, "doctor", *where, "--json", code=3)
    checks = json.loads(shown)["checks"]
    (found,) = [check for check in checks if check["check"].startswith("warehouse: ")]
    assert (found["verdict"], expected in found["found"]) == ("failed", True), found
    assert advice in found["advice"]


def test_a_doctor_looks_at_everything_that_a_store_has_to_do(
    moto: StoreServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = sqlite_database(tmp_path / "c.db", ["db.t"])
    where = (*_arguments(moto, _filled(moto, "doctor"), uri=uri), "--metastore", "jdbc")
    checks = json.loads(_said(capsys, "doctor", *where, "--json"))["checks"]
    found = {check["check"]: check for check in checks if check["check"].startswith("warehouse: ")}
    names = ("tables", "polls", "lock", "commits", "clock", "latency")
    assert list(found) == [f"warehouse: {name}" for name in names]
    assert {check["verdict"] for check in found.values()} == {"ok"}
    assert " ms for a small request" in found["warehouse: latency"]["found"]
    assert "1 table in s3://lake/doctor" in found["warehouse: tables"]["found"]


# Which listings fail, the command's exit code, and what it says of them besides the place.
_LISTINGS: Mapping[str, tuple[Callable[[Request], bool], int, str]] = {
    "uploads": (lambda request: request.kind == "list_uploads", 3, "list uploads failed"),
    "a folder": (lambda request: "bucket-1" in request.target, 3, "list failed"),
    "all": (lambda request: request.kind in ("list", "list_uploads"), 3, "list failed"),
}


@pytest.mark.parametrize("fault", [Fault(how=How.CLOSE), Fault(how=How.HALF)], ids=str)
@pytest.mark.parametrize("listing", _LISTINGS)
def test_a_store_that_hangs_up_on_a_listing_is_one_line_of_orphans(
    moto: StoreServer, capsys: pytest.CaptureFixture[str], listing: str, fault: Fault
) -> None:
    """Files are swept all the same where uploads cannot be listed, but the command has failed."""
    fails, code, what = _LISTINGS[listing]
    warehouse = _filled(moto, f"hangs_up_{fault.how.name}_{listing.replace(' ', '_')}")
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        where = _arguments(s3(proxy.port), warehouse)
        orphans = ("orphans", *where, "--unlocked-writers", "guarded", "--table", "db.t")
        _said(capsys, *orphans)
        proxy.fail(from_nth(1, fault, fails))
        assert main(orphans) == code
        assert proxy.failed
    found = capsys.readouterr()
    [line] = found.err.splitlines()
    assert what in line
    assert warehouse in line
    assert "Traceback" not in found.out + found.err
    assert "nothing left over" not in found.out
