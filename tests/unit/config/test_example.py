"""config/compactord.yaml against the model: it loads, it is whole, and it tells the truth."""

from __future__ import annotations

import re
from pathlib import Path

from compactord.config.load import known_keys, leaves, load_config
from compactord.config.model import RuleSettings, ServiceConfig
from compactord.config.problems import OriginKind, dotted

EXAMPLE = Path(__file__).parent.parent.parent.parent / "config" / "compactord.yaml"


def _uncommented_rules() -> str:
    """The example with its commented rules in force."""
    text = EXAMPLE.read_text()
    start, end = text.index("rules: []"), text.index("\nlimits:")
    rules = text[start:end].split("\n", 1)[1]
    return text[:start] + "rules:\n" + re.sub(r"(?m)^#", " ", rules) + text[end:]


def test_the_example_says_every_default_as_it_is() -> None:
    loaded = load_config(str(EXAMPLE), environ={})
    assert loaded.config == ServiceConfig.model_validate(
        {"catalogs": {"lake": {"warehouse": "/data/warehouse"}}}
    )


def test_every_key_of_the_model_stands_in_the_example() -> None:
    loaded = load_config(str(EXAMPLE), environ={})
    absent = [
        dotted(path)
        for path, _ in leaves(loaded.config)
        if loaded.origins[dotted(path)].kind is not OriginKind.FILE
    ]
    assert absent == []


def test_the_commented_rules_load_and_show_every_key_of_a_window(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(_uncommented_rules())
    first, second = load_config(str(path), environ={}).config.rules
    assert first.match.catalog == "lake"
    assert first.settings.model_fields_set == {"priority", "max_backlog_age_ms"}
    (window,) = second.settings.windows
    assert window.model_fields_set == set(type(window).model_fields)
    assert known_keys(("rules", 0, "set")) == known_keys(("defaults",))
    assert set(RuleSettings.model_fields) > second.settings.model_fields_set


def test_every_key_of_the_example_is_explained() -> None:
    bare = [
        line
        for line in EXAMPLE.read_text().splitlines()
        if re.match(r" +\w+: \S", line) and "#" not in line
    ]
    assert bare == []
