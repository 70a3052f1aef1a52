"""Commands on a JDBC catalog: by arguments and by configuration, and what is said of mistakes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from compactord.paimon.snapshot import snapshot_ids
from compactord.storage.local import LocalStorage
from tests.databases import run_sql, sqlite_database
from tests.unit.catalog.rest_server import Asked, FakeServer, FakeTable, serving
from tests.unit.cli.warehouses import answered, configuration, keyed, said

_SECRET = "hunter2-and-more"
# Nobody listens there.
_DOWN = "jdbc:postgresql://127.0.0.1:1/paimon"


def _by_arguments(folder: Path, uri: str, *options: str) -> tuple[str, ...]:
    given = [text for option in (f"uri={uri}", *options) for text in ("--catalog-option", option)]
    return ("--warehouse", str(folder / "wh"), "--metastore", "jdbc", *given)


def test_arguments_name_a_catalog_and_its_tables_are_those_of_its_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "db.told", commits=1)
    keyed(tmp_path / "wh", "db.other", commits=1)
    uri = sqlite_database(tmp_path / "c.db", ["db.told"], key="lake")
    where = _by_arguments(tmp_path, uri, "catalog-key=lake")
    assert [one["table"] for one in answered(capsys, "tables", *where)["tables"]] == ["db.told"]
    assert "db.other does not exist" in said(
        capsys, "inspect", *where, "--table", "db.other", code=2
    )


def test_a_configuration_names_several_and_one_that_is_down_fails_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "db.t", commits=1)
    uri = sqlite_database(tmp_path / "c.db", ["db.t"])
    config = configuration(
        tmp_path,
        f"""\
        catalogs:
          lake: {{warehouse: WH, metastore: jdbc, options: {{uri: "{uri}"}}}}
          away:
            warehouse: WH
            metastore: jdbc
            options: {{uri: "{_DOWN}", jdbc.user: u, jdbc.password: {_SECRET}}}
        """,
    )
    found = said(capsys, "tables", "--config", config, code=3)
    assert "lake.db.t" in found
    assert "catalog away" in found
    assert "the catalog's database failed" in found
    assert _SECRET not in found


def test_tables_of_several_catalogs_are_asked_for_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = keyed(tmp_path / "wh", "db.t", commits=1).location
    both = {last: threading.Barrier(2, timeout=20) for last in ("table-details", "t")}

    def fault(asked: Asked) -> None:
        if asked.parts[-1] in both:
            both[asked.parts[-1]].wait()

    text = "catalogs:\n"
    with contextlib.ExitStack() as servers:
        for name in ("b", "a"):
            tables = {"db.t": FakeTable(path=location, id=name)}
            server = servers.enter_context(serving(FakeServer(tables, fault=fault)))
            text += f"  {name}: {{warehouse: w, metastore: rest, allow_schemes: [file], "
            text += f"options: {server.options}}}\n"
        found = answered(capsys, "tables", "--config", configuration(tmp_path, text))
    named = [(each["catalog"], each["table"], each["state"]) for each in found["tables"]]
    assert named == [("b", "db.t", "active"), ("a", "db.t", "active")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metastore", "jdbc"), "uri: expected jdbc:sqlite:"),
        (("--catalog-option", "uri=jdbc:sqlite:/c"), "uri: expected no such option, unless"),
        (("--catalog-option", "lock.enable=1"), "did you mean lock.enabled?"),
        (("--catalog-option", "uri"), "--catalog-option 'uri' is not of the form key=value"),
        (
            ("--catalog-option", "jdbc.password=${env:ABSENT_FROM_HERE}"),
            "--catalog-option jdbc.password has ${env:ABSENT_FROM_HERE}",
        ),
    ],
)
def test_catalog_arguments_that_cannot_be_used_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "wh").mkdir()
    where = ("--warehouse", str(tmp_path / "wh"), *arguments)
    assert message in said(capsys, "tables", *where, code=2)


def test_top_looks_at_the_tables_of_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "db.told", commits=1)
    keyed(tmp_path / "wh", "db.other", commits=1)
    uri = sqlite_database(tmp_path / "c.db", ["db.told"])
    found = said(capsys, "top", "--once", "--width", "100", *_by_arguments(tmp_path, uri))
    assert "db.told" in found
    assert "db.other" not in found
    arguments = ("top", "--once", "--url", "http://127.0.0.1:1", "--metastore", "jdbc")
    assert "need --warehouse" in said(capsys, *arguments, code=2)


@pytest.mark.parametrize("command", [("tables",), ("doctor",)])
def test_catalog_arguments_need_a_warehouse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    config = configuration(tmp_path, "catalogs: {lake: {warehouse: WH}}\n")
    arguments = (*command, "--config", config, "--metastore", "jdbc")
    assert "need --warehouse" in said(capsys, *arguments, code=2)


def test_a_configuration_says_each_wrong_option_with_its_line_and_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configuration(
        tmp_path,
        f"""\
        catalogs:
          a:
            warehouse: /wh
            metastore: jdbc
            options:
              uri: jdbc:mysql://h/p?password=other
              jdbc.password: {_SECRET}
          b:
            warehouse: /wh
            metastore: jdbc
            options:
              uri: jdbc:mysql://u:{_SECRET}@h/p
          c:
            warehouse: /wh
            options:
              locked: true
          d:
            warehouse: /wh
            metastore: glue
        """,
    )
    metastore = said(capsys, "config", "check", "--config", config, code=2)
    assert "19: catalogs.d.metastore is glue: expected filesystem or jdbc" in metastore
    file = Path(config)
    file.write_text(file.read_text().replace("glue", "filesystem"))
    found = said(capsys, "config", "check", "--config", config, code=2)
    assert "7: catalogs.a.options.jdbc.password is ***: expected the value in uri" in found
    assert "12: catalogs.b.options.uri is jdbc:mysql://***@h/p: expected" in found
    assert "16: catalogs.c.options.locked is true: expected a catalog option of Paimon" in found
    assert _SECRET not in found


def test_secrets_stand_in_no_configuration_that_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_PASSWORD", _SECRET)
    config = configuration(
        tmp_path,
        f"""\
        catalogs:
          lake:
            warehouse: WH
            metastore: jdbc
            options:
              uri: {_DOWN}?password={_SECRET}
              jdbc.user: u
              jdbc.password: ${{env:CATALOG_PASSWORD}}
        """,
    )
    found = said(capsys, "config", "show", "--config", config)
    assert "catalogs.lake.options.jdbc.password = ${env:CATALOG_PASSWORD}" in found
    assert f"catalogs.lake.options.uri = {_DOWN}?***" in found
    assert _SECRET not in found


@pytest.mark.parametrize(
    ("arrange", "code", "message"),
    [
        ("", 0, "can be used, and so can its catalogs"),
        ("DROP TABLE paimon_tables", 3, "no table paimon_tables"),
        ("DROP TABLE paimon_distributed_locks", 3, "no table paimon_distributed_locks"),
    ],
)
def test_a_check_online_asks_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arrange: str, code: int, message: str
) -> None:
    (tmp_path / "wh").mkdir()
    uri = sqlite_database(tmp_path / "c.db")
    if arrange:
        run_sql(tmp_path / "c.db", arrange)
    options = f'{{uri: "{uri}", lock.enabled: true}}'
    text = f"catalogs:\n  lake: {{warehouse: WH, metastore: jdbc, options: {options}}}\n"
    arguments = ("config", "check", "--online", "--config", configuration(tmp_path, text))
    found = said(capsys, *arguments, code=code)
    assert message in found
    assert not code or f"catalogs.lake.options.uri is {uri}: expected a catalog that can" in found


def test_the_doctor_takes_the_lock_once_and_gives_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wh").mkdir()
    uri = sqlite_database(tmp_path / "c.db")
    found = said(capsys, "doctor", *_by_arguments(tmp_path, uri, "lock.enabled=true"))
    assert "warehouse: lock" in found
    assert "taken and released; all writers of its tables must also have lock.enabled" in found
    assert run_sql(tmp_path / "c.db", "SELECT * FROM paimon_distributed_locks") == []


def test_the_doctor_says_what_is_wrong_with_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wh").mkdir()
    where = _by_arguments(tmp_path, _DOWN, "jdbc.user=u", f"jdbc.password={_SECRET}")
    found = said(capsys, "doctor", *where, code=3)
    assert "warehouse: catalog" in found
    assert "the catalog's database failed: connection failed" in found
    assert "-> correct uri, jdbc.user, jdbc.password or lock.enabled" in found
    assert _SECRET not in found


def test_without_its_packages_a_jdbc_catalog_is_refused_with_the_remedy(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['sqlalchemy'] = None; "
        "from compactord.cli.command import main; sys.exit(main(sys.argv[1:]))"
    )
    where = _by_arguments(tmp_path, "jdbc:sqlite:/c.db")
    run = subprocess.run(
        [sys.executable, "-c", program, "tables", *where], capture_output=True, text=True
    )
    assert run.returncode == 2, run.stderr
    assert "pip install 'psycopg[binary]" in run.stderr


@pytest.mark.spark
def test_a_pass_of_compact_publishes_under_the_lock(tmp_path: Path) -> None:
    table = keyed(tmp_path / "wh", "db.t", commits=6)
    uri = sqlite_database(tmp_path / "c.db", ["db.t"])
    run_sql(tmp_path / "c.db", "CREATE TABLE taken (lock_id)")
    run_sql(
        tmp_path / "c.db",
        "CREATE TRIGGER note AFTER INSERT ON paimon_distributed_locks "
        "BEGIN INSERT INTO taken VALUES (new.lock_id); END",
    )
    where = _by_arguments(tmp_path, uri, "lock.enabled=true")
    # In a process of its own: one has a single Spark, and other tests may have it here.
    command = [sys.executable, "-m", "compactord", "compact", *where, "--table", "db.t", "--json"]
    run = subprocess.run([*command, "--master", "local[1]"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["snapshots"] == [7]
    assert max(snapshot_ids(LocalStorage(), table.location)) == 7
    assert run_sql(tmp_path / "c.db", "SELECT * FROM taken") == [("jdbc.db.t",)]
    assert run_sql(tmp_path / "c.db", "SELECT * FROM paimon_distributed_locks") == []


def test_options_of_stores_without_an_effect_are_named_and_stop_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "d.t")
    text = f"""\
    catalogs:
      lake: {{warehouse: WH, options: {{s3.secret-key: {_SECRET}, fs.defaultFS: "hdfs://h"}}}}
    """
    config = ("--config", configuration(tmp_path, text))
    checked = said(capsys, "config", "check", *config)
    assert "warning: catalogs.lake.options.s3.secret-key has no effect on the store" in checked
    (first, second) = answered(capsys, "config", "check", "--json", *config)["warnings"]
    assert (first in checked, "fs.defaultFS" in second) == (True, True)
    assert "no effect on this store: s3.secret-key, fs.defaultFS" in said(capsys, "doctor", *config)
    assert "options_without_effect" in (told := said(capsys, "tables", *config))
    assert _SECRET not in checked + told
