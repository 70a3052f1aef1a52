"""The daemon over catalogs in S3: locked, guarded, refused and absent side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from compactord.storage.open import STORES
from tests import builders
from tests.databases import sqlite_database
from tests.service.daemon_process import Services, configuration
from tests.store_servers import ACCESS_KEY, SECRET_KEY, StoreServer

_PATHS = ("/", "/metrics", "/config", "/v1/status", "/v1/tables")


def test_catalogs_in_s3_are_served_beside_one_that_is_refused_and_no_key_is_shown(
    services: Services, started: Callable[[str], StoreServer], tmp_path: Path
) -> None:
    store = started("moto")
    tables = {}
    for name in ("locked", "guarded", "unlocked"):
        storage, path = STORES.open(f"{store.root}/service/{name}", store.options)
        table = builders.keyed_table(storage, f"{path}/db.db/{name}")
        tables[name] = (table, builders.fill_keyed(builders.writer(storage, table), commits=6))
    uri = sqlite_database(tmp_path / "c.db", ["db.locked"])
    options = dict(store.options)
    catalogs = {
        "lake": {
            "metastore": "jdbc",
            "warehouse": f"{store.root}/service/locked",
            "options": {**options, "uri": uri},
        },
        "guarded": {
            "warehouse": f"{store.root}/service/guarded",
            "options": options,
            "unlocked_writers": "guarded",
            "settle": "1 s",
        },
        "unlocked": {"warehouse": f"{store.root}/service/unlocked", "options": options},
        "absent": {
            "warehouse": "s3://no-such-bucket/wh",
            "options": options,
            "unlocked_writers": "guarded",
        },
    }
    config = configuration("", catalogs=catalogs, defaults={"only_write_only": False})
    service = services.start(config).wait_started()
    for name in ("locked", "guarded"):
        service.wait_until(lambda n=name: service.log("commit_succeeded", table=n), f"{name} is")
    shown = {path: service.get(path)[1] for path in _PATHS}
    commands = []
    for pid in (service.pid, *service.family()):
        # Workers end when they please.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            commands.append(Path(f"/proc/{pid}/cmdline").read_text())
    assert service.stop() == 0
    shown |= {"log": service.text, "err": service.err, "command lines": "\n".join(commands)}
    assert not [
        (what, key)
        for what, text in shown.items()
        for key in (ACCESS_KEY, SECRET_KEY)
        if key in text
    ]

    reasons = {line["catalog"]: line["error"] for line in service.log("catalog_unavailable")}
    assert set(reasons) == {"unlocked", "absent"}
    assert "lock.enabled" in reasons["unlocked"]
    assert "no such bucket" in reasons["absent"]
    storage, _ = STORES.open(f"{store.root}/service", store.options)
    for name in ("locked", "guarded"):
        table, rows = tables[name]
        assert builders.read_keyed(storage, table) == rows
        builders.check_chain(storage, table)
    assert not storage.status(f"{tables['unlocked'][0].location}/snapshot/snapshot-7")
