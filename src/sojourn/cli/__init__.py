"""The ``sojourn`` command: thin Typer commands, one module each, and no mathematics."""

import inspect
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import typer

from sojourn.cli.inputs import sparing_inputs
from sojourn.errors import EXTRAS, MissingExtra, SojournError
from sojourn.progress import never_silent
from sojourn.version import __version__

app = typer.Typer(
    name="sojourn",
    help="Choose who gets which task, how many are in flight and how fast to learn, for asynchronous "
    "federated learning, and run it. Begin with: sojourn demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sojourn {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


from sojourn.cli import (  # noqa: E402  the commands register themselves on `app`
    analyze,
    calibrate,
    compare,
    demo,
    deploy,
    explore,
    figure,
    fleet,
    plan,
    report,
    reproduce,
    simulate,
    train,
    tune,
    watch,
)

__all__ = [
    "analyze",
    "app",
    "calibrate",
    "compare",
    "demo",
    "deploy",
    "explore",
    "figure",
    "fleet",
    "main",
    "plan",
    "report",
    "reproduce",
    "simulate",
    "train",
    "tune",
    "watch",
]

SERVING = {"explore", "watch", "deploy"}
PANELS = {
    "Decide": ("explore", "analyze", "plan", "simulate", "fleet"),
    "Train and measure": ("demo", "tune", "train", "calibrate", "reproduce"),
    "Look": ("report", "watch", "compare", "figure"),
    "Run on real clients": ("deploy",),
}


def _arrange() -> None:
    """Show commands by what they are for, and paragraphs of their help as wide as the terminal."""
    panel = {name: title for title, names in PANELS.items() for name in names}
    order = list(panel)
    app.registered_commands.sort(
        key=lambda info: order.index(getattr(info.callback, "__name__", ""))
    )
    for command in app.registered_commands:
        said = command.callback
        assert said is not None
        command.callback = sparing_inputs(said)
        command.rich_help_panel = panel[said.__name__]
        paragraphs = (inspect.getdoc(said) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)
    for group in app.registered_groups:
        command_of = group.name or (group.typer_instance.info.name if group.typer_instance else "")
        group.rich_help_panel = panel[str(command_of)]
        for command in group.typer_instance.registered_commands if group.typer_instance else ():
            assert command.callback is not None
            command.callback = sparing_inputs(command.callback)


_arrange()


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit code 2."""
    try:
        with _heard_of():
            app()
    except SojournError as error:
        _refuse(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _refuse(SojournError(_in_words(error)))
    except MemoryError as error:
        _refuse(SojournError(f"this takes more memory than there is: {error or 'ask for less'}"))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _refuse(MissingExtra(package, extra=EXTRAS[package]))


def _heard_of() -> AbstractContextManager[None]:
    """Signs of life of every command but those that serve until they are told to end."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    computes = command in {name for names in PANELS.values() for name in names} - SERVING
    return never_silent(f"{command}: at work") if computes else nullcontext()


def _in_words(error: OSError) -> str:
    """What the file system refused, and where."""
    name = str(error.filename or "")
    where = name if len(name) <= 200 else f"{name[:100]}... ({len(name)} characters)"
    return f"{where}: {error.strerror}" if where else str(error)


def _refuse(error: SojournError) -> NoReturn:
    typer.secho(f"error: {error}", fg="red", err=True)
    sys.exit(2)
