"""The patterns of `tests.tools.prose` find what they are for; `make lint` allows no hit."""

from __future__ import annotations

import pytest

from tests.tools.prose import ALLOWED, NAMES, PATTERNS, ROOT, hits, hits_of

_ALLOWED_LINES_MAX = 200
# Pattern -> texts that it finds, texts that it passes.
_CASES: dict[str, tuple[list[str], list[str]]] = {
    "a clause as title": (
        ["## What a failure may stop", "# How each is opened", "# Why tables are halted"],
        ["# Where to start reading", "## How to upgrade", "# Scope of a failure"],
    ),
    "a clause as subject": (
        [
            "What a commit met.",
            "Read first. What cannot be read is listed.",
            "files: Which of them.",
        ],
        ["What is due?", "What to do: restart it.", "It lists what is due.", "Whatsapp is down."],
    ),
    "whoever, whatever": (
        ["Whoever deletes reads again.", "It holds, whatever failed."],
        ["However it is, retry."],
    ),
    "nobody, somebody": (
        ["Nobody reads it.", "left by somebody"],
        ["No bodyguard.", "The body is empty."],
    ),
    "nothing as subject": (
        ["nothing is deleted", "Nothing of it was published.", "none has answered"],
        ["It deletes nothing.", "0 if none is left", "None of the tables is due."],
    ),
    "told, tells": (["The caller is told.", "it tells both"], ["The total is retold.", "cells"]),
    "asks, asked for": (
        ["Ask for both.", "the store is asked", "asking the catalog"],
        ["a task", "masked columns"],
    ),
    "says, said": (["The log says why.", "as was said"], ["an essay", "It logs why."]),
    "fronted of": (
        ["Of each catalog it lists tables.", "First; Of it all. Of files, the newest."],
        ["The newest of each.", "Of course it is."],
    ),
    "of which": (["tables of which one fails"], ["tables, one of them failed"]),
    "those of, those that": (
        ["with those of the newest", "that of Java", "Those that fail are retried."],
        ["those tables", "the one that fails"],
    ),
    "are those": (["Names are those in Java."], ["Those names are Java's."]),
    "such as a pronoun": (
        ["Such ones are retried.", "It is read as such."],
        ["such a file", "formats such as ORC"],
    ),
    "the others, all else": (
        ["the others wait", "All others are refused.", "all else is new", "nothing else than this"],
        ["one after the other", "the other table", "or else it fails"],
    ),
    "a gloss with a colon": (
        ["The limit; None: there is none.", "0: not known"],
        ["The limit, or None if there is none.", "10:30 o'clock", "None, 0 or 1"],
    ),
    "stands": (
        ["It stands in the log.", "where an option stood"],
        ["a stand-in", "standard", "outstanding"],
    ),
    "comes to": (["what it comes to", "It came to 5."], ["It comes today.", "becomes one"]),
    "goes by, for so long": (
        ["It goes by the time.", "it waits for ever", "for so long", "as far as it is known"],
        ["It goes on.", "forever", "as long as it runs"],
    ),
    "gives back, hands out": (
        ["It gives slots back.", "Given back at the end.", "It hands out tokens.", "left out"],
        ["It returns slots.", "Locks are taken in the metastore.", "the left outer join"],
    ),
    "alone": (["for this alone"], ["a standalone cluster", "abalone"]),
    "beside": (["a file beside it"], ["besides the file"]),
    "trailing too": (
        ["It deletes files, too.", "Tags, too, expire."],
        ["too many", "It is too, so"],
    ),
    "there is, as a relative clause": (
        ["more than there are", "all there is"],
        ["None if there is no lock."],
    ),
    "is to be": (["files that are to be read", "it is to be read"], ["It is due to be read."]),
    "but for, passed over": (
        ["all but for one", "views are passed over"],
        ["but forgets it", "a password"],
    ),
    "anew": (["It is read anew."], ["a new table", "renewed"]),
    "put right, mended, heals": (
        ["recovered or put right", "An operator mended it.", "it heals"],
        ["the right input", "amended", "health"],
    ),
    "people": (["shown to people"], ["peoples", "shown to operators"]),
    "a double negative": (
        ["not without a lock", "It is not unlikely."],
        ["not until then", "not under a lock", "without a lock"],
    ),
}


def test_the_repository_has_no_hit() -> None:
    assert hits() == [], "`python -m tests.tools.prose` lists them"


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_finds_what_it_is_for_and_no_more(name: str) -> None:
    found, passed = _CASES[name]
    assert [text for text in found if name not in _patterns_of(text)] == []
    assert [text for text in passed if name in _patterns_of(text)] == []


def _patterns_of(markdown: str) -> set[str]:
    return {hit.pattern for hit in hits_of("docs/page.md", markdown)}


def test_a_module_is_read_at_docstrings_comments_messages_and_names() -> None:
    source = '''"""What it is.

More.
"""

BESIDE = 1

# Nobody
# reads it.
class Reader:
    """A `nobody`, the name of code."""

    value_told: int

    def seen(self, alone: str) -> str:
        """Reads.

        Whoever reads.
        """
        self.begun = f"{alone} is told of {alone}"  # asked
        return "told" + ("split " "nobody")
'''
    found = [(hit.line, hit.pattern) for hit in hits_of("a.py", source)]
    assert found == [
        (1, "a clause as title"),
        (6, NAMES),
        (8, "nobody, somebody"),
        (13, NAMES),
        (15, NAMES),
        (15, NAMES),
        (18, "whoever, whatever"),
        (20, NAMES),
        (20, "asks, asked for"),
        (20, "told, tells"),
        (21, "nobody, somebody"),
    ]


def test_a_document_is_read_at_headings_cells_and_paragraphs() -> None:
    text = """# Title

A sentence, and its end
is told here.

| a | told |
|---|---|

```
told
```

- `told`
- beside
"""
    found = [(hit.line, hit.pattern) for hit in hits_of("docs/page.md", text)]
    assert found == [(4, "told, tells"), (6, "told, tells"), (14, "beside")]


def test_the_changelog_is_read_down_to_its_first_release() -> None:
    text = "# Changes\n\n## Unreleased\n\ntold\n\n## 0.1.0\n\ntold\n"
    assert [hit.line for hit in hits_of("CHANGELOG.md", text)] == [5]


def test_yaml_is_read_at_its_comments() -> None:
    text = "# told\nkey: told\n  # - beside\n"
    assert [hit.line for hit in hits_of("config/a.yaml", text)] == [1, 3]


def test_each_line_of_the_allow_list_is_needed_once_and_the_list_is_short() -> None:
    lines = [line for line in ALLOWED.read_text().splitlines() if line]
    assert len(lines) <= _ALLOWED_LINES_MAX
    assert len({*lines}) == len(lines)
    for line in lines:
        path, _, part = line.partition(" ")
        found = hits_of(path, (ROOT / path).read_text()) if (ROOT / path).exists() else []
        assert any(part in hit.sentence for hit in found), line
