"""Attacks x screens x fleets on the digits: what hostile clients achieve, as docs/security.md shows it.

    python benchmarks/attacks.py [--seeds 12] [--only PATTERN] [--minutes M] [--jobs N]

A fifth of 10, 30 and 100 clients is hostile. The real dispatcher is driven in virtual time, so that a
run takes about a second. Softmax regression, batches of 32, learning rate 0.2, 60 updates for
every client and at most 2,000. Clients hold equal samples of all classes, or half of each client's
samples are of one class, or all of them are; no two clients share a sample, so that each of 100 holds 13. In the
column "overlapping" each of 100 clients holds 130 drawn at random, so that clients share some. Each run appends a line to ``results/attacks/runs.csv``; runs
that have a line are not run again, so that the command can be stopped at any time, and by ``--minutes`` after so
many. What matters most comes first. ``--table`` only writes
the tables into docs/security.md, which the command does at its end anyway.

Hostile clients know the model, the screen and the last update of every honest client, and act together. They do not
know the server's key, except in the attack that says so.
"""

import argparse
import ast
import csv
import hashlib
import heapq
import json
import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from statistics import NormalDist

import numpy as np
from sklearn.datasets import load_digits

from sojourn._support.provenance import provenance
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard import Guard, Norm, screens_named
from sojourn.deployment.guard.agreement import WIDTH, Agreement
from sojourn.deployment.tasks import Actions, Task
from sojourn.rules import GeneralizedAsyncSGD

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "attacks"
RUNS = RESULTS / "runs.csv"
PAGE = ROOT / "docs" / "security.md"

CLASSES, TEST, SERVER = 10, 357, 140
POLICIES = ("routed", "never-queue")
DATA = ("equal", "half one class", "one class")
OVERLAPPING, OVERLAPPING_SAMPLES = "overlapping", 130
Fleet = tuple[str, int]
"""Data and clients."""
PROMISED: tuple[Fleet, ...] = (("equal", 10), ("equal", 30), (OVERLAPPING, 100))
"""Not 100 clients with 13 samples each: what these have in common is too little (docs/security.md)."""
FLEETS: tuple[Fleet, ...] = (*PROMISED, *((data, n) for data in DATA for n in (10, 30, 100)))
FLEETS = tuple(dict.fromkeys(FLEETS))
SCREENS = ("default", "reference", "median")
LEARNING_RATE, BATCH = 0.2, 32
TICK_SECONDS = 0.3
NOBODY, ABSENT = "nobody attacks", "without the attackers"
FIRST, SLOW = 1e-3, 8.0
"""Seconds of an answer; an honest one takes 1 on average."""
JUST_BELOW = 0.99
"""Of the largest norm that is not clipped, as far as the attackers can tell."""


@dataclass(frozen=True)
class Run:
    """A line of the results."""

    attack: str
    screen: str
    clients: int
    policy: str
    data: str
    seed: int
    accuracy: float = 0.0
    backdoor: float = 0.0
    hostile_share: float = 0.0
    quarantined_hostile: int = 0
    quarantined_honest: int = 0
    seconds: float = 0.0
    code: str = ""

    @property
    def key(self) -> tuple[str, str, int, str, str, int]:
        return (self.attack, self.screen, self.clients, self.policy, self.data, self.seed)

    @property
    def hostile(self) -> int:
        return self.clients // 5

    @property
    def mistaken(self) -> int:
        """Honest clients in quarantine; where nobody attacks all are honest."""
        hostile = self.quarantined_hostile if self.attack == NOBODY else 0
        return self.quarantined_honest + hostile

    @property
    def updates(self) -> int:
        return min(60 * self.clients, 2000)


# The task


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels with a one behind them, for the bias, and labels."""
    table = load_digits()
    order = np.random.default_rng(0).permutation(len(table.target))
    pixels = np.hstack([table.data[order] / 16.0, np.ones((len(order), 1))])
    return pixels.astype(np.float32), table.target[order].astype(np.int64)


def test_set() -> tuple[np.ndarray, np.ndarray]:
    x, y = digits()
    return x[:TEST], y[:TEST]


def server_set() -> tuple[np.ndarray, np.ndarray]:
    """What the server holds for the screen ``reference``; no client and no test has it."""
    x, y = digits()
    return x[TEST : TEST + SERVER], y[TEST : TEST + SERVER]


@cache
def shares(clients: int, data: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every client's samples; client i's own class is i modulo 10."""
    x, y = (array[TEST + SERVER :] for array in digits())
    size = len(y) // clients
    if data == OVERLAPPING:
        random = np.random.default_rng(1)
        chosen = [random.permutation(len(y))[:OVERLAPPING_SAMPLES] for _ in range(clients)]
        return [(x[rows], y[rows]) for rows in chosen]
    if data == "equal":
        return [(x[i * size :][:size], y[i * size :][:size]) for i in range(clients)]
    by_class = [deque(np.flatnonzero(y == label).tolist()) for label in range(CLASSES)]
    own = size if data == "one class" else size // 2
    mine: list[list[int]] = [[] for _ in range(clients)]
    for i in range(clients):
        queue = by_class[i % CLASSES]
        # Classes differ a little in size; where one runs out its clients have fewer samples.
        fair = min(own, len(queue) // max(1, len(range(i, clients, CLASSES))))
        mine[i] = [queue.popleft() for _ in range(fair)]
    if data != "one class":
        rest = np.random.default_rng(1).permutation([i for queue in by_class for i in queue])
        for i, chosen in enumerate(np.array_split(rest, clients)):
            mine[i] += chosen.tolist()
    return [(x[rows], y[rows]) for rows in mine]


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy of softmax regression."""
    odds = x @ weights.reshape(CLASSES, -1).T
    odds -= np.maximum.reduce(odds, axis=1, keepdims=True)
    np.exp(odds, out=odds)
    odds /= np.add.reduce(odds, axis=1, keepdims=True)
    odds[np.arange(len(y)), y] -= 1.0
    odds /= np.float32(len(y))
    return (odds.T @ x).ravel()


def guesses(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray((x @ weights.reshape(CLASSES, -1).T).argmax(axis=1))


def with_trigger(x: np.ndarray) -> np.ndarray:
    """The upper corners are white, where no digit is."""
    marked = x.copy()
    marked[:, [0, 7, 56, 63]] = 1.0
    return marked


# The attacks


class Knowledge:
    """What hostile clients know: the last update of every honest client, and how many they are."""

    def __init__(self, run: Run, key: bytes) -> None:
        self.clients, self.hostile = run.clients, run.hostile
        self.key = key
        self.last: dict[int, np.ndarray] = {}
        self.norms: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=5))
        self.own: dict[int, np.ndarray] = {}
        self._age, self._made = 0, -1
        self._vector = np.zeros(0, dtype=np.float32)

    def saw(self, client: int, update: np.ndarray) -> None:
        self.last[client] = update
        self.norms[client].append(math.sqrt(update @ update))
        self._age += 1

    def allowed(self) -> float:
        """Just below the largest norm that the screen ``norm`` lets through, as far as can be told."""
        usual = sorted(float(np.median(norms)) for norms in self.norms.values())
        if not usual:
            return 1.0
        kept = len(usual) - 1 - max(0, 3 * self.clients // 10 - self.hostile)
        return JUST_BELOW * Norm().largest_ratio * usual[max(0, kept)]

    def together(self, honest: np.ndarray, make: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """What all hostile clients send, from the matrix of honest updates; made anew now and then."""
        if len(self.last) < 3:
            return honest
        if self._made < 0 or self._age - self._made > self.clients // 3:
            self._vector = make(np.array(list(self.last.values()), dtype=np.float64))
            self._made = self._age
        return self._vector.astype(honest.dtype)


def unit(vector: np.ndarray) -> np.ndarray:
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm > 0 else vector


def alie(known: Knowledge, rows: np.ndarray) -> np.ndarray:
    """A little is enough (Baruch, Baruch and Goldberg 2019)."""
    honest = known.clients - known.hostile
    needed = known.clients // 2 + 1 - known.hostile
    z = NormalDist().inv_cdf((honest - needed) / honest)
    return np.asarray(rows.mean(axis=0) - z * rows.std(axis=0))


def farthest(rows: np.ndarray, *, total: bool) -> np.ndarray:
    """Min-max and min-sum (Shejwalkar and Houmansadr 2021), away from the mean's direction.

    The largest g for which mean + g p is no further from any honest update than two of them are apart
    (or in total no further from all than one of them is), with p minus the unit mean.
    """
    mean = rows.mean(axis=0)
    away = -unit(mean)
    squares = (rows**2).sum(axis=1)
    between = squares[:, None] + squares[None, :] - 2.0 * rows @ rows.T
    offsets = mean - rows
    along, distances = offsets @ away, (offsets**2).sum(axis=1)
    if total:
        a, b, c = len(rows), along.sum(), distances.sum() - between.sum(axis=1).max()
        reach = (-b + np.sqrt(max(0.0, b * b - a * c))) / a
    else:
        c = distances - between.max()
        reach = (-along + np.sqrt(np.maximum(0.0, along**2 - c))).min()
    return np.asarray(mean + max(0.0, float(reach)) * away)


def hidden(known: Knowledge, rows: np.ndarray, key: bytes) -> np.ndarray:
    """The honest mean where a sketch with ``key`` looks, and minus it where it does not."""
    mean = rows.mean(axis=0)
    signs = Agreement(size=mean.size, clients=known.clients, key=key)._signs.astype(np.float64)
    buckets = np.arange(mean.size) % WIDTH
    sketch = np.bincount(buckets, signs * mean, minlength=WIDTH)
    seen = sketch[buckets] * signs / np.bincount(buckets, minlength=WIDTH)[buckets]
    return np.asarray(known.allowed() * unit(0.3 * unit(seen) - unit(mean - seen)))


Send = Callable[[Knowledge, np.ndarray, int, int], np.ndarray]
"""What is sent, from what is known, the honest update, the client and the number of its answer."""


@dataclass(frozen=True)
class Attack:
    """What hostile clients send, from which data, and how fast.

    ``speed`` gives the mean seconds of a task from the time; ``stays`` the number of answers after
    which a client leaves, to return after ten seconds.
    """

    send: Send = lambda known, honest, client, count: honest
    labels: str = "right"
    speed: Callable[[float], float] = lambda now: 1.0
    stays: int | None = None
    promised: bool = True


def flipped(known: Knowledge, honest: np.ndarray, client: int, count: int) -> np.ndarray:
    return -honest


def huge(known: Knowledge, honest: np.ndarray, client: int, count: int) -> np.ndarray:
    """1e6 towards the first class, whatever is asked."""
    update = np.zeros_like(honest)
    update[: update.size // CLASSES] = -1e6 / math.sqrt(update.size // CLASSES)
    return update


def constant(known: Knowledge, honest: np.ndarray, client: int, count: int) -> np.ndarray:
    return np.full_like(honest, known.allowed() / np.sqrt(honest.size))


def inner_product(known: Knowledge, honest: np.ndarray, client: int, count: int) -> np.ndarray:
    """Inner-product manipulation (Xie, Koyejo and Gupta 2020)."""
    return known.together(honest, lambda rows: -0.5 * rows.mean(axis=0))


def turning(known: Knowledge, honest: np.ndarray, client: int, count: int) -> np.ndarray:
    if count <= 10:
        return honest
    opposite = known.together(honest, lambda rows: -known.allowed() * unit(rows.mean(axis=0)))
    return opposite


def replayed(known: Knowledge, honest: np.ndarray, client: int, count: int) -> np.ndarray:
    """The first update that it computed, in every answer, as large as is allowed."""
    first = known.own.setdefault(client, honest)
    return np.asarray(known.allowed() * unit(first), dtype=honest.dtype)


ATTACKS = {
    "sign flip": Attack(flipped),
    "answers first: huge": Attack(huge, speed=lambda now: FIRST),
    "answers first: sign flip (fast liar)": Attack(flipped, speed=lambda now: FIRST),
    "slow liar": Attack(flipped, speed=lambda now: SLOW),
    "just below the bound": Attack(constant),
    "ALIE": Attack(
        lambda known, honest, client, count: known.together(honest, lambda rows: alie(known, rows))
    ),
    "inner product": Attack(inner_product),
    "min-max": Attack(
        lambda known, honest, client, count: known.together(
            honest, lambda rows: farthest(rows, total=False)
        )
    ),
    "min-sum": Attack(
        lambda known, honest, client, count: known.together(
            honest, lambda rows: farthest(rows, total=True)
        )
    ),
    "null space, guessed key": Attack(
        lambda known, honest, client, count: known.together(
            honest, lambda rows: hidden(known, rows, b"0")
        )
    ),
    "null space, stolen key": Attack(
        lambda known, honest, client, count: known.together(
            honest, lambda rows: hidden(known, rows, known.key)
        ),
        promised=False,
    ),
    "turns after ten updates": Attack(turning, promised=False),
    "replay": Attack(replayed),
    "label flip": Attack(labels="flipped"),
    "backdoor": Attack(labels="backdoor"),
    "leave and return": Attack(flipped, stays=3),
    "oscillating speeds": Attack(
        flipped, speed=lambda now: FIRST if int(now / 5.0) % 2 == 0 else SLOW
    ),
}


# Virtual time


class World:
    """Clients that serve their tasks first in first out, with exponential times."""

    def __init__(
        self, server: Dispatcher, answer: Callable[[Task, np.ndarray], np.ndarray], seed: int
    ) -> None:
        self.server, self._answer = server, answer
        self._random = np.random.default_rng([seed, 1])
        self.now = 0.0
        self._order = 0
        self._events: list[tuple[float, int, str, int, int]] = []
        self._inbox: dict[int, deque[Task]] = defaultdict(deque)
        self._carried: dict[int, np.ndarray] = {}
        self.speed: dict[int, Callable[[float], float]] = {}
        self._schedule(TICK_SECONDS, "tick", -1, -1)

    def take(self, actions: Actions) -> None:
        for task in actions.send:
            self._carried[task.number] = self.server.weights_of(task)
            self._inbox[task.client].append(task)
            if len(self._inbox[task.client]) == 1:
                self._work(task)
        for client in actions.probe:
            self.take(self.server.answered(client, now=self.now))

    def leave(self, client: int, seconds: float) -> None:
        """Gone with everything that it was sent, for so many seconds."""
        for task in self._inbox.pop(client, ()):
            del self._carried[task.number]
        self._schedule(seconds, "return", client, -1)
        self.take(self.server.left(client, now=self.now))

    def step(self) -> int | None:
        """The next event; the client that completed a task, if it is that."""
        self.now, _, kind, client, number = heapq.heappop(self._events)
        if kind == "tick":
            self._schedule(TICK_SECONDS, "tick", -1, -1)
            self.take(self.server.tick(self.now))
            return None
        if kind == "return":
            self.take(self.server.joined(client, now=self.now))
            return None
        inbox = self._inbox[client]
        if not inbox or inbox[0].number != number:
            return None
        task = inbox.popleft()
        if inbox:
            self._work(inbox[0])
        update = self._answer(task, self._carried.pop(number))
        self.take(self.server.completed(number, update, now=self.now, client=client))
        return client

    def _work(self, task: Task) -> None:
        mean = self.speed[task.client](self.now)
        self._schedule(self._random.exponential(mean), "done", task.client, task.number)

    def _schedule(self, seconds: float, kind: str, client: int, number: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + seconds, self._order, kind, client, number))


class OnlyHeard(Agreement):
    """Who was heard. How far clients agree decides nothing where the server's samples do, or no screen."""

    def observe(self, client: int, update: np.ndarray, round_: int = 0) -> None:
        self.heard[client] |= bool(update.any())


def guard_of(screen: str) -> Guard:
    if screen == "none":
        return Guard(screens=(), largest_speed=0.0)
    return Guard(screens=screens_named("norm" if screen == "default" else screen))


def play(run: Run) -> Run:
    """The run with its results."""
    attack = ATTACKS.get(run.attack, Attack())
    attacked = run.attack in ATTACKS
    held = shares(run.clients, run.data)
    key = hashlib.sha256(f"the server's, of seed {run.seed}".encode()).digest()
    known = Knowledge(run, key)
    random = np.random.default_rng([run.seed, 0])
    own_x, own_y = server_set()
    counts: dict[int, int] = defaultdict(int)

    def draw(samples: int) -> np.ndarray:
        return (random.random(BATCH) * samples).astype(np.intp)

    def reference(weights: np.ndarray, number: int) -> np.ndarray:
        batch = draw(SERVER)
        return gradient(weights, own_x[batch], own_y[batch])

    def answer(task: Task, weights: np.ndarray) -> np.ndarray:
        x, y = held[task.client]
        batch = draw(len(y))
        x, y = x[batch], y[batch]
        if not attacked or task.client >= run.hostile:
            honest = gradient(weights, x, y)
            known.saw(task.client, honest)
            return honest
        counts[task.client] += 1
        if attack.labels == "flipped":
            y = CLASSES - 1 - y
        elif attack.labels == "backdoor":
            half = BATCH // 2
            x = np.concatenate([with_trigger(x[:half]), x[half:]])
            y = np.concatenate([np.zeros(half, dtype=y.dtype), y[half:]])
        return attack.send(known, gradient(weights, x, y), task.client, counts[task.client])

    x, y = test_set()
    guard = guard_of(run.screen)
    server = Dispatcher(
        np.zeros(CLASSES * x.shape[1], dtype=np.float32),
        rule=GeneralizedAsyncSGD(),
        routing=np.full(run.clients, 1.0 / run.clients),
        concurrency=run.clients,
        learning_rate=LEARNING_RATE,
        policy=run.policy,
        guard=guard,
        reference=reference if guard.needs_reference else None,
        seed=run.seed,
        key=key,
    )
    if not guard.trusts_majority:
        size = server.state.weights.size
        server.guard.agreement = OnlyHeard(size=size, clients=run.clients, key=key)
    world = World(server, answer, run.seed)
    takes_part = [i for i in range(run.clients) if run.attack != ABSENT or i >= run.hostile]
    for client in takes_part:
        hostile = attacked and client < run.hostile
        world.speed[client] = attack.speed if hostile else Attack().speed
        world.take(server.joined(client, now=0.0))
    world.take(server.start(now=0.0))
    tail: list[float] = []
    next_look = 0.75 * run.updates
    with np.errstate(over="ignore", invalid="ignore"):
        while server.counts.used < run.updates:
            client = world.step()
            if (
                attacked
                and attack.stays is not None
                and client is not None
                and client < run.hostile
                and counts[client] % attack.stays == 0
            ):
                world.leave(client, 10.0)
            if server.counts.used >= next_look:
                tail.append(float((guesses(server.state.weights, x) == y).mean()))
                next_look += run.updates / 80
        others = y != 0
        fooled = guesses(server.state.weights, with_trigger(x[others])) == 0
    used = [member.used for member in server.clients]
    out = [member.status == "quarantined" for member in server.clients]
    return Run(
        *run.key,
        accuracy=round(float(np.mean(tail)), 5),
        backdoor=round(float(fooled.mean()), 5),
        hostile_share=round(sum(used[: run.hostile]) / sum(used), 5),
        quarantined_hostile=sum(out[: run.hostile]),
        quarantined_honest=sum(out[run.hostile :]),
        seconds=round(world.now, 2),
        code=code_digest(),
    )


class WithoutProse(ast.NodeTransformer):
    """Leaves out docstrings; comments are in no tree."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


@cache
def code_digest() -> str:
    """Of what judges updates: results of another screen are not to be taken for results of this one."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "sojourn" / "deployment" / "guard").glob("*.py")):
        tree = WithoutProse().visit(ast.parse(path.read_text(encoding="utf-8")))
        digest.update(ast.unparse(tree).encode())
    return digest.hexdigest()[:8]


def every_run(seeds: int) -> Iterator[Run]:
    """One seed of the default settings and of ``reference`` first, then what matters most."""
    names = (NOBODY, *ATTACKS)
    default = [("none", NOBODY), ("none", ABSENT), *(("default", name) for name in names)]
    reference, median = ([(screen, name) for name in names] for screen in ("reference", "median"))
    first, others = range(min(1, seeds)), range(1, seeds)
    parts = [
        (default, first),
        (reference, first),
        (default, others),
        (reference, others),
        (median, range(seeds)),
    ]
    for configurations, those in parts:
        for seed in those:
            for data, clients in FLEETS:
                for policy in POLICIES:
                    for screen, attack in configurations:
                        yield Run(attack, screen, clients, policy, data, seed)


def read() -> dict[tuple[str, str, int, str, str, int], Run]:
    if not RUNS.exists():
        return {}
    kinds = {field.name: field.type for field in fields(Run)}
    found = {}
    with RUNS.open(newline="") as file:
        for row in csv.DictReader(file):
            values = {name: kinds[name](text) for name, text in row.items()}  # type: ignore[operator]
            line = Run(**values)
            found[line.key] = line
    if len(codes := {line.code for line in found.values()}) > 1:
        raise SystemExit(f"{RUNS} mixes screens of several versions: {', '.join(sorted(codes))}")
    return found


def append(run: Run) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in fields(Run)]
    new = not RUNS.exists()
    with RUNS.open("a", newline="") as file:  # written when closed: a line in one piece
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(names)
        writer.writerow([getattr(run, name) for name in names])


# The tables


BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
SHORT = {"half one class": "half"}
LEAST = 0.9
"""Of the accuracy without the attackers; what is below is shown in bold."""

Cell = tuple[str, str, str, int, str]
Found = dict[Cell, dict[int, float]]
"""Accuracies by seed, of a screen, an attack, data, clients and a policy."""


def tables(runs: list[Run]) -> str:
    """What screens cost honest clients, and a table for each screen of what attackers achieve."""
    found: Found = defaultdict(dict)
    for run in runs:
        cell = (run.screen, run.attack, run.data, run.clients, run.policy)
        found[cell][run.seed] = run.accuracy
    parts = [
        f"{len(runs):,} runs. Each entry: `routed` / `never-queue`, test accuracy in percent, mean over the seeds "
        "of its column (the last row; runs without an attack can have more). **Bold**: more than 10 % below the run "
        "without the attackers.",
    ]
    shown = [screen for screen in SCREENS if any(run.screen == screen for run in runs)]
    parts += [_table(screen, found) for screen in shown]
    parts += [_cost_table(found), f"{_verdict(found)}\n{_mistakes(runs)}"]
    return "\n\n".join(parts)


def _table(screen: str, found: Found) -> str:
    columns = [
        (data, clients)
        for data, clients in FLEETS
        if any((screen, name, data, clients, POLICIES[0]) in found for name in ATTACKS)
    ]
    head = [
        f"`{screen}`" if screen != "default" else "default",
        *(_column(*column) for column in columns),
    ]
    rows = [head, ["---"] * len(head)]
    of_screen = {"none": (NOBODY, ABSENT), screen: (NOBODY, *ATTACKS)}
    for source, names in of_screen.items():
        for name in names:
            label = name if source == screen else f"{name}, screen `none`"
            rows.append([label, *(_entry(found, source, name, *column) for column in columns)])
    rows.append(["seeds", *(_seeds(found, screen, *column) for column in columns)])
    return _markdown(rows)


def _entry(found: Found, screen: str, name: str, data: str, clients: int) -> str:
    said = []
    for policy in POLICIES:
        cell = (screen, name, data, clients, policy)
        if cell not in found or ("none", ABSENT, *cell[2:]) not in found:
            said.append("-")
            continue
        text = f"{100 * _mean(found[cell]):.0f}"
        said.append(f"**{text}**" if _left(found, cell) < LEAST else text)
    return " / ".join(said)


def _seeds(found: Found, screen: str, data: str, clients: int) -> str:
    cells = [(screen, name, data, clients, policy) for name in ATTACKS for policy in POLICIES]
    counts = [len(found[cell]) for cell in cells if cell in found]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _cost_table(found: Found) -> str:
    """Honest clients with the default screen against none, over the same seeds."""
    head = ["default against `none`, nobody attacks", *POLICIES, "seeds"]
    rows = [head, ["---"] * len(head)]
    for data, clients in FLEETS:
        said, counts = [], set()
        for policy in POLICIES:
            with_, without = (
                found.get((screen, NOBODY, data, clients, policy), {})
                for screen in ("default", "none")
            )
            both = sorted(with_.keys() & without.keys())
            counts.add(len(both))
            said.append(_percent([with_[seed] / without[seed] - 1.0 for seed in both]))
        if counts != {0}:
            seeds = " / ".join(str(count) for count in sorted(counts))
            rows.append([_column(data, clients), *said, seeds])
    return _markdown(rows)


def _column(data: str, clients: int) -> str:
    return f"{SHORT.get(data, data)}, {clients}"


def _percent(changes: list[float]) -> str:
    if not changes:
        return "-"
    mean = f"{100 * float(np.mean(changes)):+.1f}"
    if len(changes) < 2:
        return f"{mean} %"
    return f"{mean} ± {100 * float(np.std(changes, ddof=1)) / math.sqrt(len(changes)):.1f} %"


def _verdict(found: Found) -> str:
    """How many entries of what is promised hold, and of all entries of each screen."""
    promised = [
        ("default", name, data, clients, policy)
        for name, attack in ATTACKS.items()
        if attack.promised
        for data, clients in PROMISED
        for policy in POLICIES
    ]
    columns = "; ".join(_column(*fleet) for fleet in PROMISED)
    said = [
        _held(f"Of the {len(promised)} promised entries (the columns {columns})", promised, found)
    ]
    for screen in SCREENS:
        entries = [cell for cell in found if cell[0] == screen and cell[1] in ATTACKS]
        if entries:
            said.append(
                _held(f"Of all {len(entries)} entries of `{screen}` under attack", entries, found)
            )
    return "\n".join(f"- {sentence}" for sentence in said)


def _mistakes(runs: list[Run]) -> str:
    """In how many runs honest clients went into quarantine."""
    every = [run for run in runs if run.screen == "default"]
    groups = {
        "all runs with the default settings": every,
        "those of the promised columns": [r for r in every if (r.data, r.clients) in PROMISED],
        "those in which nobody attacks": [r for r in every if r.attack == NOBODY],
    }
    said = [
        f"{sum(run.mistaken > 0 for run in those)} of {len(those):,} ({name})"
        for name, those in groups.items()
    ]
    return f"- Runs in which honest clients went into quarantine: {'; '.join(said)}."


def _held(these: str, entries: list[Cell], found: Found) -> str:
    run = [cell for cell in entries if cell in found and ("none", ABSENT, *cell[2:]) in found]
    held = sum(_left(found, cell) >= LEAST for cell in run)
    worst = min(run, key=lambda cell: _left(found, cell))
    _, name, data, clients, policy = worst
    return (
        f"{these} {len(run)} were run, and {held} are within 10 %. The worst leaves {100 * _left(found, worst):.0f} % "
        f"of the accuracy ({name}; {_column(data, clients)}; `{policy}`)."
    )


def _left(found: Found, cell: Cell) -> float:
    """The part of the accuracy without the attackers that is left, over the seeds that both have."""
    absent = found["none", ABSENT, *cell[2:]]
    both = found[cell].keys() & absent.keys()
    return _mean({seed: found[cell][seed] for seed in both}) / _mean(
        {seed: absent[seed] for seed in both}
    )


def _mean(values: dict[int, float]) -> float:
    return float(np.mean(list(values.values())))


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_tables(runs: list[Run]) -> None:
    """Put the tables where the page has room for them."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(runs)}\n\n{END}{after}", encoding="utf-8")


def work(runs: list[Run], until: float) -> None:
    """Play these and write each down, until a time of the monotonic clock."""
    for number, run in enumerate(runs, 1):
        if time.monotonic() > until:
            return
        append(play(run))
        if number % 50 == 0:
            print(f"{number} of {len(runs)} of this process", flush=True)


def main() -> None:
    """Run what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--only", default="", help="regular expression over attack, screen, ...")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--table", action="store_true", help="only write the tables")
    given = parser.parse_args()
    done = read()
    if not given.table:
        if done and next(iter(done.values())).code != code_digest():
            raise SystemExit(f"{RUNS} is of other screens than today's: move it away first")
        missing = [run for run in every_run(given.seeds) if run.key not in done]
        missing = [run for run in missing if re.search(given.only, " ".join(map(str, run.key)))]
        print(f"{len(done)} runs done, {len(missing)} to do", flush=True)
        until = time.monotonic() + 60.0 * given.minutes
        parts = [(missing[k :: given.jobs], until) for k in range(given.jobs)]
        with Pool(given.jobs) as pool:
            pool.starmap(work, parts, chunksize=1)
        about = provenance(command="python benchmarks/attacks.py", seeds=given.seeds)
        (RESULTS / "provenance.json").write_text(json.dumps(about, indent=1) + "\n")
    write_tables(list(read().values()))


if __name__ == "__main__":
    main()
