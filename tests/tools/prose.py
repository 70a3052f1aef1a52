"""Finds constructions that our prose avoids, and banned words in names.

Read are comments, docstrings, string literals with a space, and documents. Each entry of `PATTERNS`
is tried on each sentence; code in backquotes and fenced blocks is no prose. A hit that is natural
English has a line in `prose_allowed.txt`: a path, a space, and a part of the sentence.
Run `python -m tests.tools.prose [PATTERN]`; it ends with 1 if a hit is found.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("prose_allowed.txt")
_ROOTS = (
    "compactord",
    "docs",
    "config",
    "deploy/runbooks",
    "README.md",
    "changelog.d",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
# The start of a sentence or of one of its parts.
_START = r"(?:^|[;:|(] )"

# Name -> regular expression. A heading, and the first sentence of a module's docstring, begin with
# "# ". What to write instead is in CONTRIBUTING.md, "Prose".
PATTERNS: dict[str, str] = {
    "a clause as title": r"^# (?:What|Which|Whether|How|Why|When|Where|Who)\b(?! to\b)",
    "a clause as subject": _START + r"(?:What|Which|Who)\b(?! (?:to|if)\b)(?!.*\?)",
    "whoever, whatever": r"\b[Ww](?:hoever|hatever|hichever|homever|herever)\b",
    "nobody, somebody": r"\b(?:[Nn]o|[Aa]ny|[Ss]ome|[Ee]very)body\b",
    "nothing as subject": (
        r"\b[Nn]othing (?:is|was|may|can|must|has|else|of|that|knows)\b"
        r"|\b[Nn]one (?:may|can|must|has|have|else|that|knows)\b"
    ),
    "told, tells": r"\b(?:[Tt]old|[Tt]ells?)\b",
    "asks, asked for": r"\b[Aa]sk(?:s|ed|ing)?\b",
    "says, said": r"\b(?:[Ss]ays?|[Ss]aid)\b",
    "fronted of": _START + r"(?:# )?Of (?!course\b)",
    "of which": r"\b(?:of which|of whom|of whose)\b",
    "those of, those that": (
        r"\b(?:that|those|[Tt]hose) of\b"
        r"|\b[Tt]hose (?:that|which|who|whose|where|in|with|without)\b"
    ),
    "are those": r"\b(?:is|are|was|were) those\b",
    "such as a pronoun": r"\b[Ss]uch (?:ones?|a one)\b|\bas such\b|\bothers such\b",
    "the others, all else": r"\b(?:[Aa]ll|[Tt]he|no) others\b|\ball else\b|\belse than\b",
    "a gloss with a colon": r"\b(?:None|True|False|(?<![\d.])0|[Ee]mpty): [a-z]",
    "stands": r"\b(?:[Ss]tands?|stood)\b(?!-)",
    "comes to": r"\b(?:comes?|came|coming) to\b",
    "goes by, for so long": (
        r"\b(?:goes|go|gone|went) by\b|\bfor ever\b|\bso (?:long|many|much)\b|\bas far as\b"
    ),
    "gives back, hands out": (
        r"\b(?:[Gg]ives?|[Gg]iven|giving|gave) (?:\w+ )?back\b|\bhand(?:s|ed|ing)? out\b"
        r"|\b(?:takes?|took) in\b|\b(?:leaves?|left|leaving) out\b"
    ),
    "alone": r"\b[Aa]lone\b",
    "beside": r"\b[Bb]eside\b",
    "trailing too": r", too(?=[.,;:)]|$)",
    "there is, as a relative clause": r"\b(?:what|than|all) there (?:is|are)\b",
    "is to be": r"\b(?:are|were) (?:not )?to (?!a\b|the\b)|\b(?:is|was) to be\b",
    "but for, passed over": r"\bbut for\b|\bpass(?:es|ed|ing)? over\b",
    "anew": r"\banew\b",
    "put right, mended, heals": r"\b(?:puts? right|PUT RIGHT|mend(?:s|ed|ing)?|heal(?:s|ed)?)\b",
    "people": r"\b[Pp]eople\b",
    "a double negative": r"\bnot without\b|\bnot un(?!til\b|less\b|der|i)\w+|\bcannot not\b",
}
_COMPILED = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
_BANNED = {"told", "asked", "said", "seen", "begun", "gone", "beside", "alone", "whoever"}
NAMES = "a banned word in a name"

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_CODE = re.compile(r"``[^`]+``|`[^`]+`")
_SENTENCE = re.compile(r"(?:[^.!?]|[.!?](?!\s|$))*[.!?]*\s*")
_COMMENT = re.compile(r"^\s*#+ ?")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


class Hit(NamedTuple):
    path: str
    line: int
    pattern: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.pattern}: {self.sentence}"


class _Line(NamedTuple):
    number: int
    text: str


def hits(root: Path = ROOT) -> list[Hit]:
    """All that no line of the allow-list names, by path and line."""
    allowed = [line.partition(" ") for line in ALLOWED.read_text().splitlines() if line]
    return [
        hit
        for path in _files(root)
        for hit in hits_of(path.relative_to(root).as_posix(), path.read_text())
        if not any(hit.path == name and part in hit.sentence for name, _, part in allowed)
    ]


def hits_of(path: str, text: str) -> list[Hit]:
    """Of one file; the suffix of `path` decides how it is read."""
    if path.endswith(".py"):
        tree = ast.parse(text)
        blocks = [*_comments(text), *_strings(tree)]
        found = [Hit(path, number, NAMES, name) for number, name in _banned_names(tree)]
    elif path.endswith(".md"):
        blocks, found = [*_markdown(text, path)], []
    elif path.endswith((".yaml", ".yml", ".toml")):
        blocks, found = [*_hash_comments(text)], []
    else:
        blocks, found = [*_paragraphs(_numbered(re.sub(r"<[^>]*>", "", text)))], []
    for block in blocks:
        found += [Hit(path, *rest) for rest in _hits_of_block(block)]
    return sorted(found)


def _files(root: Path) -> Iterator[Path]:
    suffixes = (".py", ".md", ".yaml", ".html", ".j2")
    for name in _ROOTS:
        if (root / name).is_file():
            yield root / name
        for folder, _, files in sorted(os.walk(root / name)):  # links to folders are not followed
            yield from (Path(folder, each) for each in sorted(files) if each.endswith(suffixes))


def _hits_of_block(block: list[_Line]) -> Iterator[tuple[int, str, str]]:
    text = " ".join(line.text.strip() for line in block)
    starts, at = [], 0
    for line in block:
        starts.append((at, line.number))
        at += len(line.text.strip()) + 1
    text = _CODE.sub(lambda code: "`" + "_" * (len(code.group()) - 2) + "`", text)
    for sentence in _SENTENCE.finditer(text):
        words = sentence.group()
        for name, pattern in _COMPILED.items():
            if match := pattern.search(words):
                place = sentence.start() + match.start()
                line = max(number for start, number in starts if start <= place)
                yield line, name, words.strip().removeprefix("# ")


def _numbered(text: str) -> list[_Line]:
    return [_Line(number, line) for number, line in enumerate(text.splitlines(), 1)]


def _paragraphs(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Runs of lines without a blank one. An item of a list begins a new one."""
    block: list[_Line] = []
    for line in lines:
        stripped = line.text.strip()
        if block and (not stripped or _ITEM.match(stripped)):
            yield block
            block = []
        if stripped:
            block.append(line._replace(text=_ITEM.sub("", stripped, count=1)))
    if block:
        yield block


def _markdown(text: str, path: str) -> Iterator[list[_Line]]:
    """Paragraphs, headings and cells. Of the changelog, the part that is not released."""
    kept: list[_Line] = []
    is_fenced = False
    released = 0
    for line in _numbered(text):
        is_fence = line.text.lstrip().startswith("```")
        is_fenced ^= is_fence
        released += path == "CHANGELOG.md" and line.text.startswith("## ")
        if is_fence or is_fenced or released > 1:
            kept.append(_Line(line.number, ""))
        elif line.text.startswith("#"):
            yield [_Line(line.number, "# " + line.text.lstrip("# "))]
            kept.append(_Line(line.number, ""))
        elif line.text.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.text.strip().strip("|"))
            yield from ([_Line(line.number, cell)] for cell in cells if cell.strip(" -"))
            kept.append(_Line(line.number, ""))
        else:
            kept.append(line)
    yield from _paragraphs(kept)


def _hash_comments(text: str) -> Iterator[list[_Line]]:
    lines = [
        line._replace(text=_COMMENT.sub("", line.text) if _COMMENT.match(line.text) else "")
        for line in _numbered(text)
    ]
    yield from _paragraphs(lines)


def _comments(text: str) -> Iterator[list[_Line]]:
    """Comments of lines that follow each other are one paragraph."""
    block: list[_Line] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != block[-1].number + 1:
            yield from _paragraphs(block)
            block = []
        block.append(_Line(token.start[0], token.string.lstrip("# ")))
    yield from _paragraphs(block)


def _strings(tree: ast.Module) -> Iterator[list[_Line]]:
    first = tree.body[0] if tree.body else None
    if ast.get_docstring(tree) and isinstance(first, ast.Expr):
        assert isinstance(first.value, ast.Constant)
        head, *rest = _paragraphs(_lines_of(first.value))
        yield [head[0]._replace(text="# " + head[0].text), *head[1:]]
        yield from rest
        tree.body.remove(first)
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            shown = "".join(
                each.value if isinstance(each, ast.Constant) else "{}" for each in node.values
            )
            if " " in shown:
                yield from _paragraphs(_lines_of(ast.copy_location(ast.Constant(shown), node)))
            waiting += [each for each in node.values if not isinstance(each, ast.Constant)]
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and " " in node.value:
                yield from _paragraphs(_lines_of(node))
        else:
            waiting += ast.iter_child_nodes(node)


def _lines_of(node: ast.Constant) -> list[_Line]:
    assert isinstance(node.value, str)
    last = node.end_lineno or node.lineno
    return [
        _Line(min(node.lineno + at, last), line) for at, line in enumerate(node.value.splitlines())
    ]


def _banned_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of functions, classes, arguments and attributes where they are defined."""
    for node in ast.walk(tree):
        for line, name in _defined(node):
            if _BANNED & {word.lower() for word in _WORD.findall(name)}:
                yield line, name


def _defined(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield node.lineno, name
        case ast.ClassDef(name=name, body=body):
            yield node.lineno, name
            yield from _assigned(body)
        case ast.Module(body=body):
            yield from _assigned(body)
        case ast.arg(arg=name):
            yield node.lineno, name
        case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
            yield node.lineno, name


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for statement in body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield statement.lineno, name
            case ast.Assign(targets=targets):
                names = (each.id for each in targets if isinstance(each, ast.Name))
                yield from ((statement.lineno, name) for name in names)


def main() -> int:
    """Prints hits, of one pattern if it is named; 1 if there are any."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    found = [hit for hit in hits() if wanted in hit.pattern]
    for hit in found:
        print(hit)
    print(len(found), "in all")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
