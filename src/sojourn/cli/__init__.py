"""The ``sojourn`` command: thin Typer commands, one module each, and no mathematics."""

import os
import sys
from typing import NoReturn

import typer

from sojourn.errors import MissingExtra, SojournError
from sojourn.version import __version__

EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "joblib": "train",
    "distributed": "dask",
    "jinja2": "report",
    "matplotlib": "report",
    "plotly": "report",
    "flwr": "deploy",
}
"""Which extra brings a package that a command may find missing."""

app = typer.Typer(
    name="sojourn",
    help="Choose routing, concurrency and learning rate for asynchronous federated learning, "
    "and run it.",
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
    figure,
    plan,
    report,
    reproduce,
    simulate,
    train,
)

__all__ = [
    "analyze",
    "app",
    "calibrate",
    "compare",
    "demo",
    "deploy",
    "figure",
    "main",
    "plan",
    "report",
    "reproduce",
    "simulate",
    "train",
]


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit code 2."""
    try:
        app()
    except SojournError as error:
        _refuse(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _refuse(MissingExtra(package, extra=EXTRAS[package]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _refuse(error: SojournError) -> NoReturn:
    typer.secho(f"error: {error}", fg="red", err=True)
    sys.exit(2)
