"""The reproduction of the paper: part of a checkout of the repository, not of the installed package."""

import importlib
import sys
from pathlib import Path
from typing import Any

from sojourn.errors import EXTRAS, DataNotFound, MissingExtra

PAPER = Path(__file__).parents[3] / "experiments" / "paper"
"""Where a checkout has it."""


def reproduction(module: str) -> Any:
    """The module of that name of the reproduction, which is a user of this library."""
    if not (PAPER / "reproduction").is_dir():
        raise DataNotFound(
            "the reproduction of the paper is in the repository, not in the installed package: "
            "clone the repository, install it with pip install -e '.[all]', and run the command there"
        )
    if str(PAPER) not in sys.path:
        sys.path.append(str(PAPER))
    try:
        return importlib.import_module(f"reproduction.{module}")
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            raise MissingExtra(error.name, extra="all") from error
        raise


def holds_claims(folder: Path) -> bool:
    """Whether ``folder`` was written by ``sojourn reproduce``."""
    return any(folder.glob("finding.json")) or any(folder.glob("*/finding.json"))
