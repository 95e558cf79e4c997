"""Updates a second of the template with three clients: Flower's process per task, `sojourn client`, threads.

The first two take turns, so that what else the machine does falls on both. The rate is that from the
first update to the last; so are the processor seconds per update of all processes of the deployment, by
kind, without what starting them takes. At the end one client with one task in flight, every way: the
final weights are the same to the bit. ``--out`` writes the figures as JSON.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.deployment.app import app_config, task_folder, write_app
from sojourn.deployment.local import LocalFlower, follow, run_in_process
from sojourn.deployment.settings import read_settings
from sojourn.deployment.status import RunStatus

SAMPLE_SECONDS = 0.25
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


TICK = os.sysconf("SC_CLK_TCK")
UNSEEN = "not seen before it ended"


@dataclass
class Processor:
    """Processor seconds of everything that was started from here, by kind.

    Processes are looked at while they run. What one uses between the last look and its end is known
    only in sum, from what its parent has waited for.
    """

    _kinds: dict[int, str] = field(default_factory=dict)
    _ended: Counter[str] = field(default_factory=Counter)
    _last: dict[int, float] = field(default_factory=dict)
    _looking: Any = field(default_factory=threading.Lock)

    def look(self) -> dict[str, float]:
        """Seconds used so far, by kind; in sum they are all, and they never get less."""
        with self._looking:
            running = dict(_descendants(os.getpid()))
            own = os.times()
            total = own.children_user + own.children_system
            for pid, (seconds, waited_for) in running.items():
                total += seconds + waited_for
                if self._kinds.get(pid, "other") == "other":
                    self._kinds[pid] = _kind(pid)
            for pid in self._last.keys() - running.keys():
                self._ended[self._kinds[pid]] += self._last.pop(pid)
            self._last = {pid: seconds for pid, (seconds, _) in running.items()}
            found = Counter(self._ended)
            for pid, seconds in self._last.items():
                found[self._kinds[pid]] += seconds
            found[UNSEEN] = max(0.0, total - found.total())
            return dict(found)

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_SECONDS):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _descendants(ancestor: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """Every process that was started from here: its own seconds, and those of children it waited for."""
    about: dict[int, tuple[int, float, float]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            used = [int(field) / TICK for field in fields[11:15]]
            about[int(process.name)] = int(fields[1]), used[0] + used[1], used[2] + used[3]
    for pid, (parent, *seconds) in about.items():
        while parent in about and parent != ancestor:
            parent = about[parent][0]
        if parent == ancestor:
            yield pid, (seconds[0], seconds[1])


def _kind(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        command = " ".join([Path(words[0]).name, *words[1:]])
        return next((kind for text, kind in KINDS.items() if text in command), "other")
    return "other"


def _machine() -> float:
    """Processor seconds that this machine has used, whoever did."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq))) / TICK


@dataclass
class Interval:
    """Time, updates and processor seconds, from the first update to the last."""

    processor: Processor
    of: int
    at: list[tuple[float, int, dict[str, float], float]] = field(default_factory=list)

    def show(self, status: RunStatus) -> None:
        """Look when there is a first update, and when there are all."""
        updates = int(status.get("updates") or 0)
        if (updates and not self.at) or (updates >= self.of and len(self.at) == 1):
            self.at.append((time.monotonic(), updates, self.processor.look(), _machine()))

    def figures(self) -> dict[str, Any]:
        """Processor seconds per update, by kind; and by how many processors others used."""
        (begun, first, before, machine), (ended, last, after, machine_after) = self.at
        used = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
        per = {kind: round(s / (last - first), 3) for kind, s in used.items() if s}
        others = (machine_after - machine - sum(used.values())) / (ended - begun)
        return {
            "processor": round(sum(used.values()) / (last - first), 3),
            "by kind": dict(sorted(per.items(), key=lambda item: -item[1])),
            "others": round(others, 2),
        }


def on_flower(
    app: Path, folder: Path, *, resident: bool, clients: int, updates: int, **options: float
) -> dict[str, Any]:
    """Updates a second, and processor seconds per update by kind."""
    processor = Processor()
    interval = Interval(processor, updates)
    with (
        processor.watching(),
        LocalFlower(folder / "logs", resident=resident) as flower,
    ):
        flower.start_superlink()
        for client in range(clients):
            flower.start_supernode(client)
        config = {"clients": clients, "updates": updates, "predict": False, **options}
        number = flower.run(app, {**config, "run-folder": str(folder)})
        follow(flower, number, folder, interval.show)
    return {"updates/s": round(rate_of(folder), 3), **interval.figures()}


def in_process(app: Path, folder: Path, *, clients: int, updates: int, **options: float) -> float:
    """Updates a second with clients as threads."""
    config: dict[str, object] = {"clients": clients, "updates": updates, "predict": False}
    config |= {"evaluate-every": 100, **options}
    given = {**app_config(app), **config, "run-folder": str(folder)}
    settings = read_settings(given, task_folder(app))
    run_in_process(app, settings, [0.0] * clients, lambda status: None)
    return rate_of(folder)


def rate_of(folder: Path) -> float:
    """Updates a second, from the first to the last."""
    lines = (folder / "tasks.jsonl").read_text().splitlines()
    times = [json.loads(line)["time"] for line in lines]
    return float((len(times) - 1) / (times[-1] - times[0]))


def rates(root: Path, updates: int, turns: int) -> dict[str, Any]:
    """Both of Flower's ways in turns: every turn, and the ratio of their means."""
    found: dict[str, Any] = {way: [] for way in WAYS}
    for turn in range(turns):
        for way, (resident, times) in WAYS.items():
            folder, number = root / f"{way}-{turn}", times * updates
            made = on_flower(root / "app", folder, resident=resident, clients=3, updates=number)
            found[way].append({"updates": number, **made})
            print(f"{way}: {json.dumps(found[way][-1])}", flush=True)
    slow, fast = (np.mean([turn["updates/s"] for turn in found[way]]) for way in WAYS)
    found["ratio of the means"] = round(float(fast / slow), 2)
    print(f"ratio of the means: {found['ratio of the means']}", flush=True)
    return found


def threads(root: Path) -> dict[str, Any]:
    """Clients as threads of the server's process."""
    rate = in_process(root / "app", root / "threads", clients=3, updates=1000)
    print(f"threads: {rate:.0f} updates/s", flush=True)
    return {"updates/s": round(rate, 1)}


def weights(root: Path) -> dict[str, Any]:
    """Whether one client's final weights are the same to the bit, whichever way."""
    in_process(root / "app", root / "alone-threads", clients=1, updates=10, **ALONE)
    alone, found = np.load(root / "alone-threads" / "weights.npy"), {}
    for way, (resident, _) in WAYS.items():
        folder = root / f"alone-{way}"
        on_flower(root / "app", folder, resident=resident, clients=1, updates=10, **ALONE)
        found[way] = bool(np.array_equal(np.load(folder / "weights.npy"), alone))
        said = "equal" if found[way] else "DIFFER from"
        print(f"one client, {way}: weights {said} those of threads", flush=True)
    return found


ALONE: dict[str, float] = {"concurrency": 1, "first-deadline": 600.0, "shortest-deadline": 600.0}
"""One task in flight, which no other takes the place of: the order of the updates is fixed."""
WAYS = {"process per task": (False, 1), "sojourn client": (True, 3)}
"""Whether clients stay between tasks, and how many times as many updates are made."""


def main() -> None:
    """All parts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=16, help="of a process per task, each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--parts", nargs="+", default=["rates", "threads", "weights"])
    parser.add_argument("--out", type=Path, help="where to write the figures")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_app(root / "app")
        if "rates" in given.parts:
            found["rates"] = rates(root, given.updates, given.turns)
        if "threads" in given.parts:
            found["threads"] = threads(root)
        if "weights" in given.parts:
            found["weights"] = weights(root)
    if given.out is not None:
        earlier = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.out.write_text(json.dumps({**earlier, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
