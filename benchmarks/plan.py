"""The planner beside the paper's own descent, and on large fleets: ``python benchmarks/plan.py [--quick]``.

On the paper's 30 clients, L-BFGS and the paper's Adam (3,000 steps) use the same compiled gradients
and take turns; a ratio is the median over the turns. Large fleets are planned in processes of their
own, so that the peak of memory is theirs. The limits hold for the processor's time; the time on the
wall, which other programs share, is printed beside it. Exit code 1 if a claim fails.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

import numpy as np
from peers import machine
from threadpoolctl import threadpool_limits

import sojourn as sj
from sojourn.planning.search.descent import lbfgs

CONSTANTS = sj.LearningConstants(
    initial_gap=15.0, smoothness=1.0, gradient_noise=3.0, heterogeneity=10.0
)
PER_TIME = sj.PerTime(CONSTANTS, learning_rate=0.01, rounds=0)
OBJECTIVES = {
    "per-time": PER_TIME,
    "time-to-accuracy": sj.TimeToAccuracy(CONSTANTS, squared_gradient_norm=0.5),
}
MEMORY = 2 * 2**30
SAME = 1e-9
"""Relative difference of two values up to which neither is worse."""


@dataclass(frozen=True)
class Cost:
    """Seconds of the processor and on the wall, and the objective's value."""

    processor: float
    wall: float
    value: float


@dataclass(frozen=True)
class Large(Cost):
    """The same for a large fleet, with the value of square-root routing and the peak of memory."""

    square_root: float
    memory: int


def cost(solve: Callable[[], float]) -> Cost:
    processor, wall = time.process_time(), time.perf_counter()
    value = solve()
    return Cost(time.process_time() - processor, time.perf_counter() - wall, value)


def one_descent() -> float:
    fleet = sj.built_in_fleet("three-clusters")
    with threadpool_limits(limits=1, user_api="blas"):
        return lbfgs(sj.Network(fleet, sj.uniform_routing(fleet), 30), PER_TIME).value


def multi_start() -> float:
    return sj.optimize_routing(sj.built_in_fleet("three-clusters"), 30, PER_TIME).value


def paper_adam() -> float:
    fleet = sj.built_in_fleet("three-clusters")
    return sj.optimize_routing(fleet, 30, PER_TIME, method="adam").value


SMALL = {
    "one L-BFGS descent": one_descent,
    "the whole multi-start": multi_start,
    "the paper's Adam": paper_adam,
}


def take_turns(turns: int) -> dict[str, list[Cost]]:
    """Every method once per turn, after one call each that is not counted."""
    for solve in SMALL.values():
        solve()
    costs: dict[str, list[Cost]] = {name: [] for name in SMALL}
    for _ in range(turns):
        for name, solve in SMALL.items():
            costs[name].append(cost(solve))
    return costs


def plan_large(classes: int, count: int, concurrency: int, objective: str) -> Large:
    """In a process of its own: the routing of a fleet, compiled code warmed up beforehand."""
    wanted = OBJECTIVES[objective]
    sj.optimize_routing(sj.built_in_fleet("three-clusters"), 300, wanted)
    fleet = sj.Fleet(np.geomspace(0.01, 1.0, classes), np.full(classes, count))
    simple = sj.Network(fleet, sj.square_root_routing(fleet), concurrency)
    spent = cost(lambda: sj.optimize_routing(fleet, concurrency, wanted).value)
    unit = 1 if sys.platform == "darwin" else 1024
    return Large(
        processor=spent.processor,
        wall=spent.wall,
        value=spent.value,
        square_root=wanted.evaluate(simple).value,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    )


def apart(*arguments: object) -> Large:
    """``plan_large`` in a fresh process, whose peak of memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(plan_large, arguments)


@dataclass(frozen=True)
class Size:
    """A large fleet, and what its planning may cost."""

    classes: int
    count: int
    concurrency: int
    limit: float

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.classes:,} distinct speeds, {self.concurrency:,} tasks"
        clients = self.classes * self.count
        return f"{clients:,} clients in {self.classes:,} classes, {self.concurrency:,} tasks"


SIZES = (
    Size(100_000, 1, 10_000, 120.0),
    Size(1000, 1000, 10_000, 5.0),
    Size(1000, 1000, 10**6, 5.0),
)


def ratio(costs: Mapping[str, list[Cost]], name: str) -> float:
    """How many times as fast as the paper's Adam, in time of the processor."""
    pairs = zip(costs["the paper's Adam"], costs[name], strict=True)
    return median(adam.processor / ours.processor for adam, ours in pairs)


def claims(
    small: Mapping[str, list[Cost]], large: Mapping[tuple[Size, str], Large]
) -> Iterator[tuple[bool, str]]:
    """Whether each claim holds, and what was measured."""
    descent, whole, adam = (small[name][0].value for name in SMALL)
    fast = ratio(small, "one L-BFGS descent")
    yield fast >= 20.0, f"one descent at least 20 times as fast as the paper's Adam ({fast:.0f})"
    fast = ratio(small, "the whole multi-start")
    yield fast >= 1.0, f"the whole multi-start not slower than it ({fast:.1f} times as fast)"
    never = max(descent, whole) <= adam * (1 + SAME) and whole <= descent * (1 + SAME)
    yield never, f"never a worse value ({whole:.4f} and {descent:.4f}, Adam {adam:.4f})"
    for (size, objective), spent in large.items():
        within = spent.processor <= size.limit and spent.memory < MEMORY
        yield (
            within,
            f"{size}, {objective}: within {size.limit:g} s and 2 GiB "
            f"({spent.processor:.1f} s, {spent.memory / 2**20:.0f} MiB)",
        )
        yield (
            spent.value <= spent.square_root,
            f"{size}, {objective}: no worse than square-root routing "
            f"({1 - spent.value / spent.square_root:.1%} better)",
        )


def print_tables(small: Mapping[str, list[Cost]], large: Mapping[tuple[Size, str], Large]) -> None:
    """Both tables, in Markdown."""
    print("| 30 clients, 30 tasks, per-time | processor, ms | wall, ms | ratio to Adam | value |")
    print("| --- |" + " ---: |" * 4)
    for name, costs in small.items():
        processor = 1e3 * median(spent.processor for spent in costs)
        wall = 1e3 * median(spent.wall for spent in costs)
        print(
            f"| {name} | {processor:,.2f} | {wall:,.2f} | {ratio(small, name):,.1f} "
            f"| {costs[0].value:.4f} |"
        )
    print(
        "\n| fleet | objective | processor, s | wall, s | peak memory, MiB | value | square-root |"
    )
    print("| --- | --- |" + " ---: |" * 5)
    for (size, objective), spent in large.items():
        print(
            f"| {size} | {objective} | {spent.processor:.2f} | {spent.wall:.2f} "
            f"| {spent.memory / 2**20:.0f} | {spent.value:.6g} | {spent.square_root:.6g} |"
        )
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description="The planner beside the paper's own descent.")
    parser.add_argument(
        "--quick", action="store_true", help="one turn, and the large fleets per time only"
    )
    quick = parser.parse_args().quick
    names = ("sojourn", "numpy", "scipy", "numba")
    print(
        f"{machine()}; {', '.join(f'{name} {version(name)}' for name in names)}; one thread each\n"
    )
    small = take_turns(1 if quick else 5)
    objectives = ["per-time"] if quick else list(OBJECTIVES)
    large = {
        (size, objective): apart(size.classes, size.count, size.concurrency, objective)
        for size in SIZES
        for objective in objectives
    }
    print_tables(small, large)
    verdicts = list(claims(small, large))
    for holds, claim in verdicts:
        print("holds" if holds else "FAILS", claim, sep=": ")
    return int(not all(holds for holds, _ in verdicts))


if __name__ == "__main__":
    sys.exit(main())
