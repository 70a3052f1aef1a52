"""Options and metadata that nobody can mean: refused by name, and the table is untouched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compactord.cli.command import main
from tests.e2e import tables
from tests.e2e.tables import of_table


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
        "file.format=csv",
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
        assert main([command, *of_table(tmp_path), "--strategy", "full"]) == 4
        assert f"option {option}" in capsys.readouterr().err
    assert tables.digest(tmp_path) == before


@pytest.mark.parametrize("name", ["manifest\0list", "\ud800"], ids=["nul", "surrogate"])
def test_metadata_that_names_an_impossible_file_ends_with_3(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.small_keyed(tmp_path, buckets=1)
    snapshot = Path(tables.location(tmp_path)) / "snapshot" / "snapshot-6"
    content = json.loads(snapshot.read_text())
    content["baseManifestList"] = name
    snapshot.write_text(json.dumps(content))
    assert main(["plan", *of_table(tmp_path)]) == 3
    assert "manifest" in capsys.readouterr().err
