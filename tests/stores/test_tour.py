"""The tour of docs/tour-object-store.md, run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compactord.storage.open import STORES
from tests.databases import run_sql
from tests.store_servers import ACCESS_KEY, SECRET_KEY, StoreServer

pytestmark = pytest.mark.spark

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "tour-object-store.md"
_PRELUDE = f"""\
set -eu
compactord() {{ {sys.executable} -m compactord "$@"; }}
compactord-demo() {{ {sys.executable} -m compactord_demo "$@"; }}
"""


def test_the_tour_shows_what_it_says(s3_server: StoreServer, tmp_path: Path) -> None:
    script = "".join(re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text(), re.DOTALL | re.MULTILINE))
    for ours, here in (
        ("http://127.0.0.1:9000", s3_server.options["s3.endpoint"]),
        ("AWS_ACCESS_KEY_ID=minioadmin", f"AWS_ACCESS_KEY_ID={ACCESS_KEY}"),
        ("AWS_SECRET_ACCESS_KEY=minioadmin", f"AWS_SECRET_ACCESS_KEY={SECRET_KEY}"),
        ("s3://lake/wh", f"{s3_server.root}/tour"),
        ("/tmp/", f"{tmp_path}/"),
    ):
        assert ours in script
        script = script.replace(ours, here)
    done = subprocess.run(
        ["bash", "-c", _PRELUDE + script],
        cwd=_ROOT,
        env={**os.environ, "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for text in (
        "taken and released; all writers",
        "sales.orders: 2 compactions in ",
        "is refused: without a lock",
        "VALUES ('jdbc', 'sales', 'orders') ON CONFLICT DO NOTHING;",
        "registered logs.clicks",
        "2 tables: 2 active",
    ):
        assert text in said, f"{text}\n{said}"
    assert said.count("those ingested") == 2
    assert run_sql(tmp_path / "lake.db", "SELECT * FROM paimon_distributed_locks") == []
    storage, path = STORES.open(f"{s3_server.root}/tour", s3_server.options)
    assert [entry.name for entry in storage.list(path)] == ["logs.db", "sales.db"]
