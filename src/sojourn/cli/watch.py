"""``sojourn watch``: a running or finished folder as a page that follows it."""

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli import app
from sojourn.cli.inputs import OpenOption, PortOption, say_next


@app.command()
def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of train, tune or deploy.")
    ],
    open_browser: OpenOption = True,
    port: PortOption = 0,
) -> None:
    """Follow a run on a page: accuracy as it comes, the race, the clients, the time left.

    The folder is only read; closing the page changes nothing.

    Example: sojourn watch results
    """
    from sojourn.live.serving import serve
    from sojourn.live.watcher import Watcher

    watcher = Watcher(folder)
    say_next("report", folder, note="when it is over; Ctrl-C ends the watching, not the run")
    serve(watcher.serve_on(port), open_browser=open_browser, say=typer.echo)
