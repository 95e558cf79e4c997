"""``sojourn explore``: move speeds, tasks and policy on a page, and see what follows at once."""

import typer

from sojourn.cli import app
from sojourn.cli.inputs import FleetArgument, OpenOption, PortOption, say_next
from sojourn.inputs import read_fleet


@app.command()
def explore(
    fleet: FleetArgument = "three-clusters",
    open_browser: OpenOption = True,
    port: PortOption = 0,
) -> None:
    """Move speeds, tasks in flight, policy and weights on a page, and see at once what follows.

    Example: sojourn explore three-clusters
    """
    from sojourn.live.explorer import Explorer
    from sojourn.live.serving import serve

    explorer = Explorer(read_fleet(fleet), fleet)
    say_next(
        "plan", fleet, "--page", "plan.html", note="Ctrl-C ends this, and the pilots that it runs"
    )
    try:
        serve(explorer.serve_on(port), open_browser=open_browser, say=typer.echo)
    finally:
        explorer.close()
