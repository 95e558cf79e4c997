"""Sphinx extensions of these pages: MathML, figures of examples, tables of options, short types.

None of them needs a network. Browsers draw MathML, the value of the last example above `{plotted}`
draws itself, options are read from the command, and array types are shown as they are written.
"""

import doctest
import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PICTURES = "_plots"
_PATH = r"~?(?:\w+\.)*"
_ARRAY = rf"{_PATH}_SupportsArray\[{_PATH}dtype\[{_PATH}Any\]\]"
SHORT_TYPES = (
    (re.compile(r"<factory>"), "..."),
    (
        re.compile(
            rf"{_PATH}_?Buffer \| {_ARRAY} \| {_PATH}_NestedSequence\[{_ARRAY}\] \| complex \| bytes"
            rf"(?: \| str)? \| {_PATH}_NestedSequence\[complex \| bytes \| str\]"
        ),
        "~numpy.typing.ArrayLike",
    ),
    (
        re.compile(
            rf"{_PATH}ndarray\[tuple\[{_PATH}Any, \.\.\.\], {_PATH}dtype\[{_PATH}(\w+)(?:\[[^\]]*\])?\]\]"
        ),
        r"NDArray[\1]",
    ),
)
"""Types as NumPy expands them, and as our source writes them."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer, both directives and the short types."""
    app.add_html_math_renderer(
        "mathml", (_inline_math, lambda *_: None), (_block_math, lambda *_: None)
    )
    app.add_directive("plotted", Plotted)
    app.add_directive("options", Options)
    app.connect("autodoc-process-signature", shorten_types)
    app.connect("html-page-context", reach_by_keyboard, priority=900)  # after the theme's own
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def reach_by_keyboard(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Let the keyboard scroll wide tables and code, and give the headings of the navigation their level.

    The theme does neither, and axe-core calls both serious.
    """
    for part, was, becomes in (
        ("furo_navigation_tree", 'role="heading"', 'role="heading" aria-level="2"'),
        ("body", '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
        ("body", "<pre>", '<pre tabindex="0">'),
    ):
        if part in context:
            context[part] = context[part].replace(was, becomes)


def shorten_types(
    app: Sphinx,
    what: str,
    name: str,
    value: Any,
    options: Any,
    arguments: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """The signature of a name with readable array types."""

    def short(text: str | None) -> str | None:
        for pattern, replacement in SHORT_TYPES if text else ():
            text = pattern.sub(replacement, text)
        return text

    return short(arguments), short(returns)


def _inline_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_math(writer: Any, node: nodes.math_block) -> None:
    formula = tex2mathml(node.astext(), as_block=True)
    writer.body.append(f'<div class="math" tabindex="0">{formula}</div>\n')
    raise nodes.SkipNode


class Plotted(SphinxDirective):
    """The figure or timeline that is the value of the last example above: the examples are run.

    The argument, if any, is the metric to draw of a figure that has several.
    """

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        source, line = self.get_source_info()
        above = "\n".join(Path(source).read_text(encoding="utf-8").splitlines()[: line - 1])
        examples = doctest.DocTestParser().get_examples(above)
        done, names = self.env.temp_data.get("session", (0, {}))
        with redirect_stdout(io.StringIO()):
            for example in examples[done:-1]:
                exec(compile(example.source, source, "exec"), names)
            value = eval(examples[-1].source, names)
        self.env.temp_data["session"] = len(examples) - 1, names
        number = self.env.new_serialno("plotted")
        name = f"{self.env.docname.replace('/', '-')}-{number}.svg"
        folder = Path(self.env.srcdir) / PICTURES
        folder.mkdir(exist_ok=True)
        options = {"metric": self.arguments[0]} if self.arguments else {}
        value.save(folder / name, **options)
        alt = value.in_words() if hasattr(value, "in_words") else f"{value.title}. {value.alt}"
        return [nodes.image(uri=f"/{PICTURES}/{name}", alt=alt, classes=["plotted"])]


class Options(Directive):
    """The arguments and options of a command, read from the command."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        command = command_called(self.arguments[0])
        rows = [row for param in command.params if (row := _row(param)) is not None]
        return [_table(("option", "meaning", "default"), rows)]


def commands() -> dict[str, click.Command]:
    """Every command by the words after ``sojourn``."""
    import typer.main

    from sojourn.cli import app

    found: dict[str, click.Command] = {}
    groups = [("", typer.main.get_command(app))]
    while groups:
        before, group = groups.pop()
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            called = f"{before} {name}".strip()
            if hasattr(command, "commands"):
                groups.append((called, command))
            else:
                found[called] = command
    return dict(sorted(found.items()))


def command_called(name: str) -> click.Command:
    """The command of that name."""
    return commands()[name]


def _row(param: click.Parameter) -> tuple[str, str, str] | None:
    if param.name in ("install_completion", "show_completion") or "--help" in param.opts:
        return None
    text = getattr(param, "help", None) or ""
    if param.param_type_name == "argument":
        return param.make_metavar(click.Context(click.Command("x"))), text, ""
    names = ", ".join([*param.opts, *param.secondary_opts])
    shown = getattr(param, "show_default", None)
    if isinstance(shown, str):
        default = shown
    elif (
        param.default is None
        or param.default is False
        or callable(param.default)
        or (isinstance(param.default, list | tuple) and not param.default)
    ):
        default = ""
    else:
        default = str(param.default)
    return names, text, default


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> nodes.table:
    group = nodes.tgroup(cols=len(columns))
    widths = (28, 57, 15)
    group += [nodes.colspec(colwidth=width) for width in widths]
    head, body = nodes.thead(), nodes.tbody()
    head += _line([nodes.paragraph("", column) for column in columns])
    for name, text, default in rows:
        cells = [
            nodes.paragraph("", "", nodes.literal("", name)),
            nodes.paragraph("", text),
            nodes.paragraph("", "", nodes.literal("", default)) if default else nodes.paragraph(),
        ]
        body += _line(cells)
    group += [head, body]
    table = nodes.table("", group, classes=["options"])
    return table


def _line(cells: list[nodes.paragraph]) -> nodes.row:
    row = nodes.row()
    row += [nodes.entry("", cell) for cell in cells]
    return row
