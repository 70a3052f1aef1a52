"""Options that would lose rows, or that nobody can mean: said so, and the table is untouched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compactord.cli.command import main
from compactord.state.table_state import load_state
from tests import builders
from tests.e2e import tables
from tests.e2e.command import Commands
from tests.e2e.tables import LOCAL, of_table

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("command", ["compact", "plan"])
@pytest.mark.parametrize(
    "option",
    [
        "data-file.prefix=x/y",
        "data-file.prefix=../",
        "data-file.prefix=a:b",
        "data-file.prefix=",
        "num-levels=2147483647",
        "num-levels=1",
        "file.compression.zstd-level=23",
        "parquet.compression.codec.zstd.level=23",
        "file.format=orc",
        "file.compression=brotli",
        "manifest.compression=foo",
        "fields.nope.stats-mode=full",
    ],
)
def test_options_of_a_run_that_cannot_be_meant_end_with_2(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.small_keyed(tmp_path)
    before = tables.digest(tmp_path)
    arguments = [command, *of_table(tmp_path), "--strategy", "full", "--json", "--option", option]
    assert main(arguments) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "UsageError"
    assert tables.digest(tmp_path) == before


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("data-file.prefix", "x/y"),
        ("data-file.prefix", "../"),
        ("num-levels", "2147483647"),
        ("num-levels", "1"),
        ("deletion-vectors.enabled", "yes"),
        ("merge-engine", "foo"),
        ("changelog-producer", "foo"),
        ("bucket", "abc"),
        ("fields.nope.stats-mode", "full"),
    ],
)
def test_tables_with_options_that_cannot_be_meant_are_left_alone_by_name(
    option: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.small_keyed(tmp_path)
    schema = Path(tables.location(tmp_path), "schema", "schema-0")
    content = json.loads(schema.read_text())
    content["options"][option] = text
    schema.write_text(json.dumps(content))
    before = tables.digest(tmp_path)

    assert main(["inspect", *of_table(tmp_path)]) == 0
    _, _, reasons = capsys.readouterr().out.partition("NOT SUPPORTED, not compacted:")
    assert f"option {option}" in reasons
    for command in ("plan", "compact"):
        assert main([command, *of_table(tmp_path), "--strategy", "full"]) == 3
        assert f"option {option}" in capsys.readouterr().err
    assert tables.digest(tmp_path) == before


def test_levels_and_compression_beyond_all_bounds_are_moved_to_the_nearest_that_there_are(
    commands: Commands, tmp_path: Path
) -> None:
    options = {
        "file.compression.zstd-level": "2147483647",
        "num-sorted-run.compaction-trigger": "2147483647",
        "data-file.prefix": "a b.ü%#?-",
    }
    table = builders.keyed_table(LOCAL, tables.location(tmp_path), options=options)
    expected = builders.fill_keyed(builders.writer(LOCAL, table), commits=6)
    outcome = commands.run("compact", *of_table(tmp_path), "--strategy", "full", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.found["snapshots"]
    state = load_state(LOCAL, tables.ref(tmp_path))
    files = [f for bucket in state.files.bucket_ids() for f in state.files.files_in(bucket)]
    assert {file.level for file in files} == {999}
    assert all(file.file_name.startswith(options["data-file.prefix"]) for file in files)
    rows = tables.rows_of(tmp_path)
    assert dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected
    assert tables.leftovers(tmp_path) == set()
