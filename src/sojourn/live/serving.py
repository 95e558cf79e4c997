"""A server in the foreground: it says where it is, opens the page, and ends with Ctrl-C."""

import webbrowser
from collections.abc import Callable

from sojourn.live.server import LocalServer


def serve(server: LocalServer, *, open_browser: bool, say: Callable[[str], None]) -> None:
    """Answer until Ctrl-C, then give the port back."""
    try:
        say(f"open {server.address}")
        if open_browser:
            webbrowser.open(server.address)
        server.serve()
    except KeyboardInterrupt:
        say("ended")
    finally:
        server.close()
