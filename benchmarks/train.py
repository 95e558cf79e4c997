"""Training in virtual time: ``python benchmarks/train.py [--quick] [--no-flower] [--only SECTION ...]``.

What the replay costs beside the bare loop of the same gradients, also for a ResNet-18 with batch
normalisation, for datasets with transforms, and for a million weights with 1,000 tasks in flight; what
computing independent gradients together gains, and learning rates of one schedule, what evaluation
takes, and the same digits work in Flower's simulation and in another tree of Sojourn (``--before SRC``).
One thread each. The two sides of a ratio take turns, and the ratio is the median over the turns, of
processor time, so that other work on the machine counts as little as it can.
Exit code 1 if a claim fails.
"""

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from peers import HERE, PeerFailed, environment, machine
from torch import nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters
from torch.utils.data import Dataset, default_collate

import sojourn as sj
from sojourn.rules import Arrival, AsyncSGD, GeneralizedAsyncSGD, ServerState
from sojourn.rules.weighting import task_ordinals
from sojourn.strategy import Strategy
from sojourn.training import Problem
from sojourn.training.data.sets import load_dataset
from sojourn.training.experiment.models import build_model
from sojourn.training.experiment.size import run_size
from sojourn.training.problem.gradients import stacks_well
from sojourn.training.problem.samples import TensorSamples
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack

FLOWER = ("flwr[simulation]==1.41.0", "torch==2.13.0", "numpy")
CLIENTS, CONCURRENCY = 20, 100
TIMEOUT = 300.0

SHAPES = {"8x8": (1, 8, 8), "28x28": (1, 28, 28), "32x32": (3, 32, 32)}
PROBLEMS = {
    ("8x8", "linear"): (32, 3000),
    ("8x8", "mlp"): (32, 3000),
    ("28x28", "linear"): (128, 1500),
    ("28x28", "mlp"): (128, 1000),
    ("28x28", "cnn"): (32, 150),
    ("32x32", "linear"): (128, 1500),
    ("32x32", "mlp"): (128, 600),
    ("32x32", "cnn"): (32, 60),
}
"""Batch size and rounds for every shape of image and built-in model."""

Verdict = tuple[bool | None, str]


def schedule_of(rounds: int) -> sj.Schedule:
    fleet = sj.built_in_fleet("twenty")
    network = sj.Network(fleet, sj.uniform_routing(fleet), CONCURRENCY)
    return sj.simulate(network, rounds=rounds, seed=1)


def busy_schedule(rounds: int) -> sj.Schedule:
    """Three clusters, everybody busy with one task: what `sojourn tune` replays most."""
    fleet = sj.Fleet([0.01, 0.1, 1.0], counts=[6, 7, 7])
    network = sj.Network(fleet, sj.uniform_routing(fleet), CLIENTS)
    return sj.simulate(network, rounds=rounds, policy="never-queue", seed=1)


def problem_of(
    shape: tuple[int, ...], model: str, batch_size: int, *, test_size: int = 1
) -> Problem:
    """A built-in model on random images; what they show does not change what they cost."""
    generator = torch.Generator().manual_seed(1)
    sizes = [2 * batch_size] * CLIENTS
    x = torch.randn(sum(sizes), *shape, generator=generator)
    y = torch.randint(10, (sum(sizes),), generator=generator)
    test = torch.randn(test_size, *shape, generator=generator), y[:1].repeat(test_size)
    sets = list(zip(torch.split(x, sizes), torch.split(y, sizes), strict=True))
    built = build_model(model, shape=shape, classes=10, generator=generator)
    return Problem(built, sets, test, batch_size=batch_size)


def digits_problem() -> Problem:
    """The digits, dealt out to the clients; a perceptron of 64-32-10, batches of 32."""
    data = load_dataset("digits")
    size = len(data.train[1]) // CLIENTS
    x, y = data.train[0][: size * CLIENTS], data.train[1][: size * CLIENTS]
    sets = list(zip(torch.split(x, size), torch.split(y, size), strict=True))
    generator = torch.Generator().manual_seed(1)
    model = build_model("mlp(32)", shape=tuple(x.shape[1:]), classes=10, generator=generator)
    return Problem(model, sets, data.test, batch_size=32)


@dataclass(frozen=True)
class Recording(GeneralizedAsyncSGD):
    """Keeps the weights that every task was sent with."""

    versions: list[torch.Tensor] = field(default_factory=list)

    def apply(
        self, state: ServerState, arrival: Arrival, **options: Any
    ) -> tuple[ServerState, bool]:
        self.versions.append(torch.from_numpy(arrival.sent))
        return super().apply(state, arrival, **options)


def replay(
    problem: Problem,
    schedule: sj.Schedule,
    batched: bool | None,
    rule: sj.rules.Rule | None = None,
    learning_rate: float = 0.001,
) -> sj.History:
    """Train without evaluation, but for the first row and the last."""
    return sj.replay(
        schedule,
        problem,
        rule or GeneralizedAsyncSGD(),
        learning_rate=learning_rate,
        seed=1,
        batched=batched,
        evaluate_every=schedule.rounds,
    )


def bare_loop(problem: Problem, schedule: sj.Schedule) -> Callable[[], None]:
    """The same gradients, each at the weights its task was sent with, and nothing else.

    Weights and batches are known beforehand: no rule, no new versions, no draws. The parameters are
    views of one vector, so that one copy puts the weights in place.
    """
    recording = Recording()
    replay(problem, schedule, False, recording)
    model = problem.trained_model(problem.initial_weights()).train()
    parameters = list(model.parameters())
    flat = problem.initial_weights()
    vector_to_parameters(flat, parameters)
    batches = problem.batches(1)
    x = torch.cat([x for x, _ in problem.train_sets])
    y = torch.cat([y for _, y in problem.train_sets])
    counts = [0] * CLIENTS
    chosen = []
    for client in schedule.client.tolist():
        chosen.append(batches.indices(client, counts[client]))
        counts[client] += 1

    def loop() -> None:
        for indices, sent in zip(chosen, recording.versions, strict=True):
            flat.copy_(sent)
            loss = problem.loss(model(x.index_select(0, indices)), y.index_select(0, indices))
            torch.autograd.grad(loss, parameters)

    return loop


def in_turns(first: Callable[[], object], second: Callable[[], object], turns: int) -> float:
    """Median over the turns of the time of ``second`` divided by that of ``first``."""
    ratios = []
    first(), second()
    for _ in range(turns):
        seconds = []
        for function in (first, second):
            begin = time.process_time()
            function()
            seconds.append(time.process_time() - begin)
        ratios.append(seconds[1] / seconds[0])
    return median(ratios)


def overhead(turns: int) -> Iterator[Verdict]:
    """Many short turns: the speed of a shared machine changes from second to second.

    Batches are drawn 32 at a time for a client; 600 rounds use nearly all that 20 clients draw.
    """
    for shape, model, batch_size, rounds in (
        ("8x8", "mlp(32)", 32, 600),
        ("28x28", "mlp", 128, 600),
        ("28x28", "cnn", 32, 10),
    ):
        problem, schedule = problem_of(SHAPES[shape], model, batch_size), schedule_of(rounds)
        ratio = in_turns(
            bare_loop(problem, schedule),
            lambda p=problem, s=schedule: replay(p, s, False),
            3 * turns,
        )
        yield (
            ratio <= 1.10,
            f"{shape} {model}: replay at most 1.10 times the bare loop ({ratio:.3f})",
        )


def batching(turns: int, *, quick: bool) -> Iterator[Verdict]:
    problem, schedule = digits_problem(), schedule_of(3000)
    ratio = 1 / in_turns(
        lambda: replay(problem, schedule, False), lambda: replay(problem, schedule, True), turns
    )
    yield ratio >= 2, f"digits perceptron: batched at least twice as fast as plain ({ratio:.1f})"
    for (shape, model), (batch_size, rounds) in PROBLEMS.items():
        claim = f"{shape} {model}: choosing by measurement at most 1.05 times the plain loop"
        if quick and model == "cnn":
            yield None, claim
            continue
        problem, schedule = problem_of(SHAPES[shape], model, batch_size), schedule_of(rounds)
        choices = []

        def choosing(
            problem: Problem = problem,
            schedule: sj.Schedule = schedule,
            choices: list[bool] = choices,
        ) -> None:
            choices.append(replay(problem, schedule, None).provenance["inputs"]["batched"])

        def plainly(problem: Problem = problem, schedule: sj.Schedule = schedule) -> None:
            replay(problem, schedule, False)

        slower = in_turns(plainly, choosing, turns)
        chosen = f"{sum(choices)} of {len(choices)} times batched"
        if slower > 1.05:
            chosen += f"; the plain loop against itself {in_turns(plainly, plainly, turns):.3f}"
        yield slower <= 1.05, f"{claim} ({slower:.3f}, {chosen})"


def lockstep(turns: int, *, quick: bool) -> Iterator[Verdict]:
    """Eight learning rates of one schedule computed together, beside one after the other."""
    rates = [1e-3 * 2.0**-k for k in range(8)]
    wanted = {("8x8", "mlp"): 3.0, ("28x28", "mlp"): 1.3}
    for (shape, model), (batch_size, rounds) in PROBLEMS.items():
        least = wanted.get((shape, model), 1 / 1.05)
        claim = f"{shape} {model}: eight rates together at least {least:.2f} times as fast"
        if quick and model == "cnn":
            yield None, claim
            continue
        problem = digits_problem() if shape == "8x8" else None
        problem = problem or problem_of(SHAPES[shape], model, batch_size)
        schedule = busy_schedule(max(40, rounds // 4))

        def members(
            problem: Problem = problem, schedule: sj.Schedule = schedule
        ) -> tuple[list[Replay], bool]:
            runs = [
                Replay(
                    schedule,
                    problem,
                    AsyncSGD(),
                    learning_rate=rate,
                    seed=1,
                    evaluate_every=schedule.rounds,
                )
                for rate in rates
            ]
            return runs, stacks_well(problem)

        def together(members: Callable = members) -> None:
            runs, stacked = members()
            Stack(runs).run([run.beginning(stacked) for run in runs], batched=stacked)

        def one_by_one(problem: Problem = problem, schedule: sj.Schedule = schedule) -> None:
            for rate in rates:
                replay(problem, schedule, None, AsyncSGD(), rate)

        ratio = 1 / in_turns(one_by_one, together, turns)
        yield ratio >= least, f"{claim} ({ratio:.2f})"


def evaluation() -> Iterator[Verdict]:
    """The time inside ``Problem.measures`` when nothing is said about it."""
    large = problem_of(SHAPES["28x28"], "mlp", 128, test_size=10_000)
    for name, problem, rounds in (
        ("digits perceptron", digits_problem(), 3000),
        ("28x28 mlp, 10,000 test images", large, 3000),
    ):
        spent = []
        measures = problem.measures

        def timed(
            weights: object, measures: Callable = measures, spent: list[float] = spent
        ) -> object:
            begin = time.perf_counter()
            result = measures(weights)
            spent.append(time.perf_counter() - begin)
            return result

        problem.measures = timed
        begin = time.perf_counter()
        sj.replay(schedule_of(rounds), problem, GeneralizedAsyncSGD(), learning_rate=0.01, seed=1)
        share = sum(spent) / (time.perf_counter() - begin)
        yield (
            share <= 0.1,
            f"{name}: evaluation at most 10 % of the time ({share:.1%}, {len(spent)} rows)",
        )


def flower(updates: int) -> Iterator[Verdict]:
    """Tasks a second of the digits work, beside Flower's simulation."""
    problem, schedule = digits_problem(), schedule_of(3000)
    claim = "digits work: at least 10 times as many tasks a second as Flower's simulation"

    def rate(batched: bool | None) -> float:
        begin = time.perf_counter()
        replay(problem, schedule, batched)
        return schedule.rounds / (time.perf_counter() - begin)

    rate(None)
    before = rate(None), rate(False)
    try:
        theirs = flower_rate(problem, updates)
    except (PeerFailed, subprocess.SubprocessError, OSError) as failure:
        yield None, f"{claim}: it could not be run ({failure})"
        return
    ours, plain = (median(pair) for pair in zip(before, (rate(None), rate(False)), strict=True))
    yield (
        ours >= 10 * theirs,
        f"{claim} ({ours:,.0f} against {theirs:,.0f}: {ours / theirs:.0f} times; "
        f"one by one {plain:,.0f}: {plain / theirs:.0f} times)",
    )


def flower_rate(problem: Problem, updates: int) -> float:
    """Updates a second in Flower's own environment, where only the loopback interface exists."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        raise PeerFailed("it needs unshare and ip: Ray must not see a network")
    python = environment(*FLOWER)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "digits.npz"
        x = torch.cat([x for x, _ in problem.train_sets]).flatten(1).numpy()
        np.savez(data, x=x, y=torch.cat([y for _, y in problem.train_sets]).numpy())
        code = f"import train_flower; train_flower.main({str(data)!r}, {updates})"
        alone = (
            ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
        )
        done = subprocess.run(
            [*alone, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", python, "-c", code],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            cwd=folder,
            env={
                **os.environ,
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "FLWR_HOME": folder,
                "RAY_USAGE_STATS_ENABLED": "0",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(HERE),
            },
        )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not lines[-1].startswith('{"updates"'):
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        raise PeerFailed(said[-1])
    outcome = json.loads(lines[-1])
    return outcome["updates"] / outcome["seconds"]


class Block(nn.Module):
    """Two convolutions with batch normalisation beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 32 x 32: 11 million weights, its first layer without a stride."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def plain_loop(
    problem: Problem, schedule: sj.Schedule, first: int, model: nn.Module | None = None
) -> Callable[[int], None]:
    """The forward and backward passes of a plain PyTorch loop over the batches of tasks from ``first`` on.

    Batches are drawn and fetched as the tasks' are, whose order they have; nothing forks generators, no
    weights are put into the model, and no step is taken.
    """
    if model is None:
        model = problem.trained_model(problem.initial_weights()).train()
    samples, batches, clients = problem.samples, problem.batches(1), schedule.client.tolist()
    tasks = zip(clients, task_ordinals(np.asarray(clients)).tolist(), strict=True)
    left = itertools.islice(tasks, first, None)

    def fetch(client: int, chosen: torch.Tensor) -> Any:
        if isinstance(samples, TensorSamples):
            return samples.x[chosen], samples.y[chosen]
        dataset = samples.dataset(client)
        return default_collate([dataset[place] for place in chosen.tolist()])

    def loop(count: int) -> None:
        for client, ordinal in itertools.islice(left, count):
            x, y = fetch(client, batches.indices(client, ordinal))
            model.zero_grad()
            problem.loss(model(x), y).backward()

    return loop


def versions_loop(
    problem: Problem, schedule: sj.Schedule, first: int, versions: int, learning_rate: float
) -> Callable[[int], None]:
    """The same with a step after each gradient, which is taken at a version of ``versions`` tasks ago.

    This is the least that a loop by hand must do for so many tasks in flight.
    """
    server = problem.initial_weights()
    model = problem.trained_model(server).train()
    parameters = list(model.parameters())
    held = deque(server.clone() for _ in range(versions))
    bare = plain_loop(problem, schedule, first, model)

    def loop(count: int) -> None:
        nonlocal server
        for _ in range(count):
            vector_to_parameters(held.popleft(), parameters)
            bare(1)
            gradients = [p.grad for p in parameters if p.grad is not None]
            server = server - learning_rate * torch.cat([g.reshape(-1) for g in gradients])
            held.append(server)

    return loop


WINDOW = 20
"""Tasks of a run in a turn. To go on with a run takes 0.15 ms once, which is in the turn's time."""


def windows(
    run: Replay, *loops: Callable[[int], None], first: int, window: int, turns: int
) -> list[list[float]]:
    """Processor seconds per task of loops and, last, of a run, ``window`` tasks of each in turn.

    The run goes on from turn to turn, after its ``first`` tasks, so that nothing is begun anew.
    """
    stack, position = Stack([run]), run.beginning(False)
    stack.run([position], until=first, batched=False)

    def replayed(count: int) -> None:
        stack.run([position], until=position.round + count, batched=False)

    for loop in loops:
        loop(1)
    seconds: list[list[float]] = [[] for _ in (*loops, run)]
    for _ in range(turns):
        for loop, found in zip((*loops, replayed), seconds, strict=True):
            begin = time.process_time()
            loop(window)
            found.append((time.process_time() - begin) / window)
    return seconds


def compared(alone: Sequence[float], within: Sequence[float]) -> tuple[float, str]:
    """The ratio of the best windows, and what else is worth knowing."""
    ratio = min(within) / min(alone)
    each = median(b / a for a, b in zip(alone, within, strict=True))
    return ratio, (
        f"{ratio:.3f} of the best windows, {1e3 * min(within):.3g} against "
        f"{1e3 * min(alone):.3g} ms; median over the turns {each:.3f}"
    )


def resnet(turns: int) -> Iterator[Verdict]:
    """Plain steps, buffers averaged, batches of 32, ten tasks in flight."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64 * 10, 3, 32, 32, generator=generator)
    y = torch.randint(10, (len(x),), generator=generator)
    sets = list(zip(torch.split(x, 64), torch.split(y, 64), strict=True))
    problem = Problem(resnet18(), sets, (x[:2], y[:2]), batch_size=32)
    window, first = 1, 1
    schedule = ten_clients(first + window * turns)
    bare = plain_loop(problem, schedule, first - 1)  # One task is tried before the windows.
    run = Replay(
        schedule, problem, AsyncSGD(), learning_rate=1e-3, seed=1, evaluate_every=schedule.rounds
    )
    ratio, words = compared(*windows(run, bare, first=first, window=window, turns=turns))
    claim = "ResNet-18 with BatchNorm, 32x32: a task at most 1.10 times the bare passes"
    yield ratio <= 1.10, f"{claim} ({words})"


def ten_clients(rounds: int) -> sj.Schedule:
    fleet = sj.Fleet([0.1, 1.0], counts=[5, 5])
    network = sj.Network(fleet, sj.uniform_routing(fleet), 10)
    return sj.simulate(network, rounds=rounds, policy="never-queue", seed=1)


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Images of 32 x 32 as bytes; each is cropped, mirrored, and scaled when it is asked for."""

    def __init__(self, seed: int, size: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randint(256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(10, (size,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        image = functional.pad(self.images[place].float(), (4, 4, 4, 4))
        top, left = torch.randint(9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if random.random() < 0.5:
            image = image.flip(2)
        return image / 255.0 - 0.5, self.labels[place]


def datasets(turns: int) -> Iterator[Verdict]:
    """A small convolutional network on a dataset whose transforms draw random numbers."""
    sets = [Pictures(client, 200) for client in range(10)]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 10)
    )
    problem = Problem(model, sets, Pictures(99, 10), batch_size=32)
    window, first = WINDOW, 20
    schedule = ten_clients(first + window * 3 * turns)
    bare = plain_loop(problem, schedule, first - 1)
    run = Replay(
        schedule, problem, AsyncSGD(), learning_rate=1e-3, seed=1, evaluate_every=schedule.rounds
    )
    found = windows(run, bare, first=first, window=window, turns=3 * turns)
    ratio, words = compared(*found)
    claim = "dataset with transforms: a task at most 1.10 times a bare loop over the same items"
    yield ratio <= 1.10, f"{claim} ({words})"


def million(turns: int, *, quick: bool) -> Iterator[Verdict]:
    """A perceptron of a million weights; each of 1,000 tasks in flight has a version of its own."""
    clients = 200 if quick else 1000
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32 * clients, 64, generator=generator)
    y = torch.randint(10, (len(x),), generator=generator)
    sets = list(zip(torch.split(x, 32), torch.split(y, 32), strict=True))
    layers = nn.Linear(64, 963), nn.ReLU(), nn.Linear(963, 963), nn.ReLU(), nn.Linear(963, 10)
    problem = Problem(nn.Sequential(*layers), sets, (x[:1], y[:1]), batch_size=32)
    window, first = WINDOW, clients + 20
    fleet = sj.Fleet(np.ones(clients))
    network = sj.Network(fleet, sj.uniform_routing(fleet), clients)
    schedule = sj.simulate(
        network,
        rounds=first + 3 * turns * window + clients,  # Tasks that never end hold no version.
        policy="never-queue",
        law="deterministic",
        seed=1,
    )

    def run() -> Replay:
        return Replay(
            schedule,
            problem,
            AsyncSGD(),
            learning_rate=1e-4,
            seed=1,
            evaluate_every=schedule.rounds,
        )

    bare = plain_loop(problem, schedule, first - 2)
    bare(1)
    strategy = Strategy(
        name="perceptron", network=network, scenario=schedule.scenario, rule=AsyncSGD()
    )
    said = run_size(problem, strategy, refine=False, client_bytes=0).total
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    each = {"first": first, "window": window, "turns": 3 * turns}
    ratio, words = compared(*windows(run(), bare, **each))
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    size = f"a million weights, {clients:,} tasks in flight"
    yield 1 / ratio >= 0.8, f"{size}: tasks at 80 % of the bare gradient's speed ({words})"
    yield (
        abs(held / said - 1) <= 0.1,
        f"{size}: memory within 10 % of what was said ({held / 1e6:,.0f} against "
        f"{said / 1e6:,.0f} MB)",
    )
    by_hand = versions_loop(problem, schedule, first - 2, clients, 1e-4)
    ratio, words = compared(*windows(run(), by_hand, **each))
    yield ratio <= 1.0, f"{size}: no slower than a loop by hand that holds them ({words})"


BEFORE = """
import sys, time, torch
sys.path.insert(0, {benchmarks!r})
torch.set_num_threads(1)
import train
problem, schedule = train.digits_problem(), train.schedule_of(1000)
for line in sys.stdin:
    begin = time.process_time()
    train.replay(problem, schedule, line.strip() == "batched")
    print(time.process_time() - begin, flush=True)
"""


def before(source: Path, turns: int) -> Iterator[Verdict]:
    """The digits perceptron in this tree and in another one, each in a process of its own, in turns."""
    here = HERE.parent / "src"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", BEFORE.format(benchmarks=str(tree.parent / "benchmarks"))],
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for tree in (source.resolve(), here)
    ]
    try:
        for how in ("one by one", "batched"):
            seconds: tuple[list[float], list[float]] = ([], [])
            for turn in range(4 * turns + 1):
                for worker, taken in zip(workers, seconds, strict=True):
                    assert worker.stdin is not None
                    assert worker.stdout is not None
                    worker.stdin.write(f"{how}\n")
                    worker.stdin.flush()
                    spent = float(worker.stdout.readline())
                    if turn:
                        taken.append(spent / 1000)
            ratio, words = compared(*seconds)
            claim = f"digits perceptron, {how}: at most 1.05 times the time of the other tree"
            yield ratio <= 1.05, f"{claim} ({words})"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="What training in virtual time costs.")
    parser.add_argument("--before", type=Path, metavar="SRC", help="another tree's src folder")
    parser.add_argument("--only", nargs="+", metavar="SECTION", help="only these sections")
    parser.add_argument("--quick", action="store_true", help="three turns each, no large networks")
    parser.add_argument("--no-flower", action="store_true", help="leave out Flower's simulation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    turns = 3 if options.quick else 7
    libraries = ", ".join(f"{name} {version(name)}" for name in ("sojourn", "torch", "numpy"))
    print(f"{machine()}; {libraries}; one thread\n", flush=True)
    sections = {
        "million": million(turns, quick=options.quick),  # First: its memory is the process's peak.
        "overhead": overhead(turns),
        "resnet": resnet(turns),
        "datasets": datasets(turns),
        "batching": batching(turns, quick=options.quick),
        "lockstep": lockstep(turns, quick=options.quick),
        "evaluation": evaluation(),
        **({} if options.before is None else {"before": before(options.before, turns)}),
        **({} if options.no_flower else {"flower": flower(updates=1000)}),
    }
    if unknown := set(options.only or ()) - set(sections):
        parser.error(f"no section {', '.join(sorted(unknown))}: there are {', '.join(sections)}")
    failed = False
    for name, verdicts in sections.items():
        if options.only and name not in options.only:
            continue
        for holds, claim in verdicts:
            word = {True: "holds", False: "FAILS", None: "not measured"}[holds]
            print(f"{word}: {claim}", flush=True)
            failed |= holds is False
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
