from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from compactord.config.load import load_config
from compactord.config.problems import ConfigInvalid, OriginKind
from compactord.errors import UsageError
from tests.unit.config.files import load, problems


def test_what_yaml_wants_is_quoted_and_what_it_found_is_not(tmp_path: Path) -> None:
    (braces,) = problems(tmp_path, "startup: {timeout: ${env:NAME}}\n")
    assert "expected ',' or '}', but got '{'" in str(braces)
    (alias,) = problems(tmp_path, "spark: {master: *hunter2}\n")
    assert "hunter2" not in str(alias)


def test_the_smallest_file_is_enough(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert loaded.config.catalogs["lake"].warehouse == "/data/wh"
    assert loaded.config.service.http.port == 9464
    assert str(loaded.origins["service.http.port"]) == "default"
    assert loaded.origins["catalogs.lake.warehouse"].line == 1


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = "metrics: {max_tables: 1, top_n: 1}\nretry: {task_attempts: 1}\n"
    environ = {"COMPACTORD__METRICS__MAX_TABLES": "2", "COMPACTORD__METRICS__TOP_N": "2"}
    loaded = load(tmp_path, text, environ=environ, overrides=["metrics.top_n=3"])
    assert loaded.config.retry.task_attempts == 1
    assert loaded.config.metrics.max_tables == 2
    assert loaded.config.metrics.top_n == 3
    assert str(loaded.origins["retry.task_attempts"]) == f"{loaded.path}:3"
    assert str(loaded.origins["metrics.max_tables"]) == "env COMPACTORD__METRICS__MAX_TABLES"
    assert str(loaded.origins["metrics.top_n"]) == "--set"
    assert str(loaded.origins["alerts.stop_trigger_fallback"]) == "default"


def test_the_last_of_two_overrides_of_a_key_wins(tmp_path: Path) -> None:
    loaded = load(tmp_path, overrides=["log.level=error", "log.level=debug"])
    assert loaded.config.log.level.value == "debug"


def test_values_of_overrides_are_yaml(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        environ={"COMPACTORD__SPARK__CONF": "{spark.cores.max: 16, spark.ui.enabled: false}"},
        overrides=["defaults.windows=[{from: '22:00', allow: [full]}]", "spark.master="],
    )
    assert loaded.config.spark.conf == {"spark.cores.max": "16", "spark.ui.enabled": "false"}
    assert loaded.config.spark.master is None
    assert loaded.config.defaults.windows[0].from_minute == 22 * 60


def test_a_mapping_from_above_replaces_the_whole_mapping(tmp_path: Path) -> None:
    text = "defaults: {options: {num-levels: 5, write-only: true}}\n"
    loaded = load(tmp_path, text, overrides=["defaults.options={num-levels: 6}"])
    assert loaded.config.defaults.options == {"num-levels": "6"}


def test_keys_with_dots_are_reached_where_any_key_may_stand(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        environ={"COMPACTORD__DEFAULTS__OPTIONS__num-levels": "7"},
        overrides=[
            "defaults.options.num-sorted-run.compaction-trigger=4",
            "spark.conf.spark.cores.max=16",
        ],
    )
    assert loaded.config.defaults.options == {
        "num-levels": "7",
        "num-sorted-run.compaction-trigger": "4",
    }
    assert loaded.config.spark.conf == {"spark.cores.max": "16"}


def test_list_items_are_reached_and_appended_by_index(tmp_path: Path) -> None:
    text = "rules: [{match: {table: a}, set: {priority: 1, mode: paused}}]\n"
    environ = {"COMPACTORD__RULES__0__SET__PRIORITY": "2"}
    # The tenth comes after the second, whatever their names' order.
    environ |= {
        f"COMPACTORD__RULES__{n}": f"{{match: {{}}, set: {{priority: {n}}}}}" for n in range(1, 11)
    }
    loaded = load(tmp_path, text, environ=environ, overrides=["rules.1.match.table=b"])
    first, second, *_ = loaded.config.rules
    assert (first.settings.priority, first.settings.mode.value) == (2, "paused")
    assert second.match.table is not None
    assert second.match.table.pattern == "b"
    assert [rule.settings.priority for rule in loaded.config.rules] == [2, *range(1, 11)]


def test_a_catalog_is_met_in_any_case_by_the_environment(tmp_path: Path) -> None:
    text = "catalogs: {Lake: {warehouse: /a}}\n"
    environ = {"COMPACTORD__CATALOGS__LAKE__WAREHOUSE": "/b"}
    loaded = load(tmp_path, text, environ=environ, whole=True)
    assert {name: c.warehouse for name, c in loaded.config.catalogs.items()} == {"Lake": "/b"}


def test_texts_that_older_yaml_takes_for_something_else_stay_texts(tmp_path: Path) -> None:
    text = """\
        defaults:
          expire_snapshots: off
          windows:
            - {from: 01:00, to: 06:00}
        spark:
          conf:
            {spark.a: on, spark.b: 012, spark.c: 2026-01-01, spark.d: 1_000, spark.e: 0x10,
             spark.f: 1e3, spark.g: 0.10}
        """
    config = load(tmp_path, text).config
    assert config.defaults.expire_snapshots.value == "off"
    assert (config.defaults.windows[0].from_minute, config.defaults.windows[0].to_minute) == (
        60,
        360,
    )
    assert config.spark.conf == {
        "spark.a": "on",
        "spark.b": "012",
        "spark.c": "2026-01-01",
        "spark.d": "1_000",
        "spark.e": "0x10",
        "spark.f": "1e3",
        "spark.g": "0.10",
    }


def test_whole_numbers_may_be_written_with_zeros_in_front(tmp_path: Path) -> None:
    assert load(tmp_path, "defaults: {priority: 007}\n").config.defaults.priority == 7


def test_sections_and_lists_without_entries_are_their_defaults(tmp_path: Path) -> None:
    text = """\
        spark:
        rules:
        defaults:
          windows:
          options:
        """
    config = load(tmp_path, text).config
    assert config == load(tmp_path).config


def test_anchors_are_followed(tmp_path: Path) -> None:
    text = """\
        defaults:
          windows: &night [{from: "22:00", to: "06:00"}]
        rules:
          - {match: {}, set: {windows: *night}}
        """
    config = load(tmp_path, text).config
    assert config.rules[0].settings.windows == config.defaults.windows


def test_references_are_filled_in(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    text = f"""\
        service: {{instance_name: "a-${{env:HOST}}-b", http: {{port: "${{env:PORT}}"}}}}
        spark:
          conf:
            spark.a: "${{file:{secret}}}"
            spark.b: "$${{env:HOST}}"
            spark.c: "${{env:LOOP}}"
            spark.d: 1$
        defaults: {{only_write_only: "${{env:FLAG}}"}}
        """
    environ = {"HOST": "h", "PORT": "9500", "LOOP": "${env:HOST}", "FLAG": "false"}
    config = load(tmp_path, text, environ=environ).config
    assert config.service.instance_name == "a-h-b"
    assert config.service.http.port == 9500
    assert config.defaults.only_write_only is False
    assert config.spark.conf == {
        "spark.a": "sesame",
        "spark.b": "${env:HOST}",
        "spark.c": "${env:HOST}",
        "spark.d": "1$",
    }


def test_the_digest_follows_the_file_and_what_it_refers_to(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one")
    text = f'spark: {{conf: {{spark.a: "${{file:{secret}}}"}}}}\n'
    first = load(tmp_path, text).digest
    assert load(tmp_path, text).digest == first
    secret.write_text("two")
    second = load(tmp_path, text).digest
    assert second != first
    assert load(tmp_path, text + "# same meaning\n").digest not in (first, second)


def test_an_invalid_file_has_a_digest_that_follows_it(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        with pytest.raises(ConfigInvalid) as caught:
            load(tmp_path, text)
        return caught.value.digest

    assert digest("a: 1\n") == digest("a: 1\n") != digest("a: 2\n")
    assert digest("a: [\n") != digest("a: {\n")


def test_all_problems_are_reported_at_once_in_the_order_of_their_places(tmp_path: Path) -> None:
    text = """\
        service:
          http: {prot: 9000, port: 99999}
        defaults:
          priority: 101
          options: {num-level: 5, num-levels: x}
        shutdown: {grace: 10 s}
        """
    found = problems(
        tmp_path,
        text,
        environ={"COMPACTORD__LOG__LEVL": "x"},
        overrides=["log.format=xml", "spark"],
    )
    assert [(p.line, p.key) for p in found] == [
        (3, "service.http.port"),
        (3, "service.http.prot"),
        (5, "defaults.priority"),
        (6, "defaults.options.num-level"),
        (6, "defaults.options.num-levels"),
        (7, "shutdown.commit_reserve"),
        (None, "log.levl"),
        (None, "log.format"),
        (None, "spark"),
    ]
    kinds = [p.origin.kind for p in found[6:]]
    assert kinds == [OriginKind.ENVIRONMENT, OriginKind.COMMAND_LINE, OriginKind.COMMAND_LINE]


def test_a_problem_says_place_key_value_expectation_and_near_miss(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, "service:\n  http: {prot: 9000}\n")
    path = tmp_path / "compactord.yaml"
    assert str(caught.value).splitlines() == [
        "the configuration is invalid, 1 problem:",
        f"  {path}:3: service.http.prot is 9000: expected a key that exists (bind, port); "
        "did you mean port?",
    ]


def test_an_invalid_configuration_can_be_pickled(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, "a: 1\n")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.problems, copy.digest) == (caught.value.problems, caught.value.digest)


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("service: {http: {port: 65536}}", "service.http.port", "65535 or less"),
        ("service: {http: {port: -1}}", "service.http.port", "0 or more"),
        ("service: {http: {port: true}}", "service.http.port", "whole number"),
        ("service: {http: {port: 1.5}}", "service.http.port", "whole number"),
        ("service: {timezone: Mars/Base}", "service.timezone", "local, or a time zone"),
        ("service: {timezone: ../etc/passwd}", "service.timezone", "time zone"),
        ("service: {instance_name: ''}", "service.instance_name", "not empty"),
        ("service: 5", "service", "a mapping"),
        ("service: [a]", "service", "a mapping"),
        ("spark: {master: 5}", "spark.master", "a text"),
        ("spark: {conf: 5}", "spark.conf", "a mapping"),
        ("spark: {conf: {cores: 5}}", "spark.conf.cores", "begins with spark."),
        ("spark: {conf: {spark.a: [1]}}", "spark.conf.spark.a", "a text, a number"),
        ("spark: {task_memory: 31 mb}", "spark.task_memory", "32 mb or more"),
        ("spark: {task_memory: lots}", "spark.task_memory", "128 mb"),
        (
            "discovery: {catalog_list_interval: 60}",
            "discovery.catalog_list_interval",
            "a duration with its unit, such as 60 s",
        ),
        ("defaults: {append_wait: 10}", "defaults.append_wait", "such as 10 s or 10 min"),
        ("defaults: {append_wait: '10'}", "defaults.append_wait", "such as 10 s or 10 min"),
        ("spark: {task_memory: 536870912}", "spark.task_memory", "a size with its unit"),
        ("discovery: {catalog_list_interval: 0}", "discovery.catalog_list_interval", "1 s or more"),
        ("discovery: {catalog_list_interval: 1.5 s}", "discovery.catalog_list_interval", "10 min"),
        ("discovery: {catalog_list_interval: true}", "discovery.catalog_list_interval", "10 min"),
        ("discovery: {including_tables: '('}", "discovery.including_tables", "expression"),
        ("discovery: {including_tables: null}", "discovery.including_tables", "a text"),
        ("defaults: {only_write_only: yes}", "defaults.only_write_only", "true or false"),
        ("defaults: {mode: stopped}", "defaults.mode", "one of auto or paused"),
        ("defaults: {priority: 101}", "defaults.priority", "100 or less"),
        ("defaults: {priority: -1}", "defaults.priority", "0 or more"),
        ("defaults: {max_backlog_age: 0 s}", "defaults.max_backlog_age", "1 s or more"),
        ("recovery: {orphan_grace: 59 min}", "recovery.orphan_grace", "1 h or more"),
        ("recovery: {orphan_grace: 86400000}", "recovery.orphan_grace", "with its unit"),
        ("defaults: {max_concurrent_tasks: 0}", "defaults.max_concurrent_tasks", "1 or more"),
        ("defaults: {append_wait: soon}", "defaults.append_wait", "10 min"),
        ("defaults: {pick: 2}", "defaults.pick", "2.0 or 2.1"),
        ("defaults: {expire_snapshots: on}", "defaults.expire_snapshots", "from_table or off"),
        ("defaults: {windows: 5}", "defaults.windows", "a list"),
        ("defaults: {options: {bucket: 5}}", "defaults.options.bucket", "may be set here"),
        ("defaults: {options: {write-only: 5}}", "defaults.options.write-only", "true or false"),
        ("defaults: {options: {write-only: null}}", "defaults.options.write-only", "a text"),
        ("limits: {task_slots: 0}", "limits.task_slots", "1 or more"),
        ("limits: {memory: 1 mb}", "limits.memory", "32 mb or more"),
        ("retry: {backoff: {min: 11 min}}", "retry.backoff.max", "min (11 min) or more"),
        ("retry: {backoff: {min: 2 s, max: 1 s}}", "retry.backoff.max", "min (2 s) or more"),
        ("shutdown: {grace: 30 s}", "shutdown.commit_reserve", "less than grace (30 s)"),
        ("log: {level: trace}", "log.level", "debug, info, warning or error"),
        ("rules: [{set: {}}]", "rules.0.match", "has no default"),
        ("rules: [{match: {}}]", "rules.0.set", "has no default"),
        ("rules: {}", "rules", "a list"),
        ("rules: [{match: {catalog: lak}, set: {}}]", "rules.0.match.catalog", "exists (lake)"),
        ("rules: [{match: {table: '\\p{L}'}, set: {}}]", "rules.0.match.table", "without \\p"),
        ("rules: [{match: {}, set: {rules: 1}}]", "rules.0.set.rules", "a key that exists"),
        ("<<: {log: {}}", "", "keys without <<"),
        ("log: !!python/name:os.system x", "log", "without a tag"),
        ("log: &a [*a]", "log.0", "contain itself"),
        ("? [a]\n: 1", "", "plain texts"),
        ("log: {format: json, format: json}", "log.format", "each key once"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_place(
    text: str, key: str, expected: str, tmp_path: Path
) -> None:
    found = {problem.key: problem for problem in problems(tmp_path, text + "\n")}
    assert expected in found[key].expected
    assert found[key].line == 2


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("", "catalogs", "has no default"),
        ("# nothing\n", "catalogs", "has no default"),
        ("catalogs: {}\n", "catalogs", "one catalog or more"),
        ("catalogs: {lake: {}}\n", "catalogs.lake.warehouse", "has no default"),
        ("catalogs: {lake: null}\n", "catalogs.lake.warehouse", "has no default"),
        ("catalogs: {a.b: {warehouse: /w}}\n", "catalogs.a.b", "a catalog's name"),
        ("catalogs: {a: {warehouse: /w, metastore: glue}}\n", "catalogs.a.metastore", "supported"),
        ("- catalogs\n", "", "a mapping"),
        ("catalogs: {lake: {warehouse: /w}\n", "", "YAML"),
        ("a: 1\n---\nb: 2\n", "", "YAML"),
        ("a: \x00\n", "", "YAML"),
        ("[" * 5000, "", "YAML"),
    ],
    ids=range(12),
)
def test_a_file_without_what_it_needs_is_refused(
    text: str, key: str, expected: str, tmp_path: Path
) -> None:
    (problem,) = problems(tmp_path, text, whole=True)
    assert problem.key == key
    assert expected in problem.expected


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "log:\n  level: info\n format: json\n")
    assert problem.line == 4


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigInvalid, match=str(path)):
            load_config(str(path), environ={})


def test_bytes_that_are_no_text_are_found_by_line(tmp_path: Path) -> None:
    path = tmp_path / "compactord.yaml"
    path.write_bytes(b"log:\n  level: \xff\n")
    with pytest.raises(ConfigInvalid) as caught:
        load_config(str(path), environ={})
    assert [(p.line, p.expected) for p in caught.value.problems] == [(2, "UTF-8 text")]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("${env:NONE}", "the variable NONE to be set"),
        ("${env:}", "${env:NAME}"),
        ("${file:none}", "${file:/path}"),
        ("${file:/none/at/all}", "can be read (No such file"),
        ("${vault:x}", "${env:NAME}"),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_problem(
    reference: str, expected: str, tmp_path: Path
) -> None:
    (problem,) = problems(tmp_path, f"spark: {{task_memory: '{reference}'}}\n")
    assert problem.key == "spark.task_memory"
    assert expected in problem.expected


def test_variables_that_hit_nothing_are_problems(tmp_path: Path) -> None:
    environ = {
        "COMPACTORD__SERVICE__HTTP__PROT": "1",
        "COMPACTORD__RULES__3__MATCH": "{}",
        f"COMPACTORD__RULES__{'9' * 5000}": "{}",
        "COMPACTORD__": "1",
        "COMPACTORD__LOG__LEVEL": "[",
        "COMPACTORD_OTHER": "not ours",
    }
    found = problems(tmp_path, environ=environ)
    assert {(str(p.origin)[:40], p.expected.split(" (")[0]) for p in found} == {
        ("env COMPACTORD__RULES__" + "9" * 17, "a list"),
        ("env COMPACTORD__SERVICE__HTTP__PROT", "a key that exists"),
        ("env COMPACTORD__RULES__3__MATCH", "an index up to 0"),
        ("env COMPACTORD__", "keys that are not empty"),
        ("env COMPACTORD__LOG__LEVEL", "YAML"),
    }


def test_one_option_under_two_names_is_refused(tmp_path: Path) -> None:
    text = "defaults: {options: {write-only: true, write.compaction-skip: false}}\n"
    (problem,) = problems(tmp_path, text)
    assert problem.key == "defaults.options.write.compaction-skip"
    assert problem.hint is not None
    assert "write-only" in problem.hint


def test_a_text_that_a_comma_cuts_in_two_is_explained(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "defaults: {windows: [{days: sat,sun}]}\n")
    assert problem.key == "defaults.windows.0.sun"
    assert problem.hint == "a text that holds a comma needs quotes"
