"""How fast the explorer answers: a slider moved again and again, asked as its page asks.

Thirty clients in three clusters, over HTTP on this machine. Three kinds of moves: tasks in flight and
exponent (the map stays), a speed (everything changes, the map with it), and the recommendation that
follows a moment later. Prints the median on the wall and of the processor; the target is a median
below 150 ms for the answer to a move.

``--page`` opens the page in Chromium instead, for 100,000 clients in five classes and for 100,000 distinct
speeds: seconds from its opening to the first numbers (target: 2) and to everything on it (target: 10).
"""

import argparse
import http.client
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from first_line import cache_bytecode, processor_seconds

from sojourn.fleet import built_in_fleet
from sojourn.live.explorer import Explorer
from sojourn.live.server import TOKEN_HEADER, LocalServer

TARGET = 150.0
CLIENTS = 100_000
FIRST_NUMBERS, EVERYTHING = 2.0, 10.0


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


def large_fleets(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of 100,000 clients in five classes, and of as many that are all different."""
    few = folder / "classes.csv"
    rows = [f"{rate},{CLIENTS // 5}" for rate in (0.01, 0.1, 1.0, 3.0, 9.0)]
    few.write_text("\n".join(["service_rate,count", *rows]) + "\n", encoding="utf-8")
    yield "five classes", few
    many = folder / "speeds.csv"
    speeds = np.exp(np.random.default_rng(0).normal(size=CLIENTS)).tolist()
    many.write_text("\n".join(["service_rate", *map(repr, speeds)]) + "\n", encoding="utf-8")
    yield "distinct speeds", many


def open_page(browser: Any, fleet: Path) -> tuple[float, float, float]:
    """Seconds from opening the page to its first numbers and to everything, and of the server's processor."""
    with subprocess.Popen(
        [sys.executable, "-m", "sojourn", "explore", str(fleet), "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        address = next(word for word in server.stdout.readline().split() if "http" in word)
        before = processor_seconds(server.pid)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        begun = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.wait_for_selector("body[data-numbers]", timeout=120_000)
        numbers = time.perf_counter() - begun
        page.wait_for_selector("body[data-ready=true][data-answered]", timeout=120_000)
        everything = time.perf_counter() - begun
        used = processor_seconds(server.pid) - before
        page.close()
        server.send_signal(signal.SIGINT)
    return numbers, everything, used


def measure_pages() -> bool:
    """Whether both large fleets are on the page in time."""
    from playwright.sync_api import sync_playwright

    kept = True
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        cache_bytecode(Path(folder))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for what, fleet in large_fleets(Path(folder)):
            open_page(
                browser, fleet
            )  # what the first start of an installation leaves: bytecode, kernels
            numbers, everything, used = open_page(browser, fleet)
            print(
                f"{CLIENTS:,} clients, {what}: first numbers after {numbers:.2f} s, everything after "
                f"{everything:.2f} s ({used:.2f} s of the server's processor)",
                flush=True,
            )
            kept &= numbers < FIRST_NUMBERS and everything < EVERYTHING
        browser.close()
    return kept


def main() -> None:
    """Run it and say what was seen; exit with 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--page", action="store_true", help="open large fleets in Chromium")
    given = parser.parse_args()
    if given.page:
        sys.exit(not measure_pages())
    moves = given.moves
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
