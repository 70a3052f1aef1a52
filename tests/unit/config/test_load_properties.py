from __future__ import annotations

import contextlib
import string
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.config.load import known_keys, load_config
from compactord.config.problems import ConfigInvalid, OriginKind
from tests.sampling import examples
from tests.unit.config.files import SMALLEST, load, problems

# Numbers that any value from 1 to 99 suits.
_NUMBERS = (
    ("service", "http", "port"),
    ("defaults", "priority"),
    ("defaults", "max_concurrent_tasks"),
    ("limits", "task_slots"),
    ("retry", "task_attempts"),
    ("metrics", "top_n"),
)
_layer = st.dictionaries(st.sampled_from(_NUMBERS), st.integers(1, 99))
_sections = [(), *((key,) for key in known_keys(()) if key not in ("catalogs", "rules"))]
_words = st.text(string.ascii_lowercase + "_", min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(file=_layer, environment=_layer, command_line=_layer)
def test_each_value_comes_from_the_strongest_place_that_gives_it(
    file: dict[tuple[str, ...], int],
    environment: dict[tuple[str, ...], int],
    command_line: dict[tuple[str, ...], int],
) -> None:
    tree: dict[str, dict[str, object]] = {}
    for path, value in file.items():
        tree.setdefault(path[0], {})[path[1]] = {path[2]: value} if len(path) == 3 else value
    with tempfile.TemporaryDirectory() as folder:
        loaded = load(
            Path(folder),
            "".join(f"{key}: {section}\n".replace("'", '"') for key, section in tree.items()),
            environ={
                "COMPACTORD__" + "__".join(path).upper(): str(value)
                for path, value in environment.items()
            },
            overrides=[f"{'.'.join(path)}={value}" for path, value in command_line.items()],
        )
    for path in _NUMBERS:
        layers = (
            (OriginKind.COMMAND_LINE, command_line),
            (OriginKind.ENVIRONMENT, environment),
            (OriginKind.FILE, file),
        )
        strongest = next(((kind, layer) for kind, layer in layers if path in layer), None)
        assert loaded.origins[".".join(path)].kind is (
            strongest[0] if strongest else OriginKind.DEFAULT
        )
        if strongest is not None:
            value: object = loaded.config
            for key in path:
                value = getattr(value, key)
            assert value == strongest[1][path]


@settings(max_examples=examples(60), deadline=None)
@given(
    section=st.sampled_from(_sections),
    word=_words,
    value=st.sampled_from(["1", "text", "[1, 2]", "{a: b}", "null", '"${env:NONE}"']),
    blank_lines=st.integers(0, 5),
)
def test_an_unknown_key_is_reported_with_its_line_whatever_it_is(
    section: tuple[str, ...], word: str, value: str, blank_lines: int
) -> None:
    if word in known_keys(section):
        return
    text = "\n" * blank_lines
    text += f"{section[0]}:\n  {word}: {value}\n" if section else f"{word}: {value}\n"
    with tempfile.TemporaryDirectory() as folder:
        found = problems(Path(folder), text)
    key = ".".join([*section, word])
    assert (key, 2 + blank_lines + len(section)) in [(p.key, p.line) for p in found]


@settings(max_examples=examples(150), deadline=None)
@given(st.text(st.sampled_from("a:b -{}[]&*!|>'\"%@#\n\t,?$~0<") | st.characters(), max_size=60))
def test_any_text_is_either_a_configuration_or_a_list_of_problems(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.yaml"
        path.write_bytes((SMALLEST + text).encode("utf-8", "surrogatepass"))
        with contextlib.suppress(ConfigInvalid):
            loaded = load_config(str(path), environ={"COMPACTORD__LOG": text}, overrides=[text])
            assert list(loaded.config.catalogs) == ["lake"]
