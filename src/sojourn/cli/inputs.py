"""What several commands take and print alike."""

from typing import Annotated

import numpy as np
import typer

from sojourn.network import BUILT_IN_FLEETS

FleetArgument = Annotated[
    str,
    typer.Argument(
        metavar="FLEET",
        help="CSV with a column service_rate and, optionally, count and name; or a built-in fleet: "
        + ", ".join(BUILT_IN_FLEETS)
        + ".",
    ),
]


def say_next(text: str) -> None:
    """End a command with what to do now; not on standard output, which programs read."""
    typer.echo(f"Next: {text}", err=True)


def printed(value: float) -> str:
    """A number for a table: four significant digits, plainly written where that is short."""
    if not np.isfinite(value):
        return str(value)
    return f"{value:.4g}"


ServerRateOption = Annotated[
    float | None,
    typer.Option(
        help="Updates per unit of time that the server can make, one after the other; it takes no "
        "time if left out. Times on links are the fleet's columns downlink and uplink."
    ),
]
