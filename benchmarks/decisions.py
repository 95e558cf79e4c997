"""Does the tuned pick win? Its regret against the best of an exhaustive grid, over a dozen settings.

    python benchmarks/decisions.py [--data digits] [--only NAME] [--rivals] [--jobs 1]
    python benchmarks/decisions.py --races-only [--data digits] [--only NAME]
    python benchmarks/decisions.py --tables

For every setting (data x fleet x law) the candidates of `sojourn tune` are raced on pilots, and then all of
them are run to the end on three fresh seeds and judged on the test set: the grid that the race saves. The
regret of the pick is its mean test loss over the least mean test loss of any candidate, chosen with
hindsight, less one. Its time to a target is compared with the best learning rate, again with hindsight, of
every rule that federated-learning frameworks ship (time to a target: both are chosen for it). Finished
settings are kept in the folder and not run again; --tables prints them as the documentation has them.
Learning rates are those of the race, those added beyond an edge included. After a change of the race
--races-only runs it anew, and of the grid only its picks: the rest is as it was kept.
"""

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

import sojourn as sj
from sojourn.estimate import Estimate
from sojourn.progress import Silent
from sojourn.train.experiment.build import build_problem
from sojourn.train.experiment.cells import schedule_of, using_threads
from sojourn.train.experiment.engines import LocalEngine
from sojourn.train.replay.gradients import stacks_well
from sojourn.train.replay.loop import Replay
from sojourn.train.replay.replay import Lockstep
from sojourn.tuning.criteria import Criterion, crossing
from sojourn.tuning.heats import Heats, Race
from sojourn.tuning.pilots import evaluation_times, group_key
from sojourn.tuning.portfolio import BASELINES
from sojourn.tuning.race import SPREAD_OF_SCORE, Candidate
from sojourn.tuning.setting import Setting, read_setting

SEEDS = (100, 101, 102)
TARGETS = (0.8, 0.9)
"""Test accuracies whose times are compared, on the digits; an evaluation on 10,000 images costs more than it tells."""
DATA = ("homogeneous", "dirichlet(0.5)", "by-speed(1)")
ALSO = (("labels(2)", "three-clusters", "exponential"),)
"""Settings besides data x fleet x law."""
FLEETS = ("three-clusters", "lognormal")
HORIZONS = {"digits": (500.0, 60.0), "fashion-mnist": (300.0, 40.0), "kmnist": (300.0, 40.0)}
"""How long runs last on each fleet: some 5 500 and 3 000 rounds on the digits, 1 100 and 1 000 elsewhere."""
LEARNT = {
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


def lognormal_fleet() -> sj.Fleet:
    """Thirty clients whose speeds are log-normal with sigma 1."""
    return sj.Fleet(np.exp(np.random.default_rng(7).normal(0.0, 1.0, 30)))


def settings(folder: Path, source_of_data: str) -> dict[str, Path]:
    """An experiment file for every setting."""
    folder.mkdir(parents=True, exist_ok=True)
    lognormal_fleet().to_csv(folder / "lognormal.csv")
    cases = [
        (data, fleet, law) for data in DATA for fleet in FLEETS for law in LAWS[source_of_data]
    ]
    found = {}
    images, model = LEARNT[source_of_data]
    horizon = dict(zip(FLEETS, HORIZONS[source_of_data], strict=True))
    for data, fleet, law in (*cases, *(ALSO if source_of_data == "digits" else ())):
        name = f"{source_of_data}-{data.split('(')[0]}-{fleet}-{law}"
        path = folder / f"{name}.toml"
        source = fleet if fleet in ("three-clusters",) else f"{fleet}.csv"
        text = (
            f'fleet = "{source}"\ndata = "{images}"\npartition = "{data}"\nmodel = "{model}"\n'
            f'law = "{law}"\ntime = {horizon[fleet]:g}\n'
        )
        path.write_text(text)
        path.with_suffix(".rivals").write_text(text + RIVALS)
        found[name] = path
    return found


def raced(setting: Setting, folder: Path, jobs: int) -> Race:
    folder.mkdir(parents=True, exist_ok=True)
    return Heats(setting, folder, LocalEngine(jobs), Silent()).run()


def exhaustive(
    setting: Setting, rates: dict[int, set[float]], folder: Path, criterion: Criterion
) -> dict[Candidate, list[sj.History]]:
    """Every candidate to the end on fresh seeds, judged on the test set where ``criterion`` looks.

    Kept in ``folder``.
    """
    experiment = setting.experiment
    folder.mkdir(parents=True, exist_ok=True)
    histories = kept_runs(setting, rates, folder)
    groups: dict[Any, list[Candidate]] = {}
    for i, own in rates.items():
        for rate in sorted(own):
            if Candidate(i, rate) in histories:
                continue
            key = group_key(experiment.strategies[i])
            groups.setdefault(key, []).append(Candidate(i, rate))
    for seed in SEEDS:
        problem = build_problem(experiment, seed)
        together = stacks_well(problem)
        for members in groups.values():
            strategy = experiment.strategies[members[0].strategy]
            schedule = schedule_of(experiment, strategy, seed, time=experiment.time)
            runs = []
            for c in members:
                rule = experiment.strategies[c.strategy].rule
                run = Replay(schedule, problem, rule, learning_rate=c.learning_rate, seed=seed)
                run.evaluate(at=evaluation_times(experiment, schedule, criterion))
                runs.append(run)
            places = [run.beginning(together) for run in runs]
            Lockstep(runs).run(places, batched=together)
            for c, run, place in zip(members, runs, places, strict=True):
                histories.setdefault(c, []).append(
                    run.history(place, experiment.strategies[c.strategy].name, {})
                )
    sj.History.write(folder / "grid.jsonl", [run for runs in histories.values() for run in runs])
    return histories


def kept_runs(
    setting: Setting, rates: dict[int, set[float]], folder: Path
) -> dict[Candidate, list[sj.History]]:
    """What an earlier run of this script has of the grid."""
    names = [strategy.name for strategy in setting.experiment.strategies]
    path = folder / "grid.jsonl"
    found: dict[Candidate, list[sj.History]] = {}
    for run in sj.History.read(path) if path.exists() else []:
        candidate = Candidate(names.index(run.strategy), run.learning_rate)
        if candidate.learning_rate in rates[candidate.strategy]:
            found.setdefault(candidate, []).append(run)
    return {c: runs for c, runs in found.items() if len(runs) == len(SEEDS)}


def judge(
    setting: Setting,
    final: Race,
    timed: dict[float, Race],
    runs: dict[Candidate, list[sj.History]],
) -> dict[str, Any]:
    names = [strategy.name for strategy in setting.experiment.strategies]
    horizon = float(setting.experiment.time or 0.0)
    loss = Criterion("final")
    scores = {
        c: float(np.mean([loss.score(h, horizon, SPREAD_OF_SCORE) for h in histories]))
        for c, histories in runs.items()
    }
    pick = final.podium()[0]
    best = min(scores, key=lambda c: scores[c])
    rounds = {c: sum(int(h.round[-1]) for h in runs[c]) / len(SEEDS) for c in runs}
    return {
        "pick": f"{names[pick.strategy]} at {pick.learning_rate:g}",
        "loss": scores[pick],
        "best": f"{names[best.strategy]} at {best.learning_rate:g}",
        "best_loss": scores[best],
        "regret": scores[pick] / scores[best] - 1.0,
        "cost": final.gradients / sum(rounds.values()),
        "candidates": len(runs),
        "targets": [
            judge_times(names, target, race.podium()[0], runs, horizon)
            for target, race in timed.items()
        ],
        "by_strategy": by_strategy(setting, runs),
    }


def raced_anew(
    setting: Setting,
    final: Race,
    timed: dict[float, Race],
    folder: Path,
    before: dict[str, Any],
) -> dict[str, Any]:
    """What was kept ``before`` of a setting, with the picks of other races."""
    names = [strategy.name for strategy in setting.experiment.strategies]
    horizon = float(setting.experiment.time or 0.0)
    pick = final.podium()[0]
    rates: dict[int, set[float]] = {}
    for c in (pick, *(race.podium()[0] for race in timed.values())):
        rates.setdefault(c.strategy, set()).add(c.learning_rate)
    runs = exhaustive(setting, rates, folder, Criterion("area" if timed else "final"))
    loss = float(
        np.mean([Criterion("final").score(h, horizon, SPREAD_OF_SCORE) for h in runs[pick]])
    )
    label = f"{names[pick.strategy]} at {pick.learning_rate:g}"
    ahead = loss < before["best_loss"]
    best_loss = loss if ahead else before["best_loss"]
    targets = []
    for old, (target, race) in zip(before["targets"], timed.items(), strict=True):
        mine = judge_times(names, target, race.podium()[0], runs, horizon)
        fastest = old["shipped"][old["fastest_shipped"]]
        found = {"pick": mine["pick"], "time": mine["time"], "ratio": mine["time"] / fastest}
        targets.append({**old, **found})
    return {
        **before,
        "pick": label,
        "loss": loss,
        "best": label if ahead else before["best"],
        "best_loss": best_loss,
        "regret": loss / best_loss - 1.0,
        "cost": final.gradients / whole_grid(setting, final),
        "targets": targets,
    }


def whole_grid(setting: Setting, race: Race) -> float:
    """The gradients of running every candidate of a race to the end once."""
    experiment, rounds = setting.experiment, {}
    for strategy in experiment.strategies:
        key = group_key(strategy)
        if key not in rounds:
            schedules = [schedule_of(experiment, strategy, s, time=experiment.time) for s in SEEDS]
            rounds[key] = np.mean([schedule.rounds for schedule in schedules])
    return float(
        sum(len(own) * rounds[group_key(experiment.strategies[i])] for i, own in race.rates.items())
    )


def by_strategy(
    setting: Setting, runs: dict[Candidate, list[sj.History]]
) -> dict[str, dict[str, float]]:
    """Every strategy at the learning rate that is best with hindsight."""
    horizon = float(setting.experiment.time or 0.0)
    found: dict[str, dict[str, float]] = {}
    for c, histories in runs.items():
        name = setting.experiment.strategies[c.strategy].name
        loss = Estimate.from_samples(
            [Criterion("final").score(h, horizon, SPREAD_OF_SCORE) for h in histories]
        )
        if math.isfinite(loss.mean) and loss.mean < found.get(name, {}).get("loss", math.inf):
            found[name] = {
                "loss": float(loss.mean),
                "error": float(loss.standard_error),
                "accuracy": float(np.mean([h.final_accuracy for h in histories])),
                "learning_rate": c.learning_rate,
            }
    return found


def judge_times(
    names: list[str],
    target: float,
    pick: Candidate,
    runs: dict[Candidate, list[sj.History]],
    horizon: float,
) -> dict[str, Any]:
    """Mean times to a target, a run that lacks it counting as twice the horizon."""
    times = {
        c: float(np.mean([min(crossing(h, target), 2 * horizon) for h in histories]))
        for c, histories in runs.items()
    }
    shipped = {
        name: min((times[c] for c in runs if names[c.strategy] == name), default=2 * horizon)
        for name in BASELINES
    }
    fastest = min(shipped, key=lambda name: shipped[name])
    best = min(times, key=lambda c: times[c])
    return {
        "target": target,
        "pick": f"{names[pick.strategy]} at {pick.learning_rate:g}",
        "time": times[pick],
        "best": f"{names[best.strategy]} at {best.learning_rate:g}",
        "best_time": times[best],
        "shipped": shipped,
        "fastest_shipped": fastest,
        "ratio": times[pick] / shipped[fastest],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/decisions"))
    parser.add_argument("--work", type=Path, default=Path("runs/decisions"))
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--data", default="digits", choices=sorted(HORIZONS))
    parser.add_argument("--tables", action="store_true", help="print what is kept as Markdown")
    parser.add_argument("--rivals", action="store_true", help="with other people's rules")
    parser.add_argument("--races-only", action="store_true", help="race anew, keep the grid")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.tables:
        print(*tables(options.out), sep="\n\n")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    targets = TARGETS if options.data == "digits" else ()
    results = {}
    for name, path in settings(options.work, options.data).items():
        if options.only not in name:
            continue
        kept = options.out / f"{name}.json"
        if options.races_only or not kept.exists():
            begun = time.monotonic()
            with using_threads(1):
                setting = read_setting(path)
                final = raced(setting, options.work / f"{name}-final", options.jobs)
                timed = {
                    target: raced(
                        dataclasses.replace(setting, criterion=Criterion("target", target)),
                        options.work / f"{name}-{target:g}",
                        options.jobs,
                    )
                    for target in targets
                }
                if options.races_only:
                    folder, before = options.work / f"{name}-picks", json.loads(kept.read_text())
                    anew = raced_anew(setting, final, timed, folder, before)
                    kept.write_text(json.dumps(anew, indent=1) + "\n")
                    results[name] = anew
                    continue
                races = [final, *timed.values()]
                rates = {i: {rate for race in races for rate in race.rates[i]} for i in final.rates}
                looked = Criterion("area" if targets else "final")
                runs = exhaustive(setting, rates, options.work / f"{name}-final", looked)
                result = judge(setting, final, timed, runs)
                if options.rivals:
                    others = read_setting(path.with_suffix(".rivals"))
                    own = {i: set(rates) for i, rates in others.rates.items()}
                    found = exhaustive(others, own, options.work / f"{name}-rivals", looked)
                    result["by_strategy"] |= by_strategy(others, found)
            kept.write_text(json.dumps(result, indent=1) + "\n")
            print(f"{name}: {time.monotonic() - begun:.0f} s")
        results[name] = json.loads(kept.read_text())
    return report(results)


def tables(folder: Path) -> tuple[str, str]:
    """What is kept, as Markdown: the decisions, and all rules in the settings run with rivals."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return decision_table(results), rule_table(results)


def decision_table(results: dict[str, dict[str, Any]]) -> str:
    heads = " | ".join(f"to {target:.0%}" for target in TARGETS)
    lines = [
        f"| setting | pick | best with hindsight | regret | cost | {heads} |",
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
    width = max(map(len, results))
    heads = "  ".join(f"to {target:.0%}" for target in TARGETS)
    print(f"\n{'setting':{width}}  regret  cost  {heads}  pick (best with hindsight)")
    for name, r in results.items():
        ratios = "  ".join(f"{t['ratio']:6.2f}" for t in r["targets"])
        print(
            f"{name:{width}}  {r['regret']:6.1%}  {r['cost']:4.0%}  {ratios}  "
            f"{r['pick']} ({r['best']})"
        )
    regrets = [r["regret"] for r in results.values()]
    costs = [r["cost"] for r in results.values()]
    checks = {
        f"mean regret {np.mean(regrets):.1%} (at most {MOST_MEAN:.0%})": np.mean(regrets)
        <= MOST_MEAN,
        f"worst regret {max(regrets):.1%} (at most {MOST_WORST:.0%})": max(regrets) <= MOST_WORST,
        f"largest cost {max(costs):.0%} of the grid (at most {MOST_COST:.0%})": max(costs)
        <= MOST_COST,
    }
    for place, target in enumerate(TARGETS):
        ratios = [r["targets"][place]["ratio"] for r in results.values() if r["targets"]]
        if not ratios:
            continue
        half = sum(ratio <= 0.5 for ratio in ratios)
        checks |= {
            f"time to {target:.0%} at most half of the best shipped rule's in {half} of "
            f"{len(ratios)}": half >= len(ratios) / 2,
            f"and never more than 1.1 times: largest {max(ratios):.2f}": max(ratios) <= 1.1,
        }
    for text, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}: {text}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
