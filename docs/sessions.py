"""What these pages need of Sphinx: formulas as MathML, figures of sessions, tables of options.

All three need no network and no build step: browsers draw MathML, the value of a page's last example
above `{plotted}` draws itself, and a command tells its own options.
"""

import doctest
import io
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


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer and both directives."""
    app.add_html_math_renderer(
        "mathml", (_inline_math, lambda *_: None), (_block_math, lambda *_: None)
    )
    app.add_directive("plotted", Plotted)
    app.add_directive("options", Options)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_math(writer: Any, node: nodes.math_block) -> None:
    formula = tex2mathml(node.astext(), as_block=True)
    writer.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


class Plotted(SphinxDirective):
    """The figure or timeline that the last example above is: the session is run, and it draws itself.

    The argument, if any, is the quantity to draw of a figure that has several.
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
    """The arguments and options of a command, as the command itself tells them."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        command = command_called(self.arguments[0])
        rows = [row for param in command.params if (row := _row(param)) is not None]
        return [_table(("option", "meaning", "default"), rows)]


def commands() -> dict[str, click.Command]:
    """Every command by what is typed after ``sojourn``."""
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
    told = getattr(param, "help", None) or ""
    if param.param_type_name == "argument":
        return param.make_metavar(click.Context(click.Command("x"))), told, ""
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
    return names, told, default


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> nodes.table:
    group = nodes.tgroup(cols=len(columns))
    widths = (28, 57, 15)
    group += [nodes.colspec(colwidth=width) for width in widths]
    head, body = nodes.thead(), nodes.tbody()
    head += _line([nodes.paragraph("", column) for column in columns])
    for name, told, default in rows:
        cells = [
            nodes.paragraph("", "", nodes.literal("", name)),
            nodes.paragraph("", told),
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
