"""How cost grows: ``python benchmarks/growth.py [--small] [--only SECTION ...] [--draw]``.

Analysis, plans and simulation against clients; training against clients and weights, beside the bare
gradient; tuning against candidates and jobs; the deployed server against clients and weights. Each
section runs in a process of its own. Times are of the processor, the best of several turns; memory is
the peak of a point beyond what the process held before it. Results go to
``benchmarks/results/growth.json``, curves to ``docs/images/growth-*.svg`` and tables into
``docs/growth.md``; ``--draw`` only makes the last two again.
"""

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import resource
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from peers import HERE, machine
from threadpoolctl import threadpool_limits

RESULTS = HERE / "results" / "growth.json"
DOCS = HERE.parent / "docs"
Point = dict[str, Any]


def held(name: str = "VmRSS") -> int:
    """Bytes that this process holds now, or (``VmHWM``) held at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status does not say {name}")


class Peak:
    """The most memory that the block held beyond what was held before it."""

    bytes = 0

    def __enter__(self) -> "Peak":
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        self._before = held()
        return self

    def __exit__(self, *raised: object) -> None:
        self.bytes = max(0, held("VmHWM") - self._before)


def best(function: Callable[[], object], *, turns: int = 3, longest: float = 3.0) -> float:
    """Processor seconds of the fastest of some calls; no more calls once they took ``longest``."""
    seconds: list[float] = []
    while len(seconds) < turns and sum(seconds) < longest:
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def powers(first: int, last: int, small: bool) -> list[int]:
    """Powers of ten; without the largest if it is to be ``small``."""
    return [10**k for k in range(first, last + (0 if small else 1))]


def theory(small: bool) -> Iterator[Point]:
    """Steady state of n distinct speeds with n tasks; the best routing of n clients."""
    import sojourn as sj

    constants = sj.LearningConstants(
        initial_gap=15.0, smoothness=1.0, gradient_noise=3.0, heterogeneity=10.0
    )
    objective = sj.PerTime(constants, learning_rate=0.01, rounds=0)

    def speeds(clients: int, classes: int) -> Any:
        return sj.Fleet(np.geomspace(0.01, 1.0, classes), np.full(classes, clients // classes))

    def analyze(clients: int, policy: str) -> object:
        fleet = speeds(clients, clients)
        network = sj.Network(fleet, sj.uniform_routing(fleet), clients)
        return sj.analyze(network) if policy == "routed" else sj.analyze(network, policy)

    def plan(clients: int, classes: int) -> object:
        return sj.optimize_routing(speeds(clients, classes), min(clients, 10_000), objective)

    works = [
        ("analysis, random routing", lambda n: analyze(n, "routed"), powers(2, 6, small)),
        ("analysis, never-queue", lambda n: analyze(n, "never-queue"), powers(2, 6, small)),
        ("plan, at most 100 speeds", lambda n: plan(n, 100), powers(2, 6, small)),
        ("plan, all speeds distinct", lambda n: plan(n, n), powers(2, 4, small)),
    ]
    for name, work, sizes in works:
        work(100)
        for clients in sizes:
            with Peak() as peak:
                seconds = best(lambda work=work, n=clients: work(n))
            yield {"name": name, "clients": clients, "seconds": seconds, "bytes": peak.bytes}


def simulation(small: bool) -> Iterator[Point]:
    """Every completion recorded; as many tasks in flight as clients."""
    import sojourn as sj

    def run(clients: int, rounds: int, **options: Any) -> object:
        fleet = sj.Fleet(np.geomspace(0.1, 1.0, clients))
        network = sj.Network(fleet, sj.uniform_routing(fleet), clients)
        return sj.simulate(network, rounds=rounds, seed=1, **options)

    works: list[tuple[str, Point]] = [
        ("random routing, exponential", {}),
        ("random routing, lognormal", {"law": "lognormal"}),
        ("never-queue, exponential", {"policy": "never-queue"}),
        ("never-queue, lognormal", {"policy": "never-queue", "law": "lognormal"}),
    ]
    for name, options in works:
        run(100, 1000, **options)
        for clients in powers(2, 6, small):
            rounds = max(200_000, 5 * clients)
            with Peak() as peak:
                seconds = best(lambda n=clients, r=rounds, o=options: run(n, r, **o))
            yield {
                "name": name,
                "clients": clients,
                "tasks": rounds,
                "seconds": seconds,
                "bytes": peak.bytes,
            }


def training(small: bool) -> Iterator[Point]:
    """A perceptron of two hidden layers, batches of 32, as many tasks in flight as clients.

    All clients are equally fast and none is random, so that every task in flight has a version of its
    own. The bare gradient is a forward and a backward pass at weights that stay where they are.
    """
    import torch

    torch.set_num_threads(1)
    few = 10_000
    sizes = [(clients, few) for clients in powers(1, 4, small)]
    sizes += [(10, weights) for weights in powers(5, 7, small)]
    sizes += [(100 if small else 1000, 10**6)]
    for clients, weights in sizes:
        yield train(clients, weights)


def train(clients: int, weights: int) -> Point:
    """One size: memory of a run, and windows of its tasks that take turns with bare gradients."""
    import torch
    from torch import nn

    import sojourn as sj
    from sojourn.rules import AsyncSGD
    from sojourn.training import Problem
    from sojourn.training.replay.run import Replay
    from sojourn.training.replay.stack import Stack

    width = round(math.sqrt(38**2 + weights - 10) - 38)
    generator = torch.Generator().manual_seed(1)
    layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    x = torch.randn(32 * clients, 64, generator=generator)
    y = torch.randint(10, (32 * clients,), generator=generator)
    sets = list(zip(torch.split(x, 32), torch.split(y, 32), strict=True))
    problem = Problem(nn.Sequential(*layers, nn.Linear(width, 10)), sets, (x[:1], y[:1]))
    window = max(2, min(200, int(2e7 / problem.dimension)))
    turns = 9
    fleet = sj.Fleet(np.ones(clients))
    network = sj.Network(fleet, sj.uniform_routing(fleet), clients)
    rounds = clients + (turns + 1) * window
    schedule = sj.simulate(
        network, rounds=rounds, policy="never-queue", law="deterministic", seed=1
    )
    model = problem.trained_model(problem.initial_weights()).train()
    parameters = list(model.parameters())

    def bare() -> None:
        for task in range(window):
            own = slice(32 * (task % clients), 32 * (task % clients) + 32)
            torch.autograd.grad(problem.loss(model(x[own]), y[own]), parameters)

    run = Replay(schedule, problem, AsyncSGD(), learning_rate=1e-4, seed=1, evaluate_every=rounds)
    stack = Stack([run])
    seconds: dict[str, list[float]] = {"bare": [], "task": []}
    bare()
    with Peak() as peak:
        position = run.beginning(False)
        stack.run([position], until=clients + window, batched=False)
        for turn in range(turns):
            marks = [time.process_time()]
            bare()
            marks.append(time.process_time())
            stack.run([position], until=clients + (turn + 2) * window, batched=False)
            marks.append(time.process_time())
            seconds["bare"].append((marks[1] - marks[0]) / window)
            seconds["task"].append((marks[2] - marks[1]) / window)
    ratios = np.divide(seconds["task"], seconds["bare"])
    return {
        "clients": clients,
        "weights": problem.dimension,
        "bare": min(seconds["bare"]),
        "task": min(seconds["task"]),
        "ratio": min(seconds["task"]) / min(seconds["bare"]),
        "median ratio": float(np.median(ratios)),
        "bytes": peak.bytes,
        "said": (clients + 1) * 4 * problem.dimension,
    }


def tuning(small: bool) -> Iterator[Point]:
    """Digits, 30 clients, 200 rounds, successive halving and confirmation; then with two jobs."""
    import torch

    torch.set_num_threads(1)
    counts = (4, 16) if small else (4, 8, 16, 32)
    tune(2, 1)
    for candidates in counts:
        yield tune(candidates, 1)
    yield tune(counts[-1], 2)


def tune(candidates: int, jobs: int) -> Point:
    """Half as many strategies as candidates, each at two learning rates."""
    from sojourn.training.experiment.engines import LocalEngine
    from sojourn.tuning.setting import read_setting
    from sojourn.tuning.tune import tune_setting

    strategies = "".join(
        f'[[strategy]]\nname = "debias {k}"\npolicy = "never-queue"\n'
        f'rule = {{ name = "async-sgd", debias = {2 * k / candidates:g} }}\n'
        for k in range(candidates // 2)
    )
    lines = (
        'fleet = "three-clusters"\ndata = "digits"\nmodel = "mlp"\nrounds = 200\n'
        "concurrency = 30\nseeds = 2\nlearning-rate = [0.03, 0.1]\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.toml"
        file.write_text(lines + strategies)
        setting = read_setting(file)
        engine = LocalEngine(jobs)
        wall, begun = time.perf_counter(), of_all()
        tuned = tune_setting(setting, Path(folder) / "out", engine=engine, check=False)
        seconds = of_all() - begun
        wall = time.perf_counter() - wall
        confirming = sum(int(h.gradients[-1]) for row in tuned.table for h in row.histories)
    return {
        "candidates": len(setting.candidates),
        "jobs": jobs,
        "seconds": seconds,
        "wall": wall,
        "pilot gradients": tuned.gradients,
        "confirming gradients": confirming,
    }


def of_all() -> float:
    """Processor seconds of this process and of those it started."""
    import psutil

    living = psutil.Process().children(recursive=True)
    over = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = [process.cpu_times() for process in living]
    return (
        time.process_time()
        + over.ru_utime
        + over.ru_stime
        + sum(spent.user + spent.system for spent in times)
    )


def server(small: bool) -> Iterator[Point]:
    """The dispatcher alone against clients; the whole server, with threads as clients, against both."""
    for clients in powers(1, 4, small):
        yield {"name": "dispatcher", "clients": clients, "weights": 10, **dispatch(clients)}
    for clients in (3, 10, 30, 100, 300)[: 4 if small else 5]:
        yield {"name": "server", **serve(clients, 10_000)}
    for weights in powers(5, 7, small):
        yield {"name": "server", **serve(3, weights)}


def dispatch(clients: int) -> Point:
    """Completions of a dispatcher whose clients answer in the order of their tasks."""
    from sojourn.deployment import Dispatcher, Task
    from sojourn.rules import GeneralizedAsyncSGD

    made = Dispatcher(
        np.zeros(10),
        rule=GeneralizedAsyncSGD(),
        routing=np.full(clients, 1 / clients),
        concurrency=clients,
        learning_rate=1e-3,
        seed=1,
    )
    waiting: deque[Task] = deque()
    update = np.full(10, 0.1)
    completions, now = 2_000, 0.0

    def go() -> None:
        nonlocal now
        for place in range(completions):
            while not waiting or place % 1000 == 999:
                now += 1.0
                waiting.extend(made.tick(now).send)
                if waiting:
                    break
            task = waiting.popleft()
            now += 1 / clients  # Each client answers about once a second.
            waiting.extend(made.completed(task.number, update, now=now, client=task.client).send)

    with Peak() as peak:
        begin = time.process_time()
        for client in range(clients):
            waiting.extend(made.joined(client, now=0.0).send)
        joining = time.process_time() - begin
        waiting.extend(made.start(now=0.0).send)
        go()
        seconds = best(go) / completions
    return {"task": seconds, "joining": joining, "bytes": peak.bytes}


class Ready:
    """A problem whose gradient is made beforehand: what is measured is the server."""

    def __init__(self, clients: int, weights: int) -> None:
        self.clients = clients
        self._made = 0.1 * np.random.default_rng(0).standard_normal(weights, dtype=np.float32)

    def initial_weights(self) -> np.ndarray:
        return np.zeros_like(self._made)

    def loss_and_gradient(self, weights: np.ndarray, *task: int) -> tuple[float, np.ndarray]:
        return 1.0, self._made

    def evaluate(self, weights: np.ndarray) -> tuple[float, float]:
        return 1.0, math.nan


def serve(clients: int, weights: int) -> Point:
    """Updates of a server whose clients are threads that answer at once."""
    from sojourn.deployment.inprocess import InProcessTransport
    from sojourn.deployment.run import serve as serve_clients
    from sojourn.deployment.settings import read_settings

    ready = Ready(clients, weights)
    updates = max(20, min(1000, int(2e8 / weights)))

    def problem(clients: int, seed: int) -> Ready:
        return ready

    def run(count: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            given = {
                "clients": clients,
                "updates": count,
                "learning-rate": 1e-6,
                "predict": False,
                "evaluate-every": count,
                "checkpoint-seconds": 1e6,
                "run-folder": str(Path(folder) / "run"),
            }
            begin = time.process_time()
            settings = read_settings(given, Path(folder))
            with InProcessTransport(problem, [lambda: 0.0] * clients) as transport:
                serve_clients(transport, problem, settings)
            return time.process_time() - begin

    run(10)
    with Peak() as peak:
        rare, often = (min(run(count) for _ in range(3)) for count in (10, updates + 10))
    step = ready.initial_weights()
    moving = best(lambda: np.add(step, ready._made, out=step), turns=20)
    return {
        "clients": clients,
        "weights": weights,
        "task": (often - rare) / updates,
        "one addition": moving,
        "bytes": peak.bytes,
    }


SECTIONS: dict[str, Callable[[bool], Iterator[Point]]] = {
    "theory": theory,
    "simulation": simulation,
    "training": training,
    "tuning": tuning,
    "server": server,
}


def measured(section: str, small: bool) -> list[Point]:
    """The points of a section, said as they come."""
    points = []
    with threadpool_limits(limits=1):
        for point in SECTIONS[section](small):
            points.append(point)
            words = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in point.items()}
            print(f"{section}: {words}", flush=True)
    return points


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """By which power of x the last two points grow: 1 is linear."""
    return math.log(y[-1] / y[-2]) / math.log(x[-1] / x[-2])


def curves(points: Sequence[Point], x: str, value: Callable[[Point], float]) -> list[Any]:
    """A series for each name among the points."""
    from sojourn.figures.figure import Series

    names = list(dict.fromkeys(point["name"] for point in points))
    return [
        Series(
            name,
            [point[x] for point in points if point["name"] == name],
            [value(point) for point in points if point["name"] == name],
            kind="track",
        )
        for name in names
    ]


def draw(results: dict[str, Any]) -> None:
    """The curves, as far as their sections were measured."""
    from sojourn.figures.figure import Figure, View

    def save(name: str, title: str, x: str, y: str, series: list[Any]) -> None:
        view = View(x, y, tuple(series), log_x=True, log_y=True)
        alt = f"{y} against {x}, both logarithmic: " + "; ".join(
            f"{s.label} from {s.y[0]:.2g} to {s.y[-1]:.2g}" for s in series
        )
        path = DOCS / "images" / f"growth-{name}.svg"
        Figure(f"growth-{name}", title, alt, (view,)).save(path)

    if points := results.get("theory"):
        series = curves(points, "clients", lambda p: p["seconds"])
        save("theory", "Analysis and plans", "clients", "seconds", series)
    if points := results.get("simulation"):
        series = curves(points, "clients", lambda p: 1e9 * p["seconds"] / p["tasks"])
        save("simulation", "Simulation", "clients", "nanoseconds per task", series)
    if points := results.get("training"):
        few = min(p["weights"] for p in points)
        for axis, chosen in (
            ("clients", [p for p in points if p["weights"] == few]),
            ("weights", [p for p in points if p["clients"] == 10]),
        ):
            both = [
                {"name": name, axis: p[axis], "y": 1e3 * p[key]}
                for name, key in (("a task", "task"), ("the bare gradient", "bare"))
                for p in chosen
            ]
            series = curves(both, axis, lambda p: p["y"])
            save(f"training-{axis}", "Training", axis, "milliseconds per task", series)
    if points := [p for p in results.get("tuning", []) if p["jobs"] == 1]:
        named = [{**p, "name": "processor seconds"} for p in points]
        series = curves(named, "candidates", lambda p: p["seconds"])
        save("tuning", "Tuning", "candidates", "seconds", series)
    if points := results.get("server"):
        by_clients = [p for p in points if p["weights"] <= 10_000]
        series = curves(by_clients, "clients", lambda p: 1e6 * p["task"])
        save("server-clients", "The server", "clients", "microseconds per update", series)
        by_weights = [p for p in points if p["name"] == "server" and p["clients"] == 3]
        both = [
            {"name": name, "weights": p["weights"], "y": 1e3 * p[key]}
            for name, key in (
                ("an update", "task"),
                ("one addition of the weights", "one addition"),
            )
            for p in by_weights
        ]
        series = curves(both, "weights", lambda p: p["y"])
        save("server-weights", "The server", "weights", "milliseconds per update", series)


def size(value: float) -> str:
    """A round number for a table."""
    return f"{value:,.0f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}" if value >= 1e7 else f"{value / 1e6:.1f}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(results: dict[str, Any]) -> dict[str, str]:
    """The tables of the page, by section."""
    found: dict[str, str] = {}
    for section, unit in (("theory", "s"), ("simulation", "ns per task")):
        points = results.get(section, [])
        rows = []
        for name in dict.fromkeys(p["name"] for p in points):
            own = [p for p in points if p["name"] == name]
            values = [p["seconds"] / p.get("tasks", 1e9) * 1e9 for p in own]
            rows.append(
                [
                    name,
                    f"{size(own[0]['clients'])} to {size(own[-1]['clients'])}",
                    f"{values[0]:.3g} to {values[-1]:.3g}",
                    f"{exponent([p['clients'] for p in own], values):.2f}",
                    megabytes(own[-1]["bytes"]),
                ]
            )
        if rows:
            titles = ["", "clients", unit, "last exponent", "most memory, MB"]
            found[section] = table(titles, rows)
    if points := results.get("training"):
        found["training"] = table(
            [
                "clients = tasks in flight",
                "weights",
                "bare, ms",
                "task, ms",
                "ratio",
                "expected, MB",
                "held, MB",
            ],
            [
                [
                    size(p["clients"]),
                    size(p["weights"]),
                    f"{1000.0 * p['bare']:.3g}",
                    f"{1000.0 * p['task']:.3g}",
                    f"{p['ratio']:.2f}",
                    megabytes(p["said"]),
                    megabytes(p["bytes"]),
                ]
                for p in points
            ],
        )
    if points := results.get("tuning"):
        found["tuning"] = table(
            [
                "candidates",
                "jobs",
                "pilot gradients",
                "confirming gradients",
                "processor, s",
                "wall, s",
            ],
            [
                [
                    str(p["candidates"]),
                    str(p["jobs"]),
                    size(p["pilot gradients"]),
                    size(p["confirming gradients"]),
                    f"{p['seconds']:.1f}",
                    f"{p['wall']:.1f}",
                ]
                for p in points
            ],
        )
    if points := results.get("server"):
        found["server"] = table(
            [
                "",
                "clients",
                "weights",
                "processor per update, ms",
                "all clients join, s",
                "memory, MB",
            ],
            [
                [
                    p["name"],
                    size(p["clients"]),
                    size(p["weights"]),
                    f"{1000.0 * p['task']:.3g}",
                    f"{p['joining']:.2g}" if "joining" in p else "",
                    megabytes(p["bytes"]),
                ]
                for p in points
            ],
        )
    return found


def write_page(results: dict[str, Any]) -> None:
    """Put the tables between their marks in the page."""
    page = DOCS / "growth.md"
    text = page.read_text()
    for section, made in tables(results).items():
        begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
        before, rest = text.split(begin, 1)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end, 1)[1]}"
    page.write_text(text)


def saved() -> dict[str, Any]:
    """The results so far."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="How cost grows.")
    parser.add_argument("--small", action="store_true", help="without the largest sizes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections")
    parser.add_argument("--draw", action="store_true", help="only curves and tables, from the file")
    options = parser.parse_args()
    results = saved()
    if not options.draw:
        context = multiprocessing.get_context("spawn")
        for section in options.only or SECTIONS:
            with context.Pool(1) as pool:
                points = pool.apply(measured, (section, options.small))
            results = {**saved(), section: points}
            libraries = [f"{name} {version(name)}" for name in ("sojourn", "torch", "numpy")]
            results["machine"] = "; ".join([machine(), *libraries])
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    draw(results)
    write_page(results)


if __name__ == "__main__":
    main()
