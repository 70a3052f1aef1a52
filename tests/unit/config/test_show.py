from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from compactord.config.load import (
    effective_json,
    json_schema,
    leaves,
    load_config,
    plain_config,
    show_text,
)
from compactord.config.model import ServiceConfig
from compactord.config.problems import ConfigInvalid, dotted
from tests.unit.config.files import load, problems

SECRET = "s3same"


def test_every_effective_value_is_shown_with_its_origin(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "rules:\n  - match: {table: a}\n    set: {priority: 3}\n",
        environ={"COMPACTORD__LOG__LEVEL": "debug"},
        overrides=["metrics.top_n=5"],
    )
    lines = [" ".join(line.split()) for line in show_text(loaded)]
    path = tmp_path / "compactord.yaml"
    assert f"catalogs.lake.warehouse = /data/wh # {path}:1" in lines
    assert f"rules.0.set.priority = 3 # {path}:4" in lines
    assert "log.level = debug # env COMPACTORD__LOG__LEVEL" in lines
    assert "metrics.top_n = 5 # --set" in lines
    assert "service.http.port = 9464 # default" in lines
    assert "defaults.windows = [] # default" in lines
    assert len(lines) == len(list(leaves(loaded.config)))


def test_of_rules_only_what_they_set_is_shown(tmp_path: Path) -> None:
    loaded = load(tmp_path, "rules: [{match: {table: a}, set: {priority: 3}}]\n")
    assert effective_json(loaded)["rules"] == [{"match": {"table": "a"}, "set": {"priority": 3}}]


def test_the_effective_configuration_reads_back_as_the_same(tmp_path: Path) -> None:
    text = """\
        service: {timezone: Asia/Shanghai, http: {port: 0}}
        spark: {master: "local[2]", conf: {spark.cores.max: 4}}
        discovery: {excluding_tables: "tmp\\\\..*"}
        defaults: {append_wait: null, options: {write.compaction-skip: true}}
        rules:
          - match: {catalog: lake}
            set: {windows: [{days: "sat,sun", from: "22:00", to: "06:00", allow: [full]}]}
        limits: {memory: 3 gb}
        """
    loaded = load(tmp_path, text)
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(effective_json(loaded)))
    assert load_config(str(again), environ={}).config == loaded.config


def test_no_secret_is_in_anything_that_is_shown(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text(SECRET)
    text = f"""\
        catalogs:
          lake: {{warehouse: "file://me:{SECRET}@host/wh?sig={SECRET}"}}
        service: {{instance_name: "${{env:NAME}}"}}
        spark:
          master: "${{env:MASTER}}"
          conf:
            spark.hadoop.fs.s3a.secret.key: {SECRET}
            spark.plain: "x-${{file:{secret}}}"
        defaults: {{options: {{write.merge-schema: true, data-file.prefix: "${{env:NAME}}"}}}}
        """
    text = text.replace("write.merge-schema: true, ", "")
    environ = {"NAME": SECRET, "MASTER": f"local-{SECRET}"}
    loaded = load(tmp_path, text, environ=environ, whole=True)
    # The daemon itself gets them.
    assert loaded.config.spark.conf["spark.plain"] == f"x-{SECRET}"
    assert loaded.config.spark.conf["spark.hadoop.fs.s3a.secret.key"] == SECRET
    shown = "\n".join(show_text(loaded))
    assert "spark.conf.spark.plain = x-${file:" in shown
    assert "spark.conf.spark.hadoop.fs.s3a.secret.key = ***" in shown
    assert "catalogs.lake.warehouse = file://***@host/wh?***" in shown
    for output in (shown, json.dumps(effective_json(loaded)), repr(loaded), str(loaded.config)):
        assert SECRET not in output


def test_no_secret_is_in_what_is_said_of_a_wrong_configuration(tmp_path: Path) -> None:
    text = f"""\
        service: {{http: {{port: "${{env:S}}", password: {SECRET}}}}}
        spark:
          conf: {{secret-key: [{SECRET}]}}
          task_memory: "${{env:S}}"
          app_name: ["http://u:{SECRET}@h/"]
        discovery: {{including_tables: "(${{env:S}}"}}
        defaults:
          mode: "${{env:S}}"
          priority: "${{env:S}}"
          max_backlog_age: token={SECRET}
          windows: [{{from: "${{env:S}}", tz: "${{env:S}}", allow: ["${{env:S}}"]}}]
          options: {{num-levels: "${{env:S}}", merge-engine: "${{env:S}}", password: {SECRET}}}
        rules: [{{match: {{catalog: "${{env:S}}"}}, set: {{}}}}]
        """
    environ = {"S": SECRET, "COMPACTORD__LOG__TOKEN": SECRET}
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, text, environ=environ, overrides=[f"log.password={SECRET}"])
    error = caught.value
    assert len(error.problems) >= 16
    assert SECRET not in str(error) + repr(error) + repr(error.problems)
    # Nothing rides along into a traceback either.
    assert error.__cause__ is None
    assert error.__context__ is None


def test_a_secret_in_a_text_that_is_no_yaml_is_not_repeated(tmp_path: Path) -> None:
    for text in (f"spark: {{password: {SECRET}", f"password: '{SECRET}", f"token: *{SECRET}"):
        assert SECRET not in repr(problems(tmp_path, text))


def test_every_key_of_the_schema_says_what_it_means() -> None:
    schema = json_schema()
    silent = [
        f"{name}.{key}"
        for name, section in schema["$defs"].items()
        for key, value in section.get("properties", {}).items()
        if "description" not in value and "$ref" not in value
    ]
    assert silent == []


def test_the_schema_is_as_strict_as_the_model_and_says_the_defaults() -> None:
    schema = json_schema()
    sections = [s for s in schema["$defs"].values() if s["type"] == "object"]
    assert all(section["additionalProperties"] is False for section in [schema, *sections])
    assert schema["required"] == ["catalogs"]
    assert schema["$defs"]["TableSettings"]["properties"]["max_backlog_age"]["default"] == "30 min"
    assert schema["$defs"]["Http"]["properties"]["port"]["maximum"] == 65535
    assert "default" not in json.dumps(schema["$defs"]["RuleSettings"]["properties"]["priority"])


def test_the_schema_names_the_keys_of_the_effective_configuration() -> None:
    schema = json_schema()

    def keys(value: object, place: dict[str, Any], path: tuple[str, ...]) -> list[str]:
        if "$ref" in place:
            place = schema["$defs"][place["$ref"].rsplit("/", 1)[1]]
        if not isinstance(value, dict) or "properties" not in place:
            return []
        unknown = [dotted((*path, k)) for k in value if k not in place["properties"]]
        known = [k for k in value if k in place["properties"]]
        return unknown + [
            u for k in known for u in keys(value[k], place["properties"][k], (*path, k))
        ]

    config = ServiceConfig.model_validate({"catalogs": {"lake": {"warehouse": "/w"}}})
    assert keys(plain_config(config), schema, ()) == []
