"""``sojourn explore`` and ``watch``: pages served on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli import app
from sojourn.cli.options import FleetArgument, OpenOption, PortOption
from sojourn.cli.output import say_first, say_next
from sojourn.fleet.named import read_fleet


@app.command()
def explore(
    fleet: FleetArgument = "three-clusters",
    open_browser: OpenOption = True,
    port: PortOption = 0,
) -> None:
    """Change speeds, tasks in flight, policy and weights on a local page, and see the consequences.

    Example: sojourn explore three-clusters
    """
    say_first(f"reading {fleet}")
    from sojourn.live.explorer import Explorer
    from sojourn.live.server import serve

    explorer = Explorer(read_fleet(fleet), fleet)
    explorer.prepare()
    say_next(
        "plan", fleet, "--page", "plan.html", note="Ctrl-C ends this, and the pilots that it runs"
    )
    try:
        serve(explorer.serve_on(port), open_browser=open_browser, say=typer.echo)
    finally:
        explorer.close()


@app.command()
def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of train, tune or deploy.")
    ],
    open_browser: OpenOption = True,
    port: PortOption = 0,
) -> None:
    """Follow a run on a local page: timeline, learning curves, clients, time left, verdict.

    The folder is only read; closing the page changes nothing.

    Example: sojourn watch results
    """
    say_first(f"reading {folder}")
    from sojourn.live.server import serve
    from sojourn.live.watcher import Watcher

    watcher = Watcher(folder)
    say_next("report", folder, note="when it is over; Ctrl-C ends the watching, not the run")
    serve(watcher.serve_on(port), open_browser=open_browser, say=typer.echo)
