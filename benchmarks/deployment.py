"""Updates a second of the template with three clients: Flower's process per task, `sojourn client`, threads.

The first two take turns, so that what else the machine does falls on both. Besides the rate from the
first update to the last, the processor seconds per update of all processes of the deployment, by kind.
At the end one client with one task in flight, every way: the final weights are the same to the bit.
"""

import argparse
import json
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from sojourn.deployment.app import app_config, task_folder, write_app
from sojourn.deployment.local import LocalFlower, follow, run_in_process
from sojourn.deployment.processes import descendants
from sojourn.deployment.settings import read_settings

SAMPLE_SECONDS = 0.2
KINDS = {
    "flower-superlink": "SuperLink",
    "flower-superexec": "SuperExec",
    "flwr-serverapp": "server",
    "flwr-clientapp": "task",
    "flower-supernode": "SuperNode",
    "resident node": "SuperNode",
    "resident work": "worker",
    "sojourn client": "client",
    "flwr run": "flwr",
    "flwr list": "flwr",
}
"""What a process is, by words in its command."""


class Processor:
    """Processor seconds of everything that was started from here, by kind.

    Processes are looked at while they run; what one uses between the last look and its end is known
    only as part of what its parent has waited for, and is in the total under ``unseen``.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._kinds: dict[int, str] = {}
        self._over = threading.Event()
        self._before = _of_children()

    def look(self) -> None:
        for pid in descendants([os.getpid()]):
            try:
                process = psutil.Process(pid)
                times, words = process.cpu_times(), process.cmdline()
            except psutil.Error:
                continue
            command = " ".join([Path(words[0]).name, *words[1:]]) if words else ""
            kind = next((kind for text, kind in KINDS.items() if text in command), None)
            self._kinds[pid] = kind or self._kinds.get(pid, "other")
            self._seconds[pid] = times.user + times.system

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.look()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def by_kind(self) -> dict[str, float]:
        """After all processes have ended and were waited for."""
        found: dict[str, float] = defaultdict(float)
        for pid, seconds in self._seconds.items():
            found[self._kinds[pid]] += seconds
        found["unseen"] = max(0.0, _of_children() - self._before - sum(found.values()))
        return found


def _of_children() -> float:
    """Processor seconds of all children of this process that have ended, and of their children."""
    times = os.times()
    return times.children_user + times.children_system


def on_flower(
    app: Path, folder: Path, *, resident: bool, clients: int, updates: int
) -> tuple[float, dict[str, float]]:
    """Updates a second, and processor seconds by kind."""
    processor = Processor()
    with (
        processor.watching(),
        LocalFlower(folder / "logs", resident=resident) as flower,
    ):
        flower.start_superlink()
        for client in range(clients):
            flower.start_supernode(client)
        config = {"clients": clients, "updates": updates, "predict": False}
        number = flower.run(app, {**config, "run-folder": str(folder)})
        follow(flower, number, folder, lambda status: None)
    return rate_of(folder), processor.by_kind()


def in_process(app: Path, folder: Path, *, clients: int, updates: int) -> float:
    """Updates a second with clients as threads."""
    config = {"clients": clients, "updates": updates, "predict": False, "evaluate-every": 100}
    given = {**app_config(app), **config, "run-folder": str(folder)}
    settings = read_settings(given, task_folder(app))
    run_in_process(app, settings, [0.0] * clients, lambda status: None)
    return rate_of(folder)


def rate_of(folder: Path) -> float:
    """Updates a second, from the first to the last."""
    lines = (folder / "tasks.jsonl").read_text().splitlines()
    times = [json.loads(line)["time"] for line in lines]
    return float((len(times) - 1) / (times[-1] - times[0]))


def main() -> None:
    """Both of Flower's ways in turns, then threads, then the weights of one client."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--turns", type=int, default=2)
    given = parser.parse_args()
    ways = {"process per task": False, "sojourn client": True}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_app(root / "app")
        for turn in range(given.turns):
            for way, resident in ways.items():
                rate, seconds = on_flower(
                    root / "app",
                    root / f"{way}-{turn}",
                    resident=resident,
                    clients=3,
                    updates=given.updates,
                )
                rates[way].append(rate)
                kinds = ", ".join(
                    f"{kind} {used / given.updates:.2f}"
                    for kind, used in sorted(seconds.items(), key=lambda item: -item[1])
                )
                print(
                    f"{way}: {rate:.2f} updates/s; processor seconds per update "
                    f"{sum(seconds.values()) / given.updates:.2f} ({kinds}); "
                    f"load average {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
        per_task, resident_rate = (float(np.mean(rates[way])) for way in ways)
        print(f"ratio of the means: {resident_rate / per_task:.1f}")
        rate = in_process(root / "app", root / "threads", clients=3, updates=1000)
        print(f"threads: {rate:.0f} updates/s", flush=True)
        in_process(root / "app", root / "alone-threads", clients=1, updates=10)
        alone = np.load(root / "alone-threads" / "weights.npy")
        for way, resident in ways.items():
            folder = root / f"alone-{way}"
            on_flower(root / "app", folder, resident=resident, clients=1, updates=10)
            same = np.array_equal(np.load(folder / "weights.npy"), alone)
            print(
                f"one client, {way}: weights {'equal' if same else 'DIFFER from'} those of threads"
            )


if __name__ == "__main__":
    main()
