"""Does the tuned pick win? Its regret against the best of an exhaustive grid, over many settings.

    python benchmarks/decisions.py [--data small] [--only NAME] [--rivals] [--jobs 1] [--seconds 280]
    python benchmarks/decisions.py --edge
    python benchmarks/decisions.py --tables

For every setting (data x fleet x law) the candidates of `sojourn tune` are compared on pilot runs, and then all of
them, those of the factorial design that the pilot runs never began included, are run to the end on a fresh seed
and judged on the test set: the grid that tuning saves.

The grid is exhaustive: every rule with every server optimiser, amount of local work and buffer size, each at eight
learning rates a factor of two apart and at those that any of the pilot runs added; those of baselines are followed
beyond an edge as long as the best lies there. Combinations that compute the same to the bit (weights against bias
where all clients are heard equally often) are in it once. The least loss of a thousand runs on one seed is mostly
luck, so that seed only screens: the candidates with at most `MARGIN` times the least loss there (`MOST_CONTENDERS` at
most; the first ratio left out is saved as ``screened``), those that reach a target soonest, every baseline at its
three best rates and the picks run on six other seeds. On these the fastest rival and the best rate of every baseline are
chosen, and on twelve more the best of the five best candidates. They and the picks run on twelve fresh seeds, and these alone are
judged: the least of thirty noisy means is below the true ones, so whoever was chosen on the judged seeds would look better than it is.
Runs of one seed share clients' data, first weights, batches and times, so that their ratios vary much less than their losses.

The regret of the pick is its mean test loss over that of the best candidate, less one. It can be negative. Its time to a
target is compared with that of the fastest rule that federated-learning frameworks ship, at any learning rate and
buffer size; with links, also at other amounts of local work than `tune` proposes. The processor time of the pilot runs is compared with
that of the grid on one seed, both with the candidates that share a schedule computed together, both without what a
process does once (loading, compiling), and the grid taken to be evaluated as often as the pilot runs are.

--data fresh has three settings whose fleets, links, data and laws were drawn.
--edge tunes experiments/edge.toml (300 devices, journeys of 6 to 12 s) for the time to 90 %, and compares the pick with
FedBuff with ten local steps, at its best buffer size and learning rate of all with hindsight, on three fresh seeds, and with itself
where link times are deterministic.

--picks repeats the pilot runs of the small settings alone and judges what they choose, on the same seeds, against the best
candidates and the fastest rivals in the saved results, whose grids are not run again.

Parts of a grid are saved as they finish: after --seconds the command ends, with status 3, and the same command goes
on. --tables prints the saved results as the documentation has them.
"""

import argparse
import dataclasses
import functools
import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sojourn as sj
from sojourn._support.estimate import Estimate
from sojourn._support.progress import Silent
from sojourn._support.provenance import provenance
from sojourn.runs.measure import ACCURACY, LOSS
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.jobs import schedule_of, using_threads
from sojourn.training.problem.gradients import stacks_well
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.learning_rates import next_rate
from sojourn.tuning.pilots import Pilot, advance, evaluated_parts, group_key, horizon_of
from sojourn.tuning.portfolio import BASELINES, buffers
from sojourn.tuning.robustness import examine
from sojourn.tuning.runner import HalvingRunner
from sojourn.tuning.setting import Setting, read_setting
from sojourn.tuning.successive_halving import RUNGS, Candidate, Halving

SCREEN = (100,)
"""The seed on which all candidates are run."""
SEEDS = (101, 102, 103, 104, 105, 106)
"""Those on which rivals and the best candidates of a grid are chosen."""
FIELD, FURTHER = 5, tuple(range(107, 119))
"""So many of the best candidates, one of each strategy, run on these seeds, too: the best of them there is the best."""
JUDGED = tuple(range(201, 213))
"""Those on which it and the pick are judged."""
LAST = 0.15
"""The last part of the horizon, over which a final loss is averaged."""
MARGIN, MOST_CONTENDERS = 1.5, 32
FASTEST = 6
"""Candidates, and rivals, of the least times to a target that are judged."""
EDGE_SEEDS = SEEDS[:3]
POINTS = {SCREEN: 16, SEEDS: 64, FURTHER: 64, JUDGED: 64, EDGE_SEEDS: 256}
"""Evaluations of a run, at squares of equal parts of the horizon."""
UNFINISHED = 3
STACK = 96
"""Runs that are computed together."""
EVALUATIONS = 200
"""Evaluations by which the cost of one is measured."""
TARGETS = (0.8, 0.9)
"""Test accuracies whose times are compared, on the digits; an evaluation on 10,000 images costs more than it tells."""
DATA = ("homogeneous", "dirichlet(0.5)", "by-speed(1)")
ALSO = (("labels(2)", "three-clusters", "exponential"),)
"""Settings besides data x fleet x law."""
FLEETS = ("three-clusters", "lognormal")
HORIZONS = {
    "small": (),
    "fresh": (),
    "digits": (500.0, 60.0),
    "fashion-mnist": (300.0, 40.0),
    "kmnist": (300.0, 40.0),
}
"""How long runs last on each fleet: some 5 500 and 3 000 rounds on the digits, 1 100 and 1 000 elsewhere."""
SMALL_FLEETS = {
    "links": (
        sj.Fleet([0.5, 2.0, 8.0], [4] * 3, downlink=[2.0] * 3, uplink=[2.0] * 3),
        60.0,
    ),
    "far": (sj.Fleet([1.0, 4.0], [5] * 2, downlink=[10.0] * 2, uplink=[10.0] * 2), 300.0),
    "edge": (
        sj.Fleet(
            [2.0, 5.0, 10.0, 20.0, 50.0],
            [4] * 5,
            downlink=[4.0, 3.5, 3.0, 2.5, 2.0],
            uplink=[8.0, 7.0, 6.0, 5.0, 4.0],
        ),
        60.0,
    ),
    "office": (sj.Fleet([0.3, 1.0, 3.0], [4] * 3, downlink=[2.0] * 3, uplink=[3.0] * 3), 80.0),
    "clusters": (sj.Fleet([0.05, 0.3, 1.0], [4] * 3), 75.0),
    "speeds": (sj.Fleet(np.exp(np.random.default_rng(7).normal(0.0, 1.0, 10))), 40.0),
}
"""Small fleets, and how long runs last: 130 to 400 rounds. The first four have links."""
SMALL = (
    ("dirichlet(0.5)", "links", "exponential"),
    ("dirichlet(0.5)", "far", "exponential"),
    ("dirichlet(0.5)", "edge", "lognormal"),
    ("by-speed(1)", "office", "exponential"),
    ("dirichlet(0.5)", "links", "deterministic"),
    ("labels(2)", "edge", "exponential"),
    ("homogeneous", "far", "deterministic"),
    ("by-speed(1)", "links", "exponential"),
    *((data, "speeds", "exponential") for data in (*DATA, "labels(2)")),
    *((data, "clusters", "lognormal") for data in (*DATA, "labels(2)")),
)
"""Settings with the whole factorial design; the law is that of service and links alike."""


def drawn(seed: int) -> tuple[tuple[str, str, str], sj.Fleet, float]:
    """A setting that nobody chose: fleet, links, data and law drawn, over some 300 tasks."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 5))
    rates = np.exp(rng.normal(0.0, 1.2, classes)).round(2)
    links = {c: np.exp(rng.normal(1.0, 0.7, classes)).round(1) for c in ("downlink", "uplink")}
    fleet = sj.Fleet(rates, rng.integers(2, 6, classes).tolist(), **links)
    per_time = np.sum(fleet.counts / (1 / rates + links["downlink"] + links["uplink"]))
    data = str(rng.choice(["dirichlet(0.5)", "labels(2)", "by-speed(1)", "homogeneous"]))
    law = str(rng.choice(["exponential", "lognormal", "deterministic"]))
    return (data, f"drawn{seed}", law), fleet, float(f"{300 / per_time:.2g}")


FRESH = [drawn(seed) for seed in (1, 2, 3)]
SMALL_FLEETS |= {case[1]: (fleet, horizon) for case, fleet, horizon in FRESH}
LEARNT = {
    "small": ("digits", "mlp"),
    "fresh": ("digits", "mlp"),
    "digits": ("digits", "mlp"),
    "fashion-mnist": ("fashion-mnist(14)", "mlp(32)"),
    "kmnist": ("kmnist(14)", "mlp(32)"),
}
"""Data set and model; the images of the large ones are averaged down to 14 x 14 pixels."""
LAWS = {
    "digits": ("exponential", "lognormal"),
    "fashion-mnist": ("exponential",),
    "kmnist": ("lognormal",),
}
LOCAL_WORK = (4, 10, 30)
"""Local steps, the same for all clients, with which rules that frameworks ship are run where tasks travel."""
RIVALS = """
[[strategy]]
name = "square-root routing"
routing = "square-root"
[[strategy]]
name = "FedBuff, K = 3"
rule = { name = "fedbuff", buffer-size = 3 }
learning-rate = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56]
[[strategy]]
name = "Ringmaster, R = 100"
rule = { name = "ringmaster", max-staleness = 100 }
[[strategy]]
name = "delay-adaptive"
rule = "delay-adaptive"
policy = "never-queue"
[[strategy]]
name = "SAGA"
rule = { name = "saga", debias = 0.5 }
policy = "never-queue"
[[strategy]]
name = "Ringleader"
rule = "ringleader"
[[strategy]]
name = "Malenia"
rule = "malenia"
learning-rate = [0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12]
"""
"""Other people's rules, run on the grid at their own learning rates but not raced (--rivals)."""
MOST_MEAN, MOST_WORST, MOST_COST = 0.05, 0.15, 0.35
FAST, SLOWEST = 0.7, 1.05


def lognormal_fleet() -> sj.Fleet:
    """Thirty clients whose speeds are log-normal with sigma 1."""
    return sj.Fleet(np.exp(np.random.default_rng(7).normal(0.0, 1.0, 30)))


def settings(folder: Path, source_of_data: str) -> dict[str, Path]:
    """An experiment file for every setting."""
    folder.mkdir(parents=True, exist_ok=True)
    lognormal_fleet().to_csv(folder / "lognormal.csv")
    for name, (fleet, _) in SMALL_FLEETS.items():
        fleet.to_csv(folder / f"{name}.csv")
    found = {}
    images, model = LEARNT[source_of_data]
    for data, fleet_name, law, horizon in cases(source_of_data):
        name = f"{source_of_data}-{data.split('(')[0]}-{fleet_name}-{law}"
        path = folder / f"{name}.toml"
        source = fleet_name if fleet_name == "three-clusters" else f"{fleet_name}.csv"
        text = (
            f'fleet = "{source}"\ndata = "{images}"\npartition = "{data}"\nmodel = "{model}"\n'
            f'law = "{law}"\ntime = {horizon:g}\n'
        )
        rivals = RIVALS
        if source_of_data in ("small", "fresh"):
            linked = SMALL_FLEETS[fleet_name][0].uplink is not None
            text += f'link-law = "{law}"\n' if linked else ""
            rivals = local_rivals(SMALL_FLEETS[fleet_name][0].size) if linked else ""
        path.write_text(text)
        path.with_suffix(".rivals").write_text(text + rivals)
        found[name] = path
    return found


def cases(source_of_data: str) -> list[tuple[str, str, str, float]]:
    """Partition, fleet, law and horizon of every setting."""
    if source_of_data in ("small", "fresh"):
        small = SMALL if source_of_data == "small" else [case for case, _, _ in FRESH]
        return [(*case, SMALL_FLEETS[case[1]][1]) for case in small]
    horizon = dict(zip(FLEETS, HORIZONS[source_of_data], strict=True))
    crossed = [
        (data, fleet, law) for data in DATA for fleet in FLEETS for law in LAWS[source_of_data]
    ]
    also = ALSO if source_of_data == "digits" else ()
    return [(*case, horizon[case[1]]) for case in (*crossed, *also)]


def local_rivals(
    clients: int,
    work: Sequence[int] = LOCAL_WORK,
    rules: Sequence[str] = ("FedBuff", "FedAsync", "FedAvg"),
) -> str:
    """Rules that frameworks ship, with several amounts of local work."""
    lines = []
    tables = {name: f'name = "{name.lower()}"' for name in rules}
    for size in buffers(clients)[1:]:
        tables[f"FedBuff, K = {size}"] = f'name = "fedbuff", buffer-size = {size}'
    for steps in work:
        for name, table in tables.items():
            lines += [
                "[[strategy]]",
                f'name = "{name}, {steps} local steps for all"',
                f"rule = {{ {table}, local-steps = {steps} }}",
                f"concurrency = {clients // 3}" if name == "FedAvg" else 'policy = "never-queue"',
            ]
    return "\n".join(lines) + "\n"


def raced(setting: Setting, folder: Path, jobs: int, deadline: float) -> Halving:
    """Successive halving, resumed from ``folder``; its processor time is added up there."""
    if time.monotonic() > deadline:
        raise OutOfTime
    folder.mkdir(parents=True, exist_ok=True)
    warm_up(setting)
    begun = time.process_time()
    halving = HalvingRunner(setting, folder, LocalEngine(jobs), Silent()).run()
    spend(folder, "pilot runs", time.process_time() - begun)
    return halving


@functools.cache
def warm_up(setting: Setting) -> None:
    """Have done what a process does once, loading and compiling, by a pilot run that is thrown away."""
    first = setting.candidates[0]
    pilot = Pilot(setting.experiment, setting.criterion, (first,), setting.pilot_seed, RUNGS[0])
    advance(pilot, [None])


class OutOfTime(Exception):
    """The command's time is over; what was run is saved."""


class Grid:
    """Candidates run to the end on fresh seeds, judged on the test set.

    Saved in ``folder`` as they finish, with their processor time.
    """

    def __init__(self, setting: Setting, folder: Path, deadline: float) -> None:
        self.setting, self.folder, self.deadline = setting, folder, deadline
        folder.mkdir(parents=True, exist_ok=True)
        self.runs: dict[tuple[Candidate, int], sj.History] = {}
        names = [strategy.name for strategy in setting.experiment.strategies]
        for path in sorted(folder.glob("*.jsonl")):
            for run in sj.History.read(path):
                self.runs[Candidate(names.index(run.strategy), run.learning_rate), run.seed] = run

    def of(
        self, candidates: Iterable[Candidate], seeds: tuple[int, ...]
    ) -> dict[Candidate, list[sj.History]]:
        """The runs of candidates; those not saved are run, the ones that share a schedule together."""
        candidates = list(candidates)
        groups: dict[Any, list[Candidate]] = {}
        for c in candidates:
            groups.setdefault(group_key(self.setting.experiment.strategies[c.strategy]), []).append(
                c
            )
        for seed in seeds:
            if all((c, seed) in self.runs for c in candidates):
                continue
            problem = build_problem(self.setting.experiment, seed)
            for members in groups.values():
                missing = [c for c in members if (c, seed) not in self.runs]
                for k in range(0, len(missing), STACK):
                    if time.monotonic() > self.deadline:
                        raise OutOfTime
                    self._run(missing[k : k + STACK], seed, problem, POINTS[seeds])
        return {c: [self.runs[c, seed] for seed in seeds] for c in candidates}

    def _run(self, chunk: Sequence[Candidate], seed: int, problem: Problem, points: int) -> None:
        begun, experiment = time.process_time(), self.setting.experiment
        together = stacks_well(problem)
        schedule = schedule_of(
            experiment, experiment.strategies[chunk[0].strategy], seed, time=experiment.time
        )
        runs = [
            Replay(
                schedule,
                problem,
                experiment.strategies[c.strategy].rule,
                learning_rate=c.learning_rate,
                seed=seed,
                evaluate_at=(np.arange(points + 1) / points) ** 2
                * horizon_of(experiment, schedule),
            )
            for c in chunk
        ]
        places = [run.beginning(together) for run in runs]
        Stack(runs).run(places, batched=together)
        for c, run, place in zip(chunk, runs, places, strict=True):
            history = run.history(place, experiment.strategies[c.strategy].name, {})
            self.runs[c, seed] = history
        number = len(list(self.folder.glob("*.jsonl")))
        spend(self.folder, f"{seed}", time.process_time() - begun)
        sj.History.write(self.folder / f"{number:04}.jsonl", [self.runs[c, seed] for c in chunk])

    def with_edges(self, rates: dict[int, set[float]]) -> dict[Candidate, list[sj.History]]:
        """All strategies at all ``rates``, those of baselines followed to where the best is not at an edge."""
        while True:
            candidates = [Candidate(i, rate) for i, own in rates.items() for rate in sorted(own)]
            runs = self.of(candidates, SCREEN)
            added = False
            for i in self.setting.baselines:
                own = {c.learning_rate: self.loss(runs[c]) for c in runs if c.strategy == i}
                best = min(own, key=lambda rate: own[rate])
                for up, edge in ((False, min(own)), (True, max(own))):
                    if best == edge and math.isfinite(own[best]):
                        rates[i].add(next_rate(sorted(own), best, up=up))
                        added = True
            if not added:
                return runs

    def seconds(self) -> float:
        """Processor seconds of the grid on one seed, were it evaluated as often as pilot runs are."""
        (seed,) = SCREEN
        runs = [history for (_, own), history in self.runs.items() if own == seed]
        problem = build_problem(self.setting.experiment, seed)
        weights = problem.initial_weights()
        begun = time.process_time()
        for _ in range(EVALUATIONS):
            problem.measures(weights)
        each = (time.process_time() - begun) / EVALUATIONS
        enough = len(evaluated_parts(Criterion("final")))
        too_few = sum(enough - history.rows for history in runs if history.diverged_at is None)
        return spent(self.folder)[f"{seed}"] + each * too_few

    def name(self, candidate: Candidate) -> str:
        """The name of a candidate's strategy."""
        return self.setting.experiment.strategies[candidate.strategy].name

    def label(self, candidate: Candidate) -> str:
        """The strategy with its learning rate."""
        return f"{self.name(candidate)} at {candidate.learning_rate:g}"

    def loss(self, runs: Sequence[sj.History]) -> float:
        """The mean final test loss."""
        horizon = float(self.setting.experiment.time or 0.0)
        return float(np.mean([final_loss(run, horizon) for run in runs]))

    def time(self, runs: Sequence[sj.History], target: float) -> float:
        """The mean time to a target, between evaluations, a run that lacks it counting as twice the horizon."""
        horizon = float(self.setting.experiment.time or 0.0)
        times = [Criterion("target", target, ACCURACY).score(run, horizon) for run in runs]
        return float(np.mean([t if t <= horizon else 2 * horizon for t in times]))

    def fastest(self, runs: dict[Candidate, list[sj.History]], target: float) -> Candidate:
        """The candidate of the least mean time to a target."""
        times = {c: self.time(own, target) for c, own in runs.items()}
        return min(times, key=lambda c: times[c])


def final_loss(run: sj.History, horizon: float) -> float:
    """The geometric mean of a run's test loss over the last part of the horizon; infinite if it diverged.

    Not the criterion of the pilot runs: that may change.
    """
    if run.diverged_at is not None:
        return math.inf
    last = run.time >= (1.0 - LAST) * horizon
    return float(np.exp(np.mean(np.log(run.values(LOSS)[last]))))


def spend(folder: Path, stage: str, seconds: float) -> None:
    """Add to the processor seconds that ``folder`` has of a stage."""
    path = folder / "processor.json"
    table = json.loads(path.read_text()) if path.exists() else {}
    table[stage] = table.get(stage, 0.0) + seconds
    path.write_text(json.dumps(table))


def spent(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "processor.json").read_text())
    return found


def contenders(
    grid: Grid, races: dict[float | None, Halving], screened: dict[Candidate, list[sj.History]]
) -> tuple[set[Candidate], float]:
    """The candidates that could be the best in something, and the first ratio of losses left out."""
    losses = {c: grid.loss(histories) for c, histories in screened.items()}
    ranked = sorted(losses, key=lambda c: losses[c])
    least = losses[ranked[0]]
    near = [c for c in ranked if losses[c] <= MARGIN * least][:MOST_CONTENDERS]
    found = {*near, *(race.podium()[0] for race in races.values())}
    names = [strategy.name for strategy in grid.setting.experiment.strategies]
    shipped = [c for c in ranked if any(of_rule(names[c.strategy], rule) for rule in BASELINES)]
    for target in filter(None, races):
        times = {c: grid.time(histories, target) for c, histories in screened.items()}
        for among in (ranked, shipped):
            found |= set(sorted(among, key=lambda c: times[c])[:FASTEST])
    for c in races[None].podium():
        if c.strategy in grid.setting.baselines:
            found |= {c, *[o for o in ranked if o.strategy == c.strategy][:3]}
    return found, losses[ranked[len(near)]] / least


Entrants = dict[tuple[Grid, Candidate], list[sj.History]]
"""Candidates that tuning proposes and rivals that it does not, with their runs on the seeds on which the best is chosen."""


def judge(grid: Grid, races: dict[float | None, Halving], entrants: Entrants) -> dict[str, Any]:
    """What the picks are worth on fresh seeds beside the best of ``entrants``, chosen on other seeds.

    ``races`` has a race for each target, and the one for the final loss at ``None``.
    """
    setting, final = grid.setting, races[None]
    runs = {c: own for (its, c), own in entrants.items() if its is grid}
    pick = final.podium()[0]
    best = best_of(grid, runs)
    best_rates = {
        c: min((o for o in runs if o.strategy == c.strategy), key=lambda o: grid.loss(runs[o]))
        for c in final.podium()
        if c.strategy in setting.baselines
    }
    picks = {target: race.podium()[0] for target, race in races.items() if target is not None}
    shipped = {target: fastest_shipped(entrants, target) for target in picks}
    fastest = {target: grid.fastest(runs, target) for target in picks}
    wanted = {(grid, c) for c in (pick, best, *picks.values(), *fastest.values())}
    wanted |= {(grid, c) for pair in best_rates.items() for c in pair}
    wanted |= {rival for rivals in shipped.values() for rival in rivals.values()}
    judged: Entrants = {}
    for its in dict.fromkeys(its for its, _ in wanted):
        found = its.of(sorted(c for other, c in wanted if other is its), JUDGED)
        judged |= {(its, c): own for c, own in found.items()}
    own, least = judged[grid, pick], judged[grid, best]
    return {
        "pick": grid.label(pick),
        "loss": grid.loss(own),
        "best": grid.label(best),
        "best_loss": grid.loss(least),
        "regret": grid.loss(own) / grid.loss(least) - 1.0,
        "error": standard_error_of_ratio(own, least, float(setting.experiment.time or 0.0)),
        "targets": [
            judge_times(t, (grid, picks[t]), (grid, fastest[t]), shipped[t], judged) for t in picks
        ],
        "by_strategy": by_strategy(setting, runs),
        "baselines": {
            setting.experiment.strategies[c.strategy].name: {
                "rate": c.learning_rate,
                "loss": grid.loss(judged[grid, c]),
                "accuracy": accuracy(judged[grid, c]),
                "best_rate": other.learning_rate,
                "best_loss": grid.loss(judged[grid, other]),
                "best_accuracy": accuracy(judged[grid, other]),
            }
            for c, other in best_rates.items()
        },
    }


def accuracy(runs: Sequence[sj.History]) -> float:
    """The mean final test accuracy."""
    return float(np.mean([history.final_accuracy for history in runs]))


def best_of(grid: Grid, runs: dict[Candidate, list[sj.History]]) -> Candidate:
    """The best candidate: of the best strategies on the seeds of ``runs``, the one of the least loss on further seeds."""
    ranked: dict[int, Candidate] = {}
    for c in sorted(runs, key=lambda c: grid.loss(runs[c])):
        ranked.setdefault(c.strategy, c)
    return best_on_further_seeds(grid, list(ranked.values()))


def best_on_further_seeds(grid: Grid, ranked: Sequence[Candidate]) -> Candidate:
    """Of the first of ``ranked`` the one of the least loss on further seeds."""
    further = grid.of(ranked[:FIELD], FURTHER)
    return min(further, key=lambda c: grid.loss(further[c]))


def standard_error_of_ratio(
    first: Sequence[sj.History], second: Sequence[sj.History], horizon: float
) -> float:
    """The standard error, over seeds, of how many times larger the loss of ``first`` is."""
    pairs = zip(first, second, strict=True)
    ratios = [final_loss(a, horizon) / final_loss(b, horizon) for a, b in pairs]
    return float(Estimate.from_samples(ratios).standard_error)


def at_their_best(result: dict[str, Any]) -> tuple[int, int]:
    """How many baselines are within 2 points of accuracy or 5 % of loss of their best rate, and of how many."""
    rows = result["baselines"].values()
    near = [
        row["accuracy"] >= row["best_accuracy"] - 0.02 or row["loss"] <= 1.05 * row["best_loss"]
        for row in rows
    ]
    return sum(near), len(near)


def by_strategy(
    setting: Setting, runs: dict[Candidate, list[sj.History]]
) -> dict[str, dict[str, float]]:
    """Every strategy at the learning rate that is best with hindsight."""
    horizon = float(setting.experiment.time or 0.0)
    found: dict[str, dict[str, float]] = {}
    for c, histories in runs.items():
        name = setting.experiment.strategies[c.strategy].name
        loss = Estimate.from_samples([final_loss(history, horizon) for history in histories])
        if math.isfinite(loss.mean) and loss.mean < found.get(name, {}).get("loss", math.inf):
            found[name] = {
                "loss": float(loss.mean),
                "error": float(loss.standard_error),
                "accuracy": float(np.mean([h.final_accuracy for h in histories])),
                "learning_rate": c.learning_rate,
            }
    return found


def fastest_shipped(entrants: Entrants, target: float) -> dict[str, tuple[Grid, Candidate]]:
    """Of every rule that frameworks ship the fastest candidate to a target, the fastest rule first."""
    found: dict[str, tuple[Grid, Candidate]] = {}
    times = {(its, c): its.time(runs, target) for (its, c), runs in entrants.items()}
    for its, c in sorted(times, key=lambda entrant: times[entrant]):
        for name in BASELINES:
            if of_rule(its.name(c), name):
                found.setdefault(name, (its, c))
    return found


def judge_times(
    target: float,
    pick: tuple[Grid, Candidate],
    best: tuple[Grid, Candidate],
    rivals: dict[str, tuple[Grid, Candidate]],
    judged: Entrants,
) -> dict[str, Any]:
    """Mean times to a target on the judged seeds, a run that lacks it counting as twice the horizon."""
    times = {one: one[0].time(judged[one], target) for one in (pick, best, *rivals.values())}
    fastest = next(iter(rivals))
    return {
        "target": target,
        "pick": pick[0].label(pick[1]),
        "time": times[pick],
        "best": best[0].label(best[1]),
        "best_time": times[best],
        "shipped": {name: times[rival] for name, rival in rivals.items()},
        "fastest_shipped": fastest,
        "ratio": times[pick] / times[rivals[fastest]],
        "least_ratio": times[best] / times[rivals[fastest]],
    }


def of_rule(strategy: str, rule: str) -> bool:
    """Whether a strategy is a rule as it is shipped, with any buffer size and amount of local work."""
    name, *options = strategy.split(", ")
    return name == rule and all(o.startswith("K = ") or "local steps" in o for o in options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/decisions"))
    parser.add_argument("--work", type=Path, default=Path("runs/decisions"))
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--data", default="small", choices=sorted(HORIZONS))
    parser.add_argument("--tables", action="store_true", help="print the saved results as Markdown")
    parser.add_argument("--rivals", action="store_true", help="with other people's rules")
    parser.add_argument("--edge", action="store_true", help="the edge fleet alone")
    parser.add_argument("--picks", action="store_true", help="pilot runs alone, on saved grids")
    parser.add_argument("--final", action="store_true", help="for the final loss alone")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after this time")
    options = parser.parse_args()
    if options.tables:
        print(*tables(options.out), sep="\n\n")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    if options.edge:
        with using_threads(1):
            result = edge(options, deadline)
        (options.out / "edge.json").write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result, indent=1))
        return 0 if result["time"] <= result["rival_time"] else 1
    results = {}
    if options.picks:
        kept = options.out / PICKS
        results = json.loads(kept.read_text()) if kept.exists() else {}
        for name, path in settings(options.work, "small").items():
            if name not in results and options.only in name:
                with using_threads(1):
                    results[name] = picked(name, path, options, deadline)
                kept.write_text(json.dumps(results, indent=1) + "\n")
        return report(results)
    for name, path in settings(options.work, options.data).items():
        if options.only not in name:
            continue
        saved = options.out / f"{name}.json"
        if not saved.exists():
            try:
                with using_threads(1):
                    result = decided(name, path, options, deadline)
            except OutOfTime:
                print(f"{name}: not finished")
                return UNFINISHED
            saved.write_text(json.dumps(result, indent=1) + "\n")
        results[name] = json.loads(saved.read_text())
    return report(results)


def all_races(
    setting: Setting, folder: Path, options: argparse.Namespace, deadline: float
) -> dict[float | None, Halving]:
    """Successive halving for the final loss, at ``None``, and for each target."""
    links = setting.experiment.fleet.uplink is not None
    races: dict[float | None, Halving] = {
        None: raced(setting, folder / "final", options.jobs, deadline)
    }
    timed = (links or options.data == "digits") and not options.final
    for target in TARGETS if timed else ():
        own = dataclasses.replace(setting, criterion=Criterion("target", target, ACCURACY))
        races[target] = raced(own, folder / f"{target:g}", options.jobs, deadline)
    return races


def decided(name: str, path: Path, options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """The result of one setting; what an earlier call ran of it is read."""
    folder = options.work / name
    setting = read_setting(path)
    links = setting.experiment.fleet.uplink is not None
    races = all_races(setting, folder, options, deadline)
    targets = [target for target in races if target is not None]
    rates: dict[int, set[float]] = {}
    for halving in races.values():
        for i, tried in halving.rates.items():
            rates.setdefault(i, set()).update(tried)
    for i, reserved in setting.reserve.items():  # the whole factorial design
        rates.setdefault(i, set()).update(reserved)
    grid = Grid(setting, folder / "grid", deadline)
    screened = grid.with_edges(rates)
    chosen, left_out = contenders(grid, races, screened)
    runs = grid.of(sorted(chosen), SEEDS)
    entrants: Entrants = {(grid, c): own for c, own in runs.items()}
    found_rivals: dict[Candidate, list[sj.History]] = {}
    text = path.with_suffix(".rivals").read_text()
    if "[[strategy]]" in text and (options.data in ("small", "fresh") or options.rivals):
        rivals = read_setting(path.with_suffix(".rivals"))
        rival_grid = Grid(rivals, folder / "rivals", deadline)
        found = rival_grid.of(rivals.candidates, SCREEN)
        for target in targets:
            times = {c: rival_grid.time(own, target) for c, own in found.items()}
            found_rivals |= rival_grid.of(sorted(times, key=lambda c: times[c])[:FASTEST], SEEDS)
        entrants |= {(rival_grid, c): own for c, own in found_rivals.items()}
    result = judge(grid, races, entrants)
    if found_rivals:
        result["by_strategy"] |= by_strategy(rivals, found_rivals)
    result["candidates"], result["judged"] = len(screened), len(runs)
    result["screened"] = left_out
    gradients = sum(int(own[0].gradients[-1]) for own in screened.values())
    result["cost"] = races[None].gradients / gradients
    result["links"] = links
    result["processor_seconds"] = {
        "pilot runs": spent(folder / "final")["pilot runs"],
        "grid, one seed": grid.seconds(),
    }
    result["provenance"] = provenance(seeds=list(JUDGED), experiment=path.read_text())
    return result


PICKS = "picks.json"
"""What the code chooses as it is, where grids are those of an earlier one."""


def picked(name: str, path: Path, options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """What pilot runs choose now, beside the candidates and rivals that a saved grid has.

    The final loss is judged on fresh seeds. Rates of baselines and times to targets are judged on the seeds of the
    saved grid, since earlier grids do not say which rival was the fastest.
    """
    saved = json.loads((options.out / f"{name}.json").read_text())
    folder, setting = options.work / name, read_setting(path)
    races = all_races(setting, folder, options, deadline)
    final = races[None]
    grid = Grid(setting, folder / "grid", deadline)
    names = [strategy.name for strategy in setting.experiment.strategies]
    by_loss = sorted(saved["by_strategy"].items(), key=lambda item: item[1]["loss"])
    ranked = [Candidate(names.index(n), row["learning_rate"]) for n, row in by_loss if n in names]
    pick, best = final.podium()[0], best_on_further_seeds(grid, ranked)
    fresh = grid.of(dict.fromkeys([pick, best]), JUDGED)
    known = saved["baselines"]
    rows = {c: known[names[c.strategy]] for c in final.podium() if names[c.strategy] in known}
    new = [c for c, row in rows.items() if c.learning_rate not in (row["rate"], row["best_rate"])]
    picks = {target: race.podium()[0] for target, race in races.items() if target is not None}
    seeds = tuple(saved["provenance"]["inputs"]["seeds"])
    runs = grid.of(dict.fromkeys([*picks.values(), *new]), seeds)
    baselines = {}
    for c, row in rows.items():
        at_rate = "best_" if c.learning_rate == row["best_rate"] else ""
        own = {"loss": row[f"{at_rate}loss"], "accuracy": row[f"{at_rate}accuracy"]}
        if c in runs:
            own = {"loss": grid.loss(runs[c]), "accuracy": accuracy(runs[c])}
        at_best = {key: row[key] for key in ("best_rate", "best_loss", "best_accuracy")}
        baselines[names[c.strategy]] = {"rate": c.learning_rate, **own, **at_best}
    targets = []
    for row in saved["targets"]:
        if row["target"] in picks:
            chosen = picks[row["target"]]
            taken = grid.time(runs[chosen], row["target"])
            ratio = taken / min(row["shipped"].values())
            label = grid.label(chosen)
            targets.append({"target": row["target"], "pick": label, "time": taken, "ratio": ratio})
    loss, least = grid.loss(fresh[pick]), grid.loss(fresh[best])
    horizon = float(setting.experiment.time or 0.0)
    return {
        "pick": grid.label(pick),
        "loss": loss,
        "best": grid.label(best),
        "best_loss": least,
        "regret": loss / least - 1.0,
        "error": standard_error_of_ratio(fresh[pick], fresh[best], horizon),
        "baselines": baselines,
        "targets": targets,
        "links": setting.experiment.fleet.uplink is not None,
        "gradients": {f"{target or 'final'}": race.gradients for target, race in races.items()},
        "provenance": provenance(seeds=list(JUDGED), experiment=path.read_text()),
    }


def picks_table(results: dict[str, dict[str, Any]]) -> str:
    """What is chosen now, on fresh seeds, beside the best candidates of saved grids."""
    heads = " | ".join(f"to {target:.0%}" for target in TARGETS)
    lines = [
        f"| setting | choice of `tune` | best candidate | regret | baselines at their best | {heads} |",
        "| --- | --- | --- | --- | --- |" + " --- |" * len(TARGETS),
    ]
    for name, r in results.items():
        near, number = at_their_best(r)
        ratios = [f"{t['ratio']:.2f}" for t in r["targets"]] or ["-" for _ in TARGETS]
        lines.append(
            f"| {name.removeprefix('small-')} | {r['pick']} | {r['best']} | {r['regret']:.1%} ± "
            f"{r['error']:.1%} | {near} of {number} | {' | '.join(ratios)} |"
        )
    return "\n".join(lines)


EXAMINED = 150.0
"""Seconds in which other conditions are tried."""
EDGE = Path(__file__).parents[1] / "experiments" / "edge.toml"


def edge(options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """The pick for the time to 90 % on the edge fleet beside FedBuff with ten local steps, and under other links."""
    target, folder = TARGETS[-1], options.work / "edge"
    setting = read_setting(EDGE, target=target)
    race = raced(setting, folder / "race", options.jobs, deadline)
    pick, *others = race.podium()
    names = [strategy.name for strategy in setting.experiment.strategies]
    asynchronous = next(c for c in [pick, *others] if of_rule(names[c.strategy], "FedAsync"))
    grid = Grid(setting, folder / "grid", deadline)
    runs = grid.of([pick, asynchronous], EDGE_SEEDS)
    folder.mkdir(parents=True, exist_ok=True)
    for file in (EDGE, EDGE.with_suffix(".csv")):
        (folder / file.name).write_text(file.read_text())
    with (folder / EDGE.name).open("a") as file:
        file.write(local_rivals(setting.experiment.fleet.size, (10,), ("FedBuff",)))
    rivals = Grid(read_setting(folder / EDGE.name), folder / "rivals", deadline)
    screened = rivals.of(rivals.setting.candidates, SCREEN)
    fastest = sorted(screened, key=lambda c: rivals.time(screened[c], target))[:4]
    judged = rivals.of(fastest, EDGE_SEEDS)
    best = min(judged, key=lambda c: rivals.time(judged[c], target))
    horizon = float(setting.experiment.time or 0.0)
    until = time.monotonic() + EXAMINED  # link times come first
    examined = examine(setting, [pick, others[0]], LocalEngine(options.jobs), horizon, until)
    rival = rivals.setting.experiment.strategies[best.strategy].name
    return {
        "pick": f"{names[pick.strategy]} at {pick.learning_rate:g}",
        "time": grid.time(runs[pick], target),
        "rival": f"{rival} at {best.learning_rate:g}",
        "rival_time": rivals.time(judged[best], target),
        "rivals": {
            f"{rivals.setting.experiment.strategies[c.strategy].name} at {c.learning_rate:g}": [
                rivals.time([run], target) for run in judged[c]
            ]
            for c in judged
        },
        "times": [grid.time([run], target) for run in runs[pick]],
        "fedasync": f"{names[asynchronous.strategy]} at {asynchronous.learning_rate:g}",
        "fedasync_accuracy": float(np.mean([h.final_accuracy for h in runs[asynchronous]])),
        "verdict": examined.sentence(pick),
        "processor_seconds": spent(folder / "race"),
        "provenance": provenance(seeds=list(EDGE_SEEDS), experiment=EDGE.read_text()),
    }


def tables(folder: Path) -> tuple[str, ...]:
    """The saved results, as Markdown: the decisions, and all rules in the settings run with rivals."""
    paths = (path for path in sorted(folder.glob("*-*.json")))
    results = {path.stem: json.loads(path.read_text()) for path in paths}
    small = {name: r for name, r in results.items() if name.startswith(("small-", "fresh-"))}
    others = {name: r for name, r in results.items() if name not in small}
    found = [decision_table(others), rule_table(others)]
    if small:
        found.insert(0, small_table(small))
    if (folder / PICKS).exists():
        found.append(picks_table(json.loads((folder / PICKS).read_text())))
    return tuple(found)


def small_table(results: dict[str, dict[str, Any]]) -> str:
    """Settings with the whole factorial design."""
    heads = " | ".join(f"to {target:.0%}" for target in TARGETS)
    lines = [
        "| setting | choice of `tune` | best with hindsight | regret | processor | "
        f"baselines at their best | {heads} |",
        "| --- | --- | --- | --- | --- | --- |" + " --- |" * len(TARGETS),
    ]
    for name, r in results.items():
        near, number = at_their_best(r)
        ratios = " | ".join(f"{t['ratio']:.2f}" for t in r["targets"]) or " | ".join(
            "-" for _ in TARGETS
        )
        lines.append(
            f"| {name.removeprefix('small-')} | {r['pick']} | {r['best']} | {r['regret']:.1%} ± "
            f"{r['error']:.1%} | {processor_share(r):.0%} | "
            f"{near} of {number} | {ratios} |"
        )
    return "\n".join(lines)


def processor_share(result: dict[str, Any]) -> float:
    """The processor time of pilot runs, relative to the grid on one seed."""
    seconds = result["processor_seconds"]
    return float(seconds["pilot runs"] / seconds["grid, one seed"])


def decision_table(results: dict[str, dict[str, Any]]) -> str:
    heads = " | ".join(f"to {target:.0%}" for target in TARGETS)
    lines = [
        f"| setting | choice of `tune` | best with hindsight | regret | cost | {heads} |",
        "| --- | --- | --- | --- | --- |" + " --- |" * len(TARGETS),
    ]
    for name, r in results.items():
        ratios = " | ".join(f"{t['ratio']:.2f}" for t in r["targets"]) or " | ".join(
            "-" for _ in TARGETS
        )
        lines.append(
            f"| {name} | {r['pick']} | {r['best']} | {r['regret']:.1%} | {r['cost']:.0%} | {ratios} |"
        )
    return "\n".join(lines)


def rule_table(results: dict[str, dict[str, Any]]) -> str:
    rivals = [line[8:-1] for line in RIVALS.splitlines() if line.startswith("name = ")]
    wanted = {
        name: r["by_strategy"] for name, r in results.items() if rivals[0] in r["by_strategy"]
    }
    least = {name: min(row["loss"] for row in rows.values()) for name, rows in wanted.items()}

    def cell(name: str, strategy: str) -> str:
        row = wanted[name].get(strategy)
        if row is None:
            return "diverged"
        text = f"{row['loss']:.3f} ± {row['error']:.3f} ({row['accuracy']:.1%})"
        return f"**{text}**" if row["loss"] == least[name] else text

    strategies = list(dict.fromkeys(s for rows in wanted.values() for s in rows))
    lines = [
        "| | " + " | ".join(wanted) + " |",
        "| --- |" + " --- |" * len(wanted),
        *(f"| {s} | " + " | ".join(cell(name, s) for name in wanted) + " |" for s in strategies),
    ]
    return "\n".join(lines)


def report(results: dict[str, dict[str, Any]]) -> int:
    """Print what was found, and whether it is as good as it should be."""
    first = next(iter(results.values()))
    table = small_table if "processor_seconds" in first else decision_table
    print((table if "cost" in first else picks_table)(results))
    regrets = [r["regret"] for r in results.values()]
    checks = {
        f"mean regret {np.mean(regrets):.1%} (at most {MOST_MEAN:.0%})": np.mean(regrets)
        <= MOST_MEAN,
        f"worst regret {max(regrets):.1%} (at most {MOST_WORST:.0%})": max(regrets) <= MOST_WORST,
    }
    costs = [processor_share(r) for r in results.values() if "processor_seconds" in r]
    if costs:
        text = f"largest processor time {max(costs):.0%} of the grid (at most {MOST_COST:.0%})"
        checks[text] = max(costs) <= MOST_COST
    near = [at_their_best(r) for r in results.values() if r.get("baselines")]
    if near:
        text = f"{sum(a for a, _ in near)} of {sum(b for _, b in near)} baselines at their best"
        checks[text] = all(a == b for a, b in near)
    for place, target in enumerate(TARGETS):
        linked = [r["targets"][place] for r in results.values() if r["targets"] and r.get("links")]
        if not linked:
            continue
        ratios = [found["ratio"] for found in linked]
        fast = sum(ratio <= FAST for ratio in ratios)
        checks |= {
            f"with links, time to {target:.0%} at most {FAST:g} times the best rival's in {fast} of "
            f"{len(ratios)}": fast >= len(ratios) / 2,
            f"and never more than {SLOWEST:g} times: largest {max(ratios):.2f}": max(ratios)
            <= SLOWEST,
        }
    for text, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {text}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
