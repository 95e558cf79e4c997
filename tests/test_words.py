"""Plain words: none of the phrases that readers did not understand stands where users read.

`PHRASES` maps each phrase to what to write instead. It covers README, the documentation, the help of
every command, the templates of pages and every message in the source (string constants that are no
docstrings). Identifiers in code are not words: inline code and code blocks are left out.
"""

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "sojourn"

PHRASES = {
    r"told": "significant, conclusive; or said",
    r"(tell|tells|telling)( \w+){0,4} apart": "significantly different",
    r"(all|interim|every|each|first|next|later|of|pairs of) looks?(?! like)": "interim analyses",
    r"looks (err|hold|spend|included)": "interim analyses",
    r"kept": "saved, cached",
    r"what is kept": "what is saved",
    r"heats?": "rungs",
    r"(race|races|raced|racing)(?! condition)": "successive halving",
    r"knobs?": "parameters",
    r"(?<!table )cells?": "runs, settings",
    r"abreast": "batched over runs",
    r"(in )?lockstep": "batched, sharing one schedule",
    r"as it stands": "current score",
    r"(where it is|are|is) heading": "extrapolated score",
    r"let out": "released",
    r"comes? and goe?s?": "intermittent",
    r"sought|seeks?": "optimised, searched",
    r"units? of( virtual)? time": "time units",
    r"\d units": "time units",
    r"at work": "the stage, the count and the time left",
    r"(it )?ties with|tie to": "does not differ significantly from",
    r"not certain": "not significantly different",
    r"as far as told": "inconclusive statements are counted",
    r"enough is enough": "the limit",
}
"""Left column of the project's list of words, as patterns between word boundaries."""
PATTERN = re.compile(
    "|".join(rf"(?<![\w-])(?:{phrase})(?![\w-])" for phrase in PHRASES), re.IGNORECASE
)

JUSTIFIED = {
    "race.json": "the name of a file that earlier versions wrote",
    "`cell …": "a class of CSS",
    "lockstep = true": "a key of experiments",
    "Leave out lockstep": "a key of experiments",
}
"""Technical uses, and why they stay."""

DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCS = [path for path in DOCS if "_build" not in path.parts]
TEMPLATES = sorted(
    path
    for folder in ("report", "live")
    for path in (SOURCE / folder).rglob("*")
    if path.suffix in (".html", ".js", ".jinja", ".svg") and ".min." not in path.name
)
MODULES = sorted(SOURCE.rglob("*.py"))


def found_in(text: str) -> list[str]:
    """Every phrase in ``text``, with the words around it."""
    text = re.sub(r"\s+", " ", text)
    for use in JUSTIFIED:
        text = text.replace(use, "")
    return [
        text[max(0, match.start() - 30) : match.end() + 30].strip()
        for match in PATTERN.finditer(text)
    ]


def prose(markdown: str) -> str:
    """What is read as a sentence: no code, no comments."""
    text = re.sub(
        r"^ *(`{3,})(python|toml|\{code-block\}|\{eval-rst\}).*?^ *\1",
        "",
        markdown,
        flags=re.S | re.M,
    )
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def strings_of_script(script: str) -> str:
    """The string literals of JavaScript that hold a space."""
    literals = re.findall(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|`(?:[^`\\]|\\.)*`", script)
    sentences = (re.sub(r"\$\{[^{}]*\}", " … ", literal) for literal in literals)
    return "\n".join(sentence for sentence in sentences if " " in sentence.strip("'\"`"))


def page_text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        return strings_of_script(text)
    scripts = "\n".join(
        strings_of_script(found) for found in re.findall(r"<script.*?</script>", text, re.S)
    )
    text = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)
    text = re.sub(r"\{[%#].*?[%#]\}|\{\{.*?\}\}", " ", text, flags=re.S)
    return html.unescape(re.sub(r"<[^>]*>", " ", text)) + scripts


def messages(path: Path) -> Iterator[str]:
    """String constants with a space that are no docstrings; the parts of an f-string together."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in joined for part in node.values}
    for node in joined:
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in statements | inside
        ):
            yield node.value


def commands() -> Iterator[tuple[str, click.Command]]:
    from sojourn.cli import app

    pending = [("sojourn", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        yield name, command
        for child, sub in getattr(command, "commands", {}).items():
            pending.append((f"{name} {child}", sub))


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documentation(path: Path) -> None:
    assert found_in(prose(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str) -> None:
    command = COMMANDS[name]
    texts = [command.help, command.epilog, command.short_help]
    for param in command.params:
        texts += [getattr(param, "help", None), str(getattr(param, "show_default", ""))]
    assert found_in(" \n".join(text for text in texts if text)) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_pages(path: Path) -> None:
    assert found_in(page_text(path)) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_messages(path: Path) -> None:
    assert [found for text in messages(path) for found in found_in(text)] == []


@pytest.mark.parametrize(
    ("sentence", "phrases"),
    [
        (
            "Seeds are added until the race's winner is told from its runners-up, or enough is enough.",
            3,
        ),
        ("Of all looks, those abreast are kept: knobs of the cells.", 5),
        ("The routing was sought; the client comes and goes after 60 units of time.", 3),
        ("Where it is heading, as it stands, a lockstep.", 3),
        ("A race condition is no race-free cell-phone; the folder looks like a run folder.", 0),
        ("Mean paired difference if significant at 5 % (paired t-test), else None.", 0),
    ],
)
def test_the_phrases_are_recognised(sentence: str, phrases: int) -> None:
    assert len(found_in(sentence)) == phrases


def test_there_is_something_to_read() -> None:
    assert len(DOCS) > 20 and len(COMMANDS) > 15 and TEMPLATES and len(MODULES) > 100
