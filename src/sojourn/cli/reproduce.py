"""``sojourn reproduce``: part of a checkout, which has the paper's claims, not of the installed package."""

import importlib
import sys
from pathlib import Path
from typing import Any

import typer

from sojourn.cli import app
from sojourn.errors import DataNotFound, naming_extras

PAPER = Path(__file__).parents[3] / "experiments" / "paper"
"""Where a checkout has the reproduction, which is a user of this library."""


def reproduction(module: str) -> Any:
    """The module of that name of the reproduction."""
    if not (PAPER / "reproduction").is_dir():
        raise DataNotFound(
            "the reproduction of the paper is in the repository, not in the installed package: "
            "clone the repository, install it with pip install -e '.[all]', and run the command there"
        )
    if str(PAPER) not in sys.path:
        sys.path.append(str(PAPER))
    with naming_extras():
        return importlib.import_module(f"reproduction.{module}")


def holds_claims(folder: Path) -> bool:
    """Whether ``folder`` was written by ``sojourn reproduce``."""
    return any(folder.glob("finding.json")) or any(folder.glob("*/finding.json"))


if (PAPER / "reproduction").is_dir():
    reproduction("command")  # the command in it registers itself on `app`
else:

    @app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def reproduce(context: typer.Context) -> None:
        """Compute the paper's claims again, in a checkout of the repository."""
        reproduction("command")
