"""Keys of stores that a REST server lends, a table at a time."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.catalog.rest.vended import VendedSpec
from compactord.errors import AccessDenied, CatalogUnavailable, UnsupportedTable
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord_demo.writer import create_table
from tests import builders, fake_oss
from tests.unit.catalog.rest_server import TOKEN, FakeServer, FakeTable, serving

_STORAGE = LocalStorage()
_LIFE_S = 4.0


class _Lender:
    """Lends a new key at each call, which an OSS takes for `life_s` seconds."""

    def __init__(self) -> None:
        self.bucket = fake_oss.Bucket()
        self.life_s = _LIFE_S
        self.lent: list[float] = []
        self.port = 0

    def lend(self, name: str) -> dict[str, Any]:
        assert name == "db.t"
        self.lent.append(time.monotonic())
        keys = {
            "fs.oss.accessKeyId": f"AK{len(self.lent)}",
            "fs.oss.accessKeySecret": "secret of the store",
            "fs.oss.securityToken": "sts",
        }
        return {"token": keys, "expiresAtMillis": int((time.time() + self.life_s) * 1000)}

    def is_known(self, authorization: str) -> bool:
        now_s = time.monotonic()
        good = [f"AK{n}" for n, at_s in enumerate(self.lent, 1) if now_s - at_s < self.life_s]
        return any(f"{key}:" in authorization or f"{key}/" in authorization for key in good)


@pytest.fixture
def lender() -> Iterator[_Lender]:
    lender = _Lender()

    class Handler(fake_oss.Handler):
        bucket = lender.bucket

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            if lender.is_known(self.headers.get("Authorization", "")):
                return True
            self._body()
            self._refuse(403, "SecurityTokenExpired")
            return False

    with fake_oss.Server(("127.0.0.1", 0), Handler) as server:
        lender.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield lender
        server.shutdown()
        thread.join()


class Lake:
    """The table db.t in the bucket; its server works on a copy of the metadata in a folder."""

    def __init__(self, server: FakeServer, lender: _Lender, folder: Path) -> None:
        path = folder / "t"
        ref = TableRef(database="db", name="t", location=str(path))
        options = {"bucket": "1", "write-only": "true"}
        create_table(_STORAGE, ref, builders.FIELDS, primary_keys=["k"], options=options)
        self.rows = builders.fill_keyed(builders.writer(_STORAGE, ref), commits=5)
        for file in (file for file in path.rglob("*") if file.is_file()):
            key = f"somewhere/t/{file.relative_to(path)}"
            lender.bucket.objects[key] = fake_oss.Stored(file.read_bytes(), {})
        shown = f"oss://{fake_oss.BUCKET}/somewhere/t"
        server.tables["db.t"] = FakeTable(path=str(path), shown=shown, id="x")
        server.lend = lender.lend
        server.overrides = {
            "data-token.enabled": "true",
            "fs.oss.endpoint": "http://nowhere.example",
            "dlf.oss-endpoint": f"http://127.0.0.1:{lender.port}",
        }


def _catalog(server: FakeServer, **options: str) -> Catalog:
    return open_catalog("lake", metastore="rest", options={**server.options, **options})


def test_who_reads_fetches_the_keys_and_renews_them(lender: _Lender, tmp_path: Path) -> None:
    with serving(FakeServer()) as server:
        lake = Lake(server, lender, tmp_path)
        catalog = _catalog(server)
        access = catalog.open(catalog.find_table("db.t"))
        totals = builders.compact(access.storage, access.ref, access=access)
        assert totals.snapshots == [6]
        assert len(lender.lent) == 1 or time.monotonic() - lender.lent[0] > _LIFE_S / 2
        for _ in range(3):
            time.sleep(_LIFE_S / 2)
            assert builders.read_keyed(access.storage, access.ref) == lake.rows
        # A worker's, in the middle of a file: its first key has expired by then.
        spec = pickle.loads(pickle.dumps(access.storage.spec))
        worker = spec.open()
        assert worker.spec == access.storage.spec
        whole = Path(server.tables["db.t"].path, "schema", "schema-0").read_bytes()
        begun = worker.read_range(_SCHEMA, 0, 10)
        time.sleep(_LIFE_S + 0.1)
        assert begun + worker.read_range(_SCHEMA, 10, len(whole) - 10) == whole
        assert len(lender.lent) <= 8


def test_a_task_has_no_secret(lender: _Lender, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    with serving(FakeServer()) as server:
        Lake(server, lender, tmp_path)
        header = {"header.X-Key": "a secret header", "fs.s3a.secret.key": "a secret key"}
        for token in (TOKEN, f"${{file:{secret}}}"):
            catalog = _catalog(server, token=token, **header)
            spec = catalog.open(catalog.find_table("db.t")).storage.spec
            assert isinstance(spec, VendedSpec)
            task = pickle.dumps(spec)
            for text in (TOKEN, "a secret", "secret of the store", "AK1"):
                assert text.encode() not in task
                assert text not in repr(spec)
            assert server.uri.encode() in task


def test_secrets_among_the_servers_own_options_are_in_no_task(
    lender: _Lender, tmp_path: Path
) -> None:
    with serving(FakeServer()) as server:
        lake = Lake(server, lender, tmp_path)
        # Nobody renews keys that are options.
        lender.life_s = 600
        keys = lender.lend("db.t")["token"]
        server.defaults = {"fs.oss.endpoint": f"http://127.0.0.1:{lender.port}"}
        server.overrides = {"data-token.enabled": "false", **keys}
        catalog = _catalog(server, **{"fs.oss.accessKeyId": "overridden"})
        access = catalog.open(catalog.find_table("db.t"))
        totals = builders.compact(access.storage, access.ref, access=access)
        assert totals.snapshots == [6]
        assert builders.read_keyed(access.storage, access.ref) == lake.rows
        task = pickle.dumps(access.storage.spec)
        assert not any(text.encode() in task for text in keys.values())
        assert not any(one.parts[-1] == "token" for one in server.asked)
        # Whose keys are its own is asked for nothing by workers.
        server.overrides, endpoint = {"data-token.enabled": "false"}, server.defaults
        server.defaults = {}
        catalog = _catalog(server, **keys, **endpoint)
        spec = catalog.open(catalog.find_table("db.t")).storage.spec
        assert not isinstance(spec, VendedSpec)
        assert not any(text.encode() in pickle.dumps(spec) for text in keys.values())


def test_what_is_lent_is_in_no_environment_and_tables_share_the_way_to_their_server(
    lender: _Lender, tmp_path: Path
) -> None:
    """An environment of some megabytes lets no process start, a connection for each table none."""
    with serving(FakeServer()) as server:
        Lake(server, lender, tmp_path)
        # The token and the header are handed over once.
        storages = [_catalog(server).open(_catalog(server).find_table("db.t")).storage]
        environ = dict(os.environ)
        for _ in range(2):
            time.sleep(_LIFE_S / 2 + 0.1)
            storages.append(_catalog(server).open(_catalog(server).find_table("db.t")).storage)
            assert all(storage.read(f"{_SCHEMA}") for storage in storages)
        spec = storages[0].spec
        assert isinstance(spec, VendedSpec)
        server.tables["db.u"], lend = server.tables["db.t"], server.lend
        server.lend = lambda _: lend("db.t")
        server.asked.clear()
        for name in ("t", "u"):
            replace(spec, location=f"{spec.location}/{name}", table=("db", name)).open()
        assert server.calls() == ["GET t/token", "GET u/token"], "its options are known"
        assert dict(os.environ) == environ


_SCHEMA = f"oss://{fake_oss.BUCKET}/somewhere/t/schema/schema-0"


def test_a_server_that_lends_nothing_is_an_error_of_the_table(
    lender: _Lender, tmp_path: Path
) -> None:
    with serving(FakeServer()) as server:
        Lake(server, lender, tmp_path)
        catalog = _catalog(server)
        ref = catalog.find_table("db.t")
        for answer, error in (
            ((403, None), AccessDenied),
            ((200, {}), CatalogUnavailable),
            ((200, {"token": {"fs.oss.accessKeyId": "k"}, "expiresAtMillis": 1}), UnsupportedTable),
        ):
            server.fault = lambda asked, answer=answer: (
                answer if asked.parts[-1] == "token" else None
            )
            with pytest.raises(error):
                catalog.open(ref)
        server.fault = lambda _: None
        with contextlib.suppress(UnsupportedTable):
            catalog.open(ref)
        time.sleep(1.1)
        catalog.open(ref)
