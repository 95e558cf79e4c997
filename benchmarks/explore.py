"""How fast the explorer answers: a slider moved again and again, asked as its page asks.

Thirty clients in three clusters, over HTTP on this machine. Three kinds of moves: tasks in flight and
exponent (the map stays), a speed (everything changes, the map with it), and the recommendation that
follows a moment later. Prints the median on the wall and of the processor; the target is a median
below 150 ms for the answer to a move.
"""

import argparse
import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sojourn.fleet import built_in_fleet
from sojourn.live.explorer import Explorer
from sojourn.live.server import TOKEN_HEADER, LocalServer

TARGET = 150.0


def concurrencies(number: int) -> Iterator[dict[str, Any]]:
    """Tasks in flight and exponent, moved together."""
    for k in range(number):
        yield {"concurrency": 1 + k % 90, "exponent": round(0.05 * (k % 30), 2)}


def speeds(number: int) -> Iterator[dict[str, Any]]:
    """The speed of the slow, never the same twice."""
    for k in range(number):
        yield {"rates": [0.01 * 1.01**k, 0.1, 1.0], "dispatch": ("routed", "never-queue")[k % 2]}


def measure(
    server: LocalServer, name: str, moves: Callable[[int], Iterator[dict[str, Any]]], number: int
) -> tuple[float, float]:
    """Medians in milliseconds of a question: on the wall, and of this process's processor time."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    wall, used = [], []
    for asked in moves(number):
        begun, before = time.perf_counter(), time.process_time()
        link.request("POST", f"/api/{name}", json.dumps(asked), {TOKEN_HEADER: server.token})
        reply = link.getresponse()
        body = reply.read()
        assert reply.status == 200, body
        wall.append(time.perf_counter() - begun)
        used.append(time.process_time() - before)
    link.close()
    return 1e3 * statistics.median(wall), 1e3 * statistics.median(used)


def main() -> None:
    """Run it and say what was seen; exit with 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=60)
    moves = parser.parse_args().moves
    explorer = Explorer(built_in_fleet("three-clusters"), "three-clusters")
    server = explorer.serve_on()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    slowest = 0.0
    for what, name, kind in (
        ("tasks in flight and exponent", "view", concurrencies),
        ("a speed", "view", speeds),
        ("the recommendation after a speed", "advice", speeds),
    ):
        measure(server, name, kind, 3)
        wall, used = measure(server, name, kind, moves)
        print(f"{what}: median {wall:.0f} ms on the wall, {used:.0f} ms of the processor")
        slowest = max(slowest, wall if name == "view" else 0.0)
    explorer.close()
    server.shutdown()
    print(f"a move is answered after {slowest:.0f} ms (target: below {TARGET:.0f})")
    sys.exit(slowest >= TARGET)


if __name__ == "__main__":
    main()
