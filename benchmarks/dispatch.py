"""How much the dispatcher itself costs: completions a second, and memory over a million of them.

A thousand clients, a thousand tasks in flight, updates of ten numbers; the clients' side is a bare
loop that answers the oldest message. Prints completions per second and resident memory as it goes.
The dispatcher is one thread that never waits, so seconds are those of the processor: on a machine
that does nothing else they are the same as those on the wall, which are printed too.
"""

import argparse
import resource
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np

from sojourn.deployment import Dispatcher, Task
from sojourn.rules import GeneralizedAsyncSGD


def resident_megabytes() -> float:
    """Memory in use now, where the system says; the peak elsewhere."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(
    completions: int, clients: int, concurrency: int, size: int
) -> tuple[float, float, list[float]]:
    """Completions per processor second and per second, and megabytes at ten points of the run."""
    server = Dispatcher(
        np.zeros(size),
        rule=GeneralizedAsyncSGD(),
        routing=np.full(clients, 1 / clients),
        concurrency=concurrency,
        learning_rate=1e-3,
        seed=1,
    )
    waiting: deque[Task] = deque()
    for client in range(clients):
        waiting.extend(server.joined(client, now=0.0).send)
    waiting.extend(server.start(now=0.0).send)
    update = np.full(size, 0.1)
    memory = []
    now = 0.0
    begun, used = time.perf_counter(), time.process_time()
    for t in range(completions):
        now += 1 / clients  # a task per client and second, as the dispatcher expects at first
        if t % 1000 == 0:
            waiting.extend(server.tick(now).send)
        while not waiting:  # clients that answer faster than they should are asked later
            now += 1.0
            waiting.extend(server.tick(now).send)
        task = waiting.popleft()
        waiting.extend(server.completed(task.number, update, now=now, client=task.client).send)
        if (t + 1) % (completions // 10) == 0:
            memory.append(resident_megabytes())
    elapsed, used = time.perf_counter() - begun, time.process_time() - used
    assert server.counts.used + server.counts.dropped == completions
    assert server.held + len(server.tasks) == concurrency
    return completions / used, completions / elapsed, memory


def main() -> None:
    """Run it and say what was seen; exit with 1 if either target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--completions", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=10)
    given = parser.parse_args()
    speed, on_the_wall, memory = run(
        given.completions, given.clients, given.concurrency, given.size
    )
    growth = memory[-1] - memory[0]
    print(f"{speed:,.0f} completions/s with {given.clients:,} clients (target: 10,000)")
    print(f"on the wall, beside whatever else this machine was doing: {on_the_wall:,.0f}/s")
    print("memory in MB, every tenth of the run: " + " ".join(f"{x:.1f}" for x in memory))
    print(f"growth from the first tenth to the end: {growth:.1f} MB (target: flat, below 1)")
    sys.exit(speed < 10_000 or growth >= 1.0)


if __name__ == "__main__":
    main()
