"""``sojourn explore``: move speeds, tasks and policy on a page, and see what follows at once."""

import webbrowser
from typing import Annotated

import typer

from sojourn.cli import app
from sojourn.cli.inputs import FleetArgument, say_next
from sojourn.inputs import read_fleet


@app.command()
def explore(
    fleet: FleetArgument = "three-clusters",
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
) -> None:
    """Move speeds, tasks in flight, policy and weights on a page, and see at once what follows.

    Example: sojourn explore three-clusters
    """
    from sojourn.live.explorer import Explorer

    explorer = Explorer(read_fleet(fleet), fleet)
    server = explorer.serve_on(port)
    try:
        typer.echo(f"open {server.address}")
        say_next("Ctrl-C ends it, and the pilots that it runs")
        if open_browser:
            webbrowser.open(server.address)
        server.serve()
    except KeyboardInterrupt:
        typer.echo("ended")
    finally:
        explorer.close()
        server.close()
