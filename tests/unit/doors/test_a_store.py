"""A store of another scheme: one module (`mem_store.py`) and one line, without other changes."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog.testing

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.cli.command import main
from compactord.cli.registries import Registries
from compactord.cli.serve import load_usable, open_configured, warn_of_options
from compactord.config.load import show_text
from compactord.config.problems import ConfigInvalid
from compactord.errors import UnsupportedTable, UsageError
from compactord.model import Subcompaction
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage
from compactord.storage.open import STORES, Stores, scheme_of
from compactord.storage.requests import StorageOp, StorageRequest, metered
from tests import builders
from tests.builders import FIRST, VirtualClock
from tests.inline_engine import InlineEngine
from tests.unit.cli.warehouses import configuration
from tests.unit.doors import mem_store
from tests.unit.doors.command import started_by
from tests.unit.doors.mem_store import KEY, MEM

# The line of the registry.
_OURS = replace(STORES, known=(*STORES.known, MEM))
_WITH_OURS = Registries(stores=_OURS)
_OPTIONS = {"mem.key": KEY}


class Away(InlineEngine):
    """Subcompactions go to their worker as bytes, which `on_the_way` is shown."""

    def __init__(self, on_the_way: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_the_way = on_the_way

    def submit(self, subcompaction: Subcompaction) -> None:
        payload = pickle.dumps(subcompaction)
        self._on_the_way(payload)
        super().submit(pickle.loads(payload))


@pytest.fixture(autouse=True)
def _key_as_at_first() -> Iterator[None]:
    yield
    mem_store.accepted["key"] = KEY


@pytest.fixture
def filled() -> tuple[Catalog, dict[int, int], Counter[StorageOp]]:
    """A warehouse with a table that is due, the table's rows, and what its driver asked for."""
    mem_store.buckets.clear()
    asked: Counter[StorageOp] = Counter()
    catalog = open_catalog("mem://lake/wh", _counting(asked), options=_OPTIONS, is_guarded=True)
    table = builders.keyed_table(catalog.warehouse_storage, f"{catalog.warehouse}/db.db/t")
    rows = builders.fill_keyed(builders.writer(catalog.warehouse_storage, table), commits=6)
    catalog.check_commits()
    asked.clear()
    return catalog, rows, asked


def _counting(asked: Counter[StorageOp]) -> Stores:
    """The stores, whose requests are counted."""

    def report(request: StorageRequest) -> None:
        assert request.store == "mem"
        asked[request.op] += 1

    def counted(storage: Storage, location: str) -> Storage:
        return metered(storage, report, VirtualClock(), store=scheme_of(location))

    return _OURS.wrapped(counted)


def test_a_table_of_a_store_of_another_scheme_is_compacted(
    filled: tuple[Catalog, dict[int, int], Counter[StorageOp]], tmp_path: Path
) -> None:
    catalog, rows, asked = filled
    table = catalog.find_table("db.t")
    sent: list[bytes] = []
    options = f"{{mem.key: {KEY}, mem.exclusive: '1'}}"
    text = f"catalogs: {{lake: {{warehouse: 'mem://lake/wh', options: {options}}}}}"
    registries = Registries(
        stores=_counting(asked), engines=started_by(lambda *_: Away(sent.append))
    )
    assert main(["compact", "--all", "--config", configuration(tmp_path, text)], registries) == 0
    assert len(sent) == 2
    assert builders.read_keyed(catalog.warehouse_storage, table) == rows
    builders.check_chain(catalog.warehouse_storage, table)
    assert builders.leftovers(catalog.warehouse_storage, table, [FIRST]) == set()
    assert table.location == "/wh/db.db/t"
    assert not any(KEY.encode() in payload for payload in sent)
    # What workers write, their driver does not ask for: it publishes, after a proof in two calls.
    assert asked[StorageOp.PUT_IF_ABSENT] == 3


def test_a_worker_opens_the_store_by_what_it_finds_itself(
    filled: tuple[Catalog, dict[int, int], Counter[StorageOp]],
) -> None:
    catalog, rows, _ = filled
    table = catalog.find_table("db.t")

    def change_the_lock(payload: bytes) -> None:
        mem_store.accepted["key"] = "another"

    totals = builders.compact(
        catalog.warehouse_storage,
        table,
        publisher=catalog.open(table).publisher,
        start_engine=lambda: Away(change_the_lock),
    )
    assert (totals.snapshots, totals.denied) == ([], len(totals.failures))
    assert len(totals.failures) == 2
    assert all("wrong key" in failure for failure in totals.failures)
    assert builders.read_keyed(catalog.warehouse_storage, table) == rows


def test_a_configuration_has_its_options_and_hides_its_secrets(
    filled: tuple[Catalog, dict[int, int], Counter[StorageOp]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = f"""\
    catalogs:
      lake:
        warehouse: mem://lake/wh
        unlocked_writers: guarded
        options: {{mem.key: {KEY}, mem.exclusve: "1", s3.endpoint: e, cache-enabled: "true"}}
    """
    path = configuration(tmp_path, text)
    loaded = load_usable(path, (), _WITH_OURS)
    catalog = open_configured(loaded.config, "lake", _WITH_OURS)
    assert [table.full_name for table in catalog.list_tables().tables] == ["db.t"]
    assert KEY not in "\n".join(show_text(loaded)) + repr(catalog.warehouse_storage.spec)
    with structlog.testing.capture_logs() as logs:
        warn_of_options(loaded.config, loaded.config.catalogs, _OURS)
    assert logs == [
        {
            "event": "options_without_effect",
            "log_level": "warning",
            "catalog": "lake",
            "options": ("mem.exclusve (did you mean mem.exclusive?)", "s3.endpoint"),
        }
    ]
    elsewhere = ["compact", "--all", "--config", path, "--master", "spark://elsewhere:7077"]
    assert main(elsewhere, _WITH_OURS) == 2
    assert "mem.key" in capsys.readouterr().err


def test_its_tables_are_registered_and_options_without_effect_named(
    filled: tuple[Catalog, dict[int, int], Counter[StorageOp]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "c.db").touch()
    options = f"{{uri: 'jdbc:sqlite:{tmp_path}/c.db', mem.key: {KEY}, mem.exclusve: '1'}}"
    section = f"{{metastore: jdbc, warehouse: 'mem://lake/wh', options: {options}}}"
    config = configuration(tmp_path, f"catalogs: {{lake: {section}}}")
    assert main(["catalog", "register", "--all", "--config", config], _WITH_OURS) == 0
    said = capsys.readouterr()
    assert "VALUES ('jdbc', 'db', 't'" in said.out
    assert "mem.exclusve (did you mean mem.exclusive?)" in said.err


def test_what_the_store_refuses_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    text = "catalogs: {lake: {warehouse: 'mem://lake/wh', options: {mem.cipher: a}}}"
    with pytest.raises(ConfigInvalid) as caught:
        load_usable(configuration(tmp_path, text), (), _WITH_OURS)
    (problem,) = caught.value.problems
    assert (problem.key, problem.expected) == (
        "catalogs.lake.options.mem.cipher",
        "no such option: nothing is encrypted",
    )
    with pytest.raises(UsageError, match="warehouse mem:///wh: a bucket is missing"):
        open_catalog("mem:///wh", _OURS)


def test_its_writers_are_guarded_unless_they_exclude_each_other() -> None:
    table = TableRef(database="db", name="t", location="/wh/db.db/t")
    with pytest.raises(UnsupportedTable, match="without a lock"):
        open_catalog("mem://lake/wh", _OURS, options=_OPTIONS).open(table)
    for more, is_guarded, settle_ms in (({}, True, 10_000), ({"mem.exclusive": "1"}, False, 0)):
        options = {**_OPTIONS, **more}
        catalog = open_catalog("mem://lake/wh", _OURS, options=options, is_guarded=is_guarded)
        assert catalog.open(table).publisher.settle_ms == settle_ms


def test_where_nobody_adds_it_the_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mem://lake/wh: scheme mem:// is not supported yet"):
        open_catalog("mem://lake/wh")
