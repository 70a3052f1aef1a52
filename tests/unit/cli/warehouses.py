"""Warehouses with real tables, and configurations of them, for commands in this process."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from compactord.cli.command import main
from compactord.clock import Clock
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord_demo.writer import create_table
from tests import builders

LOCAL = LocalStorage()
RULES = """\
catalogs:
  lake: {warehouse: WH}
discovery:
  excluding_tables: "tmp\\\\..*"
rules:
- match: {table: "sales\\\\.lazy"}
  set: {options: {num-sorted-run.compaction-trigger: 9}, append_wait: null}
- match: {table: "sales\\\\.held"}
  set: {mode: paused}
"""


def keyed(
    warehouse: Path, name: str, *, commits: int = 0, clock: Clock | None = None, **options: str
) -> TableRef:
    """A primary-key table `database.table` of one bucket with so many level-0 files.

    Options have underscores for dots, and two of them for a dash. `clock` as of `builders.writer`.
    """
    base = {"bucket": "1", "write-only": "true"}
    return _filled(warehouse, name, commits, base=base, options=options, keys=["k"], clock=clock)


def append(
    warehouse: Path, name: str, *, commits: int = 0, clock: Clock | None = None, **options: str
) -> TableRef:
    """As `keyed`, an append table without buckets."""
    base = {"bucket": "-1", "write-only": "true"}
    return _filled(warehouse, name, commits, base=base, options=options, keys=[], clock=clock)


def _filled(
    warehouse: Path,
    name: str,
    commits: int,
    *,
    base: dict[str, str],
    options: dict[str, str],
    keys: list[str],
    clock: Clock | None,
) -> TableRef:
    database, table = name.split(".")
    ref = TableRef(database=database, name=table, location=f"{warehouse}/{database}.db/{table}")
    given = {key.replace("__", "-").replace("_", "."): text for key, text in options.items()}
    create_table(LOCAL, ref, builders.FIELDS, primary_keys=keys, options={**base, **given})
    # A refused table has no writer.
    writer = builders.writer(LOCAL, ref, clock=clock) if commits else None
    for commit in range(commits):
        assert writer is not None, "there are commits"
        writer.write(builders.rows_of([(commit, commit), (commit + 1, commit)]))
    return ref


def configuration(folder: Path, text: str) -> str:
    """The path of a file with this text, in which `WH` is the folder `wh`."""
    path = folder / "compactord.yaml"
    path.write_text(textwrap.dedent(text).replace("WH", str(folder / "wh")))
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints for people, on both streams."""
    found = main(arguments)
    out, err = capsys.readouterr()
    assert found == code, (out, err)
    return out + err


def answered(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The object that a command prints with `--json`."""
    found = main([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert found == code, (out, err)
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer
