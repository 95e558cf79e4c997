"""The ``sojourn`` command: thin Typer commands in one module per subject, and no mathematics."""

import codecs
import gc
import importlib
import inspect
import io
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

import click
import typer
from typer.core import TyperGroup

from sojourn._support.files import exists, printable
from sojourn._support.ledger import accept_edits, noted
from sojourn._support.progress import never_silent
from sojourn._support.user_errors import users_error, users_frames
from sojourn._support.user_modules import trust_only
from sojourn.cli.options import sparing_inputs
from sojourn.errors import InvalidInput, SojournError, naming_extras
from sojourn.version import __version__

WORDS = "sojourn.words"
TRUST = "sojourn.trust"


class _Words(TyperGroup):
    """Remembers the words that were typed: modules among them are named by the user."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Words,
    suggest_commands=False,  # click suggests one already
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
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    trust: bool = typer.Option(
        False,
        "--trust",
        help="Run code that is named in files from others: a strategy, a plan, a run folder.",
    ),
    use_edited: bool = typer.Option(
        False,
        "--use-edited",
        help="Use files of a run folder that were edited since Sojourn wrote them.",
    ),
) -> None:
    accept_edits(use_edited)
    context.call_on_close(_name_edited)
    if not trust:
        _refuse_compiler_settings()
    context.meta[TRUST] = trust
    if context.invoked_subcommand in RUN_CODE:
        trust_only()
    else:
        run_what_is_named(context)


def run_what_is_named(context: click.Context) -> None:
    """Of users' own code run only what the command line names, unless it says ``--trust``."""
    if context.meta[TRUST]:
        trust_only()
        return
    words = [word.rpartition("=")[2] for word in context.meta[WORDS]]
    # A file or folder of that name is what was meant, and whoever made it chose its name.
    named = {word.partition(":")[0] for word in words if ":" in word and not exists(word)}
    # One of that name beside a file of others is not what was named.
    trust_only(lambda module, place: module in named and place in (None, Path.cwd()))
    # A program that calls a command and goes on trusts its own modules again.
    context.call_on_close(trust_only)


def _refuse_compiler_settings() -> None:
    """Numba reads its settings from the working folder, and one says where the compiled code to run lies."""
    if exists(COMPILER_SETTINGS):
        raise InvalidInput(
            f"'{COMPILER_SETTINGS}' in this folder would tell the compiler Numba which code to load. Work in "
            "another folder; if you trust the file: sojourn --trust ..., with the same command"
        )


def _name_edited() -> None:
    for edited in noted():
        typer.echo(f"note: used as edited: {printable(edited)}", err=True)
    accept_edits(False)


COMPILER_SETTINGS = ".numba_config.yaml"
RUN_CODE = {"train", "tune", "calibrate", "deploy", "client", "reproduce"}
"""Commands whose purpose is to run the code that an experiment or an app names."""
SERVING = {"explore", "watch", "deploy", "client"}
PLAIN = {"±": "+-", "×": "x", "–": "-", "…": "...", "≤": "<=", "≥": ">=", "η": "eta", "σ": "sigma"}
"""What is written where the terminal's encoding lacks a character."""
PANELS = {
    "Decide": ("explore", "analyze", "plan", "simulate", "fleet"),
    "Train and measure": ("demo", "new", "tune", "train", "calibrate", "reproduce"),
    "Look": ("report", "watch", "compare", "figure"),
    "Run on real clients": ("deploy", "client"),
}
"""Commands by what they are for, in the order of the help."""
MODULES = ("analyze", "deploy", "fleet", "look", "plan", "reproduce", "simulate", "train", "tune")
for _module in MODULES:  # the commands in them register themselves on `app`
    importlib.import_module(f"sojourn.cli.{_module}")


def _arrange() -> None:
    """Show commands by what they are for, and paragraphs of their help as wide as the terminal."""
    panel = {name: title for title, names in PANELS.items() for name in names}
    order = list(panel)
    app.registered_commands.sort(
        key=lambda info: order.index(getattr(info.callback, "__name__", ""))
    )
    for command in app.registered_commands:
        callback = command.callback
        assert callback is not None
        command.callback = sparing_inputs(callback)
        command.rich_help_panel = panel[callback.__name__]
        command.help = _help_of(callback)
    for group in app.registered_groups:
        assert group.name is not None
        assert group.typer_instance is not None
        group.rich_help_panel = panel[group.name]
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            command.help = _help_of(command.callback)
            command.callback = sparing_inputs(command.callback)


def _help_of(callback: Callable[..., object]) -> str:
    """The paragraphs of a docstring, each as one line that the terminal breaks."""
    paragraphs = (inspect.getdoc(callback) or "").split("\n\n")
    return "\n\n".join(" ".join(text.split()) for text in paragraphs)


_arrange()


def _make_output_safe() -> None:
    """Write what the terminal's encoding lacks in plain letters, and isolate child processes."""
    codecs.register_error("sojourn", _in_plain_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sojourn")
    os.environ["PYTHONSAFEPATH"] = "1"  # a joblib.py in the working folder is not joblib


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, ascii(letter)[1:-1]) for letter in text), error.end


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit code 2."""
    _make_output_safe()
    try:
        with _heard_of(), naming_extras():
            app(obj=_process_started())
    except SojournError as error:
        _refuse(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _blame_users_code(error)
        _refuse(SojournError(_in_words(error)))
    except MemoryError as error:
        _refuse(SojournError(f"this takes more memory than there is: {error or 'ask for less'}"))
    except Exception as error:
        _blame_users_code(error)
        raise
    finally:
        gc.freeze()  # the process ends here: to look through all objects once more takes a second


def _process_started() -> float:
    """When this process was started, on the monotonic clock: what it took to load counts, too."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = int(fields[19])  # since the machine was started
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):  # not on Linux
        age = 0.0
    return time.monotonic() - max(age, time.process_time())


def _blame_users_code(error: Exception) -> None:
    """Where the user's own code raised, or was given what it cannot take: one sentence, and the end.

    The frames of that code are printed before it.
    """
    sentence = users_error(error)
    if sentence is None:
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        if notes:  # of a library that was called with the user's model or samples
            what = str(error).rstrip(".")
            _refuse(SojournError(f"{type(error).__name__}: {what}{notes}"))
        return
    frames = traceback.format_list(users_frames(error))
    typer.echo(printable("".join(frames)), err=True, nl=False)
    _refuse(SojournError(sentence))


def _heard_of() -> AbstractContextManager[None]:
    """Signs of life of every command but those that serve until they are stopped."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    computes = command in {name for names in PANELS.values() for name in names} - SERVING
    return never_silent(f"{command}: loading") if computes else nullcontext()


def _in_words(error: OSError) -> str:
    """What the file system refused, and where."""
    name = str(error.filename or "")
    where = name if len(name) <= 200 else f"{name[:100]}... ({len(name)} characters)"
    return f"{where}: {error.strerror}" if where else str(error)


def _refuse(error: SojournError) -> NoReturn:
    typer.secho(f"error: {printable(str(error))}", fg="red", err=True)
    sys.exit(2)
