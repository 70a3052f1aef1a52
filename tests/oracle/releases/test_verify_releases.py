"""`verify --pages all` finds nothing wrong with tables that older releases of Java Paimon wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.oracle.judge import Judge
from tests.oracle.releases.release import Release
from tests.oracle.releases.test_releases import SHAPES, History, Shape
from tests.unit.cli.warehouses import answered

VECTORS = {"deletion-vectors.enabled": "true", "bucket": "1"}
# Beside the shape, what cannot be verified.
OPTIONS: dict[str, tuple[Mapping[str, str], str]] = {
    "as usual": ({}, ""),
    "orc manifests": ({"manifest.format": "orc"}, "has format ORC: manifests are read as Avro"),
    "orc files": ({"file.format": "orc"}, ""),
    "vectors": (VECTORS, ""),
    "vectors beside data": ({"index-file-in-data-file-dir": "true", **VECTORS}, ""),
    "suffixes": ({"file.suffix.include.compression": "true"}, ""),
    "thin": ({"data-file.thin-mode": "true"}, ""),
}


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *((shape, "as usual") for shape in SHAPES),
        *(("primary-key", name) for name in OPTIONS if name != "as usual"),
    ],
)
def test_nothing_is_wrong_with_what_a_release_writes(
    release: Release,
    judge: Judge,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    shape: str,
    options: str,
) -> None:
    more, unknown = OPTIONS[options]
    path, like = tmp_path / "db.db" / "t", SHAPES[shape]
    history = History(release, judge, path, replace(like, options={**like.options, **more}))
    history.write_rows(3)
    if not like.partition_by:
        release.compact(path, buckets=int(history.table.options["bucket"]))
    history.write_rows(2)
    judge.create_tag(path, "kept", min(judge.snapshots(path)))
    judge.create_branch(path, "side", "kept")
    for table in ("db.t", "db.t$branch_side"):
        where = ("--warehouse", str(tmp_path), "--table", table, "--all-snapshots")
        found = answered(capsys, "verify", *where, "--pages", "all")
        assert found["findings"] == []
        assert found["whole"] is (None if unknown else True), found["not_verified"]
        assert not unknown or any(unknown in text for text in found["not_verified"])


@pytest.mark.parametrize("release", ["0.8.2"], indirect=True)
def test_maps_of_0_8_are_no_damage(
    release: Release, judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their Parquet files can be read by later releases of Java only."""
    shape = Shape(
        columns=(
            ("k", "INT NOT NULL"),
            ("m", {"type": "MAP", "key": "STRING NOT NULL", "value": "INT"}),
        ),
        primary_key=("k",),
        options={"bucket": "1"},
    )
    history = History(release, judge, tmp_path / "db.db" / "t", shape)
    history.write([[1, [["a", 1]]]])
    for pages, lines in (((), 1), (("--pages", "all"), 2)):
        where = ("--warehouse", str(tmp_path), "--table", "db.t")
        found = answered(capsys, "verify", *where, *pages)
        assert (found["whole"], found["findings"]) == (None, [])
        assert len(found["not_verified"]) == lines
        assert all("as Paimon 0.8 declares them" in text for text in found["not_verified"])
