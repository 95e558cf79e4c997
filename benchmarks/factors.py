"""What is each factor worth? Policy, rule, weighting, optimiser, averaging and local work, crossed.

    python benchmarks/factors.py [--only NAME] [--work runs/factors]
    python benchmarks/factors.py --tables

Every rule gets every option. Under the policy never-queue: three rules x two weightings x three server optimisers
x averaging or not x two amounts of local work. The same rules, weightings and optimisers with random routing show
what the policy is worth; FedAvg has the options that it can have. Learning rates are tuned at
equal effort for the mean loss over time: four rates a factor of four apart, then those next to the
best, then beyond an edge as long as the best lies there, on a pilot seed and held-out samples. The chosen ones run on
fresh seeds and are judged on the test set. Runs are saved as they finish, and the command goes on
where it was stopped. ``sojourn compare runs/factors/NAME/results --factors`` reads what it writes.
"""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sojourn as sj
from sojourn._support.configuration import Table
from sojourn._support.estimate import Estimate
from sojourn._support.provenance import provenance
from sojourn.runs.factors import Effect, effects_on, levels_of
from sojourn.training.experiment.build import build_problem, validation_problem
from sojourn.training.experiment.calibrate import curvature
from sojourn.training.experiment.experiment import Experiment, experiment_from_table
from sojourn.training.experiment.jobs import schedule_of, using_threads
from sojourn.training.experiment.run import write_results
from sojourn.training.problem.gradients import stacks_well
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.learning_rates import FACTOR, rounded
from sojourn.tuning.pilots import group_key
from sojourn.tuning.portfolio import AVERAGE, CAP, LOCAL_STEP
from sojourn.tuning.setting import proposed_rates

RESULTS = Path(__file__).parent / "results" / "factors"
PILOT_SEED = 1000
SEEDS = (100, 101, 102, 103, 104)
STACK = 48
"""Runs that are computed together: more take memory and are not faster."""
MOST_EDGES = 4
"""How often the range of learning rates is extended."""
CRITERION = Criterion("area")
"""What learning rates are chosen for: the mean loss over time."""
EVALUATIONS = 24
COLUMNS = ("loss", "time")


@dataclasses.dataclass(frozen=True)
class Place:
    """A fleet, its data and how long runs last. ``steps`` is the local work to compare with one step."""

    rates: tuple[float, ...]
    counts: tuple[int, ...]
    partition: str
    time: float
    target: float
    steps: int
    downlink: tuple[float, ...] | None = None
    uplink: tuple[float, ...] | None = None

    def fleet(self) -> sj.Fleet:
        links = {} if self.downlink is None else {"downlink": self.downlink, "uplink": self.uplink}
        return sj.Fleet(self.rates, counts=self.counts, **links)


CLUSTERS: dict[str, Any] = {"rates": (0.01, 0.1, 1.0), "counts": (5, 5, 5)}
EDGE: dict[str, Any] = {
    "rates": (2.0, 5.0, 10.0, 20.0, 50.0),
    "counts": (8,) * 5,
    "downlink": (4.0, 3.5, 3.0, 2.5, 2.0),
    "uplink": (8.0, 7.0, 6.0, 5.0, 4.0),
}
OFFICE: dict[str, Any] = {
    "rates": (0.3, 1.0, 3.0),
    "counts": (10, 10, 10),
    "downlink": (2.0,) * 3,
    "uplink": (3.0,) * 3,
}
PLACES = {
    "no-links-dirichlet": Place(
        **CLUSTERS, partition="dirichlet(0.5)", time=240.0, target=0.9, steps=5
    ),
    "links-dirichlet": Place(**EDGE, partition="dirichlet(0.5)", time=80.0, target=0.8, steps=10),
    "no-links-by-speed": Place(
        **CLUSTERS, partition="by-speed(1)", time=240.0, target=0.6, steps=5
    ),
    "links-by-speed": Place(**OFFICE, partition="by-speed(1)", time=150.0, target=0.8, steps=5),
}
"""Settings in the order in which they are run."""

RULES: Mapping[str, Mapping[str, Any]] = {
    "async-sgd": {"name": "async-sgd"},
    "fedbuff": {"name": "fedbuff", "buffer-size": 5},
    "fedasync": {"name": "fedasync"},
}
WEIGHTINGS: Mapping[str, Mapping[str, Any]] = {"": {}, "capped": {"debias": 1.0, "cap": CAP}}
OPTIMISERS: Mapping[str, Mapping[str, Any]] = {
    "": {"name": "plain"},
    "momentum": {"name": "momentum", "beta": 0.9},
    "adam": {"name": "adam", "beta1": 0.0, "beta2": 0.99},
}
AVERAGES: Mapping[str, Mapping[str, Any]] = {"": {}, "averaged": {"average": AVERAGE}}


def strategies(place: Place, bend: float) -> list[dict[str, Any]]:
    """A table per strategy; ``bend`` is the curvature, which clients' learning rates are chosen by."""
    local_rate = rounded(LOCAL_STEP / bend)

    def table(
        rule: str, weighting: str, optimiser: str, average: str, steps: int
    ) -> dict[str, Any]:
        server = {**OPTIMISERS[optimiser], **AVERAGES[average]}
        table = {**RULES[rule], **WEIGHTINGS[weighting], "server": server, "local-steps": steps}
        if rule == "async-sgd" and steps > 1:
            table["local-learning-rate"] = local_rate
        if rule != "async-sgd" and optimiser == "adam":
            # Adaptive steps do not depend on the size of differences: the server's rate is tuned.
            table |= {"server-learning-rate": "run", "local-learning-rate": local_rate}
        return table

    found = []
    work = (1, place.steps)
    for options in itertools.product(RULES, WEIGHTINGS, OPTIMISERS, AVERAGES, work):
        name = named("never-queue", *options)
        found.append({"name": name, "policy": "never-queue", "rule": table(*options)})
    for options in itertools.product(RULES, WEIGHTINGS, ("", "adam"), ("",), (1,)):
        routed = {"policy": "routed", "routing": "uniform", "rule": table(*options)}
        found.append({"name": named("routed", *options), **routed})
    cohort = max(1, sum(place.counts) // 3)
    for average, steps in itertools.product(AVERAGES, work):
        server = {"name": "plain", **AVERAGES[average]}
        rule = {"name": "fedavg", "server": server, "local-steps": steps}
        name = named("synchronous", "fedavg", "", "", average, steps)
        found.append({"name": name, "concurrency": cohort, "rule": rule})
    return found


def named(*parts: str | int) -> str:
    *words, steps = parts
    text = [str(word) for word in words if word]
    return ", ".join([*text, f"{steps} steps"] if steps != 1 else text)


def experiment_of(place: Place, folder: Path) -> tuple[Experiment, float]:
    """The experiment of a setting and the curvature of its problem."""
    folder.mkdir(parents=True, exist_ok=True)
    place.fleet().to_csv(folder / "fleet.csv")
    table = {
        **{"fleet": "fleet.csv", "data": "digits", "model": "mlp"},
        **{"partition": place.partition, "time": place.time, "paired": True},
        **{"seeds": list(SEEDS), "targets": [place.target]},
    }
    bare = experiment_from_table(Table(dict(table), "factors"), folder, to_tune=True)
    problem = build_problem(bare, PILOT_SEED)
    bend = curvature(problem, problem.initial_weights(), seed=PILOT_SEED)
    table["strategy"] = strategies(place, bend)
    experiment = experiment_from_table(Table(table, "factors"), folder, to_tune=True)
    return dataclasses.replace(experiment, threads=1), bend


Runs = dict[tuple[int, float], sj.History]
"""Histories of one seed by strategy and learning rate."""


def run(
    experiment: Experiment, wanted: Iterable[tuple[int, float]], seed: int, path: Path, pilot: bool
) -> Runs:
    """The histories of ``wanted``, from ``path`` where they are there, else run now and added to it."""
    numbers = {strategy.name: i for i, strategy in enumerate(experiment.strategies)}
    path.mkdir(parents=True, exist_ok=True)
    found: Runs = {
        (numbers[history.strategy], history.learning_rate): history
        for file in sorted(path.glob("*.jsonl"))
        for history in sj.History.read(file)
    }
    groups: dict[Any, list[tuple[int, float]]] = {}
    for i, rate in dict.fromkeys(wanted):
        if (i, rate) not in found:
            groups.setdefault(group_key(experiment.strategies[i]), []).append((i, rate))
    problem = (validation_problem if pilot else build_problem)(experiment, seed)
    together = stacks_well(problem)
    times = (np.arange(EVALUATIONS + 1) / EVALUATIONS) ** 2 * float(experiment.time or 0.0)
    for members in groups.values():
        strategy = experiment.strategies[members[0][0]]
        schedule = schedule_of(experiment, strategy, seed)
        for chunk in (members[i : i + STACK] for i in range(0, len(members), STACK)):
            replays = [
                Replay(
                    schedule,
                    problem,
                    experiment.strategies[i].rule,
                    learning_rate=rate,
                    seed=seed,
                    evaluate_at=times,
                    refine=not pilot,
                )
                for i, rate in chunk
            ]
            places = [replay.beginning(together) for replay in replays]
            Stack(replays).run(places, batched=together)
            new = {
                (i, rate): replay.history(place, experiment.strategies[i].name, {})
                for (i, rate), replay, place in zip(chunk, replays, places, strict=True)
            }
            sj.History.write(path / f"{len(list(path.glob('*.jsonl'))):04}.jsonl", new.values())
            found |= new
    return found


def tuned(experiment: Experiment, bend: float, folder: Path) -> list[float]:
    """The learning rate of every strategy."""
    horizon = float(experiment.time or 0.0)
    rates = [set(proposed_rates(strategy, bend)[::2]) for strategy in experiment.strategies]
    best: list[float] = []
    for _ in range(MOST_EDGES + 1):
        wanted = [(i, rate) for i, own in enumerate(rates) for rate in sorted(own)]
        runs = run(experiment, wanted, PILOT_SEED, folder, pilot=True)
        scores = {key: CRITERION.score(history, horizon) for key, history in runs.items()}
        before, best = (
            best,
            [min(own, key=lambda rate: scores[i, rate]) for i, own in enumerate(rates)],
        )
        if best == before:
            break
        for own, rate in zip(rates, best, strict=True):
            own |= {near(own, rate, 1), near(own, rate, -1)}
    return best


def near(rates: Iterable[float], rate: float, direction: int) -> float:
    """The rate a factor of two away, as it is written among ``rates`` if it is there."""
    wanted = rate * FACTOR**direction
    there = [other for other in rates if 0.9 < other / wanted < 1.1]
    return there[0] if there else rounded(wanted)


def measure(name: str, work: Path) -> dict[str, Any]:
    """Run a setting, write its run folder, and return what is saved of it."""
    place = PLACES[name]
    experiment, bend = experiment_of(place, work / name)
    rates = tuned(experiment, bend, work / name / "pilots")
    by_seed = [
        run(experiment, enumerate(rates), seed, work / name / f"seed-{seed}", pilot=False)
        for seed in SEEDS
    ]
    histories = [[runs[chosen] for runs in by_seed] for chosen in enumerate(rates)]
    summary = write_results(experiment, work / name / "results", rates, histories)
    return {
        "provenance": provenance(
            place=dataclasses.asdict(place), pilot_seed=PILOT_SEED, seeds=list(SEEDS)
        ),
        "target": place.target,
        "strategies": {
            entry["name"]: {
                "levels": levels_of(entry),
                "rate": rate,
                **numbers(own, place.target),
            }
            for entry, rate, own in zip(summary["strategies"], rates, histories, strict=True)
        },
    }


def numbers(runs: Sequence[sj.History], target: float) -> dict[str, list[float | None]]:
    """Of every seed the final loss and accuracy (none if it diverged) and the time to the target."""
    ended = [run.diverged_at is None for run in runs]
    times = [run.time_to(target) for run in runs]
    return {
        "loss": [
            float(f"{run.test_loss[-1]:.5g}") if ok else None
            for run, ok in zip(runs, ended, strict=True)
        ],
        "accuracy": [
            float(f"{run.final_accuracy:.4g}") if ok else None
            for run, ok in zip(runs, ended, strict=True)
        ],
        "time": [float(f"{t:.5g}") if math.isfinite(t) else None for t in times],
    }


def values_of(result: Mapping[str, Any], column: str) -> dict[str, dict[int, float]]:
    """Final losses, or times to the target: one that diverged has the worst, one too slow the end."""
    rows = {name: entry[column] for name, entry in result["strategies"].items()}
    finite = [value for row in rows.values() for value in row if value is not None]
    horizon = float(result["provenance"]["inputs"]["place"]["time"])
    worst = max(finite) if column == "loss" else horizon
    return {
        name: {
            seed: worst if value is None else value for seed, value in zip(SEEDS, row, strict=True)
        }
        for name, row in rows.items()
    }


def effects(result: Mapping[str, Any], column: str) -> list[Effect]:
    levels = {name: entry["levels"] for name, entry in result["strategies"].items()}
    return effects_on(values_of(result, column), levels, ratio=True)


def shown(effect: Effect) -> str:
    text = f"{effect.value:.2f} ({effect.low:.2f} to {effect.high:.2f})"
    return f"**{text}**" if effect.significant else text


def factor_table(results: Mapping[str, Mapping[str, Any]], column: str) -> str:
    """The ratio that each level makes, with every setting a column; significant ones are bold."""
    found = {name: effects(result, column) for name, result in results.items()}
    rows = dict.fromkeys((e.factor, e.level, e.reference) for own in found.values() for e in own)
    local = [row for row in rows if row[0] == "local steps"]
    lines = [
        "| factor | instead of | " + " | ".join(results) + " |",
        "| --- | --- |" + " --- |" * len(results),
    ]
    for row in [row for row in rows if row not in local]:
        cells = [
            next((shown(e) for e in own if (e.factor, e.level, e.reference) == row), "")
            for own in found.values()
        ]
        lines.append(f"| {row[0]}: {row[1]} | {row[2]} | " + " | ".join(cells) + " |")
    cells = [
        next((f"{e.level} steps: {shown(e)}" for e in own if e.factor == "local steps"), "")
        for own in found.values()
    ]
    lines.append("| local steps | 1 | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rule_table(results: Mapping[str, Mapping[str, Any]], column: str) -> str:
    """Every rule under either policy with its best options, chosen with hindsight for all alike."""
    groups = ("async-sgd", "fedbuff", "fedasync", "fedavg")
    lines = ["| | " + " | ".join(results) + " |", "| --- |" + " --- |" * len(results)]
    for policy, rule in itertools.product(("never-queue", "routed", "synchronous"), groups):
        cells = []
        for result in results.values():
            values = values_of(result, column)
            mine = {
                name: Estimate.from_samples(list(values[name].values()))
                for name, entry in result["strategies"].items()
                if (entry["levels"]["policy"], entry["levels"]["rule"]) == (policy, rule)
            }
            if mine:
                best = min(mine, key=lambda name: mine[name].mean)
                options = best.removeprefix(f"{policy}, ").removeprefix(rule).removeprefix(", ")
                cells.append(f"{mine[best]:.2g} ({options or 'plain'})")
        if cells:
            lines.append(f"| {rule}, {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


README_ROWS = {
    ("policy", "routed"): "random routing instead of never-queue",
    ("local steps", ""): "5 or 10 local steps instead of one",
    ("rule", "fedbuff"): "FedBuff instead of asynchronous SGD",
    ("rule", "fedasync"): "FedAsync instead of asynchronous SGD",
    ("optimiser", "adam"): "adaptive server steps instead of plain",
    ("averaging", "averaged"): "mean of the last versions instead of the last one",
    ("weighting", "debias 1, cap 5"): "debiased, capped weights instead of plain",
}


def readme_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The ratios of final losses, in the words of README."""
    heads = [name.replace("no-links", "no links").replace("-by", ", by") for name in results]
    heads = [
        head.replace("-dirichlet", ", Dirichlet").replace("by-speed", "by speed") for head in heads
    ]
    lines = [
        "| final test loss is multiplied by | " + " | ".join(heads) + " |",
        "| --- |" + " --- |" * len(results),
    ]
    found = [effects(result, "loss") for result in results.values()]
    for (factor, level), words in README_ROWS.items():
        cells = []
        for own in found:
            (effect,) = (e for e in own if e.factor == factor and e.level.startswith(level))
            text = f"{effect.value:.2f}"
            cells.append(f"**{text}**" if effect.significant else text)
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read_results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """What is saved of every setting that was run."""
    return {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in PLACES
        if (folder / f"{name}.json").exists()
    }


def tables(folder: Path = RESULTS) -> list[str]:
    """The saved results as Markdown: effects on loss and time, and the best of every rule."""
    results = read_results(folder)
    return [make(results, column) for make in (factor_table, rule_table) for column in COLUMNS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs/factors"))
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--tables", action="store_true", help="print the saved results as Markdown")
    options = parser.parse_args()
    if options.tables:
        print(*tables(options.out), readme_table(read_results(options.out)), sep="\n\n")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    for name in PLACES:
        kept = options.out / f"{name}.json"
        if options.only in name and not kept.exists():
            with using_threads(1):
                result = measure(name, options.work)
            kept.write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")
            print(f"{name} is saved", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
