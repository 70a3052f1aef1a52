"""`compactord why`: the planner's reasons in words, what comes next, where options come from."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compactord.clock import SystemClock
from compactord.config.load import load_config
from compactord.paimon.schema import TableRef
from compactord.service.codec import plain
from compactord.service.view import QuarantineView, TableDetail
from compactord.service.why import explained
from compactord.table.explain import bucket_details
from tests.unit.cli.warehouses import LOCAL, RULES, answered, append, configuration, keyed, said
from tests.unit.table.compacting import ALL, compactor_of
from tests.views import table_view

_RUN = "num-sorted-run_compaction-trigger"


def _why(
    capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, rules: str = ""
) -> dict[str, Any]:
    config = configuration(folder, f"catalogs: {{lake: {{warehouse: WH}}}}\n{rules}")
    return answered(capsys, "why", "d.t", "--config", config, *arguments)


@pytest.mark.parametrize(
    ("commits", "options", "reason", "why", "later"),
    [
        (9, {}, "size_amp", "806 % of the oldest, above 200 %", ", before other work: 9 runs"),
        (5, {}, "size_amp", "above 200 %", "within 10 s (continuous.discovery-interval)"),
        (
            5,
            {"compaction_max__size__amplification__percent": "9999"},
            "size_ratio",
            "5 sorted runs, 5 or more",
            "when a slot is free",
        ),
        (
            2,
            {"compaction_optimization__interval": "1 h"},
            "full_interval",
            "no full compaction within 1 h",
            "when a slot is free",
        ),
        (
            2,
            {"compaction_total__size__threshold": "1 gb"},
            "total_size",
            "below 1.0 GiB (compaction.total-size-threshold)",
            "when a slot is free",
        ),
        (
            2,
            {"compaction_incremental__size__threshold": "1 kb"},
            "incremental_size",
            "more than 1.0 KiB below the highest level",
            "when a slot is free",
        ),
        (2, {"compaction_force__up__level__0": "true"}, "force_l0", "level 0 must be empty", ""),
        (
            3,
            {"full__compaction_delta__commits": "3"},
            "delta_commits",
            "3 commits or more since its last full compaction",
            "",
        ),
        (3, {}, None, "3 sorted runs; sizes are compared from 5 on", "with 2 more runs"),
        (4, {}, None, "4 sorted runs; sizes are compared from 5 on", "with 1 more run"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)
def test_what_is_picked_of_runs_and_what_is_not_is_said_with_its_numbers(
    commits: int,
    options: dict[str, str],
    *,
    reason: str | None,
    why: str,
    later: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keyed(tmp_path / "wh", "d.t", commits=commits, **options)
    (bucket,) = _why(capsys, tmp_path)["buckets"]
    assert (bucket["reason"], bucket["what"] == "") == (reason, reason is None)
    assert why in bucket["why"]
    assert later in bucket["later"]


@pytest.mark.parametrize(
    ("commits", "wait", "reason", "why", "later"),
    [
        (6, "null", "append_pack", "or 5 of them (compaction.min.file-num)", "within 10 s"),
        (3, "1 min", "append_wait", "two or more have waited longer than 1 min", "within 10 s"),
        (3, "null", None, "merged from 5 on (compaction.min.file-num)", "with 2 more small files"),
        (4, "null", None, "4 files below 179 MiB", "with 1 more small file"),
        (3, "99999 d", None, "merged from 5 on", "(append_wait)"),
    ],
)
def test_of_files_without_keys_too(
    commits: int,
    wait: str,
    *,
    reason: str | None,
    why: str,
    later: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    append(tmp_path / "wh", "d.t", commits=commits)
    found = _why(capsys, tmp_path, rules=f"defaults: {{append_wait: {wait}}}")
    (bucket,) = found["buckets"]
    assert (bucket["reason"], bucket["what"] == "") == (reason, reason is None)
    assert why in bucket["why"]
    assert later in bucket["later"]


@pytest.mark.parametrize(
    ("commits", "settings", "later"),
    [
        (5, "mode: paused", "not by the service, as the table is paused"),
        (5, "windows: [{WINDOW, allow: [full]}]", "when its window opens at 20"),
        (5, "windows: [{WINDOW, allow: [minor]}]", "within 10 s"),
        (9, "windows: [{WINDOW, allow: [full]}]", "within 10 s"),
        (9, "windows_strict: true, windows: [{WINDOW, allow: [full]}]", "when its window opens"),
        (5, "discovery_interval: 3 s", "within 3 s (discovery_interval)"),
        (
            5,
            "discovery_interval: 3 s, max_quiet_interval: 5 min",
            "within 3 s (discovery_interval), up to 5 min while nothing changes",
        ),
    ],
)
def test_when_it_begins_depends_on_pauses_windows_and_polls(
    commits: int,
    settings: str,
    later: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """size_amp is work of kind full; from 7 runs on it is forced and ignores windows."""
    keyed(tmp_path / "wh", "d.t", commits=commits)
    # A minute that is not now, whenever the test runs.
    settings = settings.replace("WINDOW", _a_minute_far_from_now())
    rules = f"rules: [{{match: {{table: 'd.*'}}, set: {{{settings}}}}}]"
    (bucket,) = _why(capsys, tmp_path, rules=rules)["buckets"]
    assert later in bucket["later"]


def test_what_readers_wait_for_is_said_and_goes_before_other_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "d.t", commits=2, changelog__producer="full-compaction")
    window = f"windows: [{{{_a_minute_far_from_now()}, allow: [full]}}]"
    rules = f"defaults: {{max_freshness_lag: 5 min, max_quiet_interval: 1 h, {window}}}"
    found = _why(capsys, tmp_path, rules=rules)
    (bucket,) = found["buckets"]
    assert "within 10 s (" in bucket["later"], "whatever its window says"
    assert "while nothing changes" not in bucket["later"]
    assert ", before other work: readers wait for it" in bucket["later"]
    assert found["waiting_since_ms"] > 0
    config = configuration(tmp_path, f"catalogs: {{lake: {{warehouse: WH}}}}\n{rules}")
    text = said(capsys, "why", "d.t", "--config", config)
    assert "to be seen by readers (max_freshness_lag 5 min)" in text


def _a_minute_far_from_now() -> str:
    hour = (datetime.datetime.now().astimezone().hour + 12) % 24
    return f'from: "{hour:02}:00", to: "{hour:02}:01"'


def test_effective_options_and_settings_say_where_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "sales.lazy", commits=6, snapshot_num__retained_min="3")
    config = configuration(tmp_path, RULES)
    lazy = ("why", "sales.lazy", "--config", config)
    found = answered(capsys, *lazy, "--set", "defaults.priority=70")
    assert found["rules"] == [f"rules.0 ({config}:6)"]
    options, settings = found["options"], found["settings"]
    trigger = "num-sorted-run.compaction-trigger"
    place = f"rules.0.set.options.{trigger} ({config}:7)"
    assert options[trigger] == {"value": "9", "origin": place}
    assert options["snapshot.num-retained.min"] == {"value": "3", "origin": "the table"}
    assert options["compaction.size-ratio"] == {"value": "1", "origin": "Paimon's default"}
    assert settings["priority"] == {"value": "70", "origin": "defaults.priority (--set)"}
    place = f"rules.0.set.append_wait ({config}:7)"
    assert settings["append_wait"] == {"value": "null", "origin": place}
    assert settings["mode"] == {"value": "auto", "origin": "defaults.mode (default)"}
    text = said(capsys, *lazy)
    assert f"rules that match: rules.0 ({config}:6)" in text
    assert "bucket 0: nothing is picked" in text
    assert "what it has halted or quarantined: --url http://HOST:9464" in text


def test_one_bucket_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keyed(tmp_path / "wh", "d.t", commits=6, bucket="3")
    found = _why(capsys, tmp_path, "--bucket", "1")
    assert [bucket["bucket"] for bucket in found["buckets"]] == [1]
    found = _why(capsys, tmp_path, "--worst", "2")
    assert (len(found["buckets"]), found["buckets_asked"], found["bucket_count"]) == (2, 3, 3)
    config = f"{tmp_path}/compactord.yaml"
    missing = said(capsys, "why", "d.t", "--config", config, "--bucket", "9", code=2)
    assert "no live files in the requested buckets" in missing


def test_a_table_that_is_refused_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "d.t", row__tracking_enabled="true")
    text = said(capsys, "why", "d.t", "--warehouse", f"{tmp_path}/wh")
    assert "unsupported: option row-tracking.enabled=true: every row" in text


def test_what_was_given_by_reference_is_shown_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HIDDEN", "4711")
    keyed(tmp_path / "wh", "d.t", commits=1)
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        defaults: {options: {num-sorted-run.stop-trigger: "${env:HIDDEN}"}}
        """,
    )
    text = said(capsys, "why", "d.t", "--config", config)
    assert "4711" not in text
    assert "num-sorted-run.stop-trigger                ${env:HIDDEN}  defaults.options." in text


@pytest.mark.parametrize(
    "make",
    [partial(keyed, commits=9), partial(keyed, commits=3), partial(append, commits=6)],
    ids=["forced", "idle", "append"],
)
def test_a_service_explains_a_table_as_the_command_does(
    make: Callable[[Path, str], TableRef], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = "rules: [{match: {table: d.t}, set: {options: {write-buffer-size: 1 mb}, priority: 7}}]"
    table, clock = make(tmp_path / "wh", "d.t"), SystemClock()
    expected = _why(capsys, tmp_path, rules=rules)
    compactor = compactor_of(LOCAL, table, clock=clock, append_wait_ms=3_600_000)
    compactor.cycle((), ALL)
    assert compactor.last_plan is not None
    detail = explained(
        TableDetail(
            view=table_view("d.t"), buckets=bucket_details(compactor.last_plan), bucket_count=1
        ),
        compactor.last_plan.table,
        load_config(str(tmp_path / "compactord.yaml"), environ={}),
        now_ms=clock.now_ms(),
        zone=clock.time_zone,
    )
    served = plain(detail)
    for key in ("rules", "closed_windows", "poll", "settings", "options"):
        assert served[key] == expected[key]
    (bucket,), (known,) = served["buckets"], expected["buckets"]
    assert {key: bucket[key] for key in known} == known
    assert served["rules"] != []


@pytest.mark.parametrize(
    ("quarantined", "later"),
    [((), "within 10 s"), ((7,), "within 10 s"), ((7, 0), "when its quarantine ends")],
)
def test_a_quarantined_bucket_is_not_picked_before(
    quarantined: tuple[int, ...], later: str, tmp_path: Path
) -> None:
    config = configuration(tmp_path, "catalogs: {lake: {warehouse: WH}}")
    table, clock = keyed(tmp_path / "wh", "d.t", commits=6), SystemClock()
    compactor = compactor_of(LOCAL, table, clock=clock, append_wait_ms=3_600_000)
    compactor.cycle((), ALL)
    assert compactor.last_plan is not None
    failed = tuple(
        QuarantineView(partition="", bucket=bucket, failures=2, message="bad", until_ms=0)
        for bucket in quarantined
    )
    view = table_view("d.t", quarantined=failed, quarantined_count=len(failed))
    found = explained(
        TableDetail(view=view, buckets=bucket_details(compactor.last_plan), bucket_count=1),
        compactor.last_plan.table,
        load_config(str(config), environ={}),
        now_ms=clock.now_ms(),
        zone=clock.time_zone,
    )
    assert found.buckets[0].later.startswith(later)
