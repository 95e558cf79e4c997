"""What a recommendation hangs on: the pick and its rivals under conditions that nobody measured.

Laws of service and link times are assumptions where there is no log, speeds are estimates, and devices leave.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet
from sojourn.fleet.laws import Law
from sojourn.strategy import Strategy
from sojourn.training.experiment.engines import Engine
from sojourn.training.experiment.experiment import Experiment
from sojourn.tuning.pilots import Pilot, advance_until, group_key
from sojourn.tuning.setting import Setting
from sojourn.tuning.successive_halving import Candidate

SEEDS = 3
"""Pilot seeds per condition, those after the ones of successive halving."""
FIRST_SEED = 10
FEWEST = 2
"""Conditions for which there should be time, the assumed one among them, before seeds are added."""
BETTER = 1.05
"""A rival is called better under a condition if its score is this many times better."""
WORSE = 1.5
"""The pick is called sensitive to a condition under which its score is this many times worse."""
NOT_TRIED = "No time was left to try it under other laws, speeds or absences."
SAME = 0.005
"""Scores closer than this, in proportion, are called the same."""
OFF = 0.2
"""How far speeds may be off."""
GONE = 1e-6
"""The speed of a class that is gone, as a fraction of its own: it never finishes a task."""

Change = Callable[[Strategy], Strategy]
"""The same strategy under another condition."""


@dataclass(frozen=True)
class Condition:
    """The scores of candidates under one condition, one per seed, smaller better.

    ``name`` completes "if ...".
    """

    name: str
    runs: Mapping[Candidate, tuple[float, ...]]

    @property
    def scores(self) -> dict[Candidate, float]:
        """The mean over seeds."""
        return {candidate: float(np.mean(own)) for candidate, own in self.runs.items()}

    def beaten_by(self, rival: Candidate, pick: Candidate) -> bool:
        """Whether the rival is better with every seed."""
        return all(
            _times_worse(a, b) > BETTER
            for a, b in zip(self.runs[pick], self.runs[rival], strict=True)
        )


@dataclass(frozen=True)
class Robustness:
    """Candidates under the assumed conditions (the first) and under others.

    ``left_out`` are the names of conditions for which there was no time.
    """

    conditions: tuple[Condition, ...]
    names: Mapping[Candidate, str]
    left_out: tuple[str, ...] = ()

    def worst(self, candidate: Candidate) -> float:
        """How many times worse it is than the best of the candidates, where that is the most."""
        times = (_times_worse(c.scores[candidate], min(c.scores.values())) for c in self.conditions)
        return max(times, default=1.0)

    def best(self) -> Candidate:
        """The candidate whose worst case is the best."""
        return min(self.names, key=self.worst)

    def sentence(self, pick: Candidate) -> str:
        """Whether the recommendation holds, where it does not, and how much better or worse it is there.

        A rival beats the pick under a condition if it is better with every seed, and by more than under the
        assumed conditions with the same seeds: else the seeds favour it, not the condition.
        """
        if len(self.conditions) < 2:
            return NOT_TRIED
        assumed, *others = self.conditions
        limits, held = [], []
        for condition in others:
            scores = condition.scores
            rival = min(scores, key=lambda c: scores[c])
            ahead = _times_worse(scores[pick], scores[rival])
            before = _times_worse(assumed.scores[pick], assumed.scores[rival])
            loss = _times_worse(scores[pick], assumed.scores[pick])
            if rival != pick and condition.beaten_by(rival, pick) and ahead > BETTER * before:
                limits.append(
                    f"not if {condition.name}: {self.names[rival]} is {_more(ahead)} better"
                )
            elif loss > WORSE:
                limits.append(f"if {condition.name}, it is {_more(loss)} worse")
            else:
                held.append(f"{condition.name}: {_change(loss)}")
        tried = f"{len(others)} other condition{'s' * (len(others) > 1)}"
        if limits:
            tried = f"{len(held)} of {tried}"
        listed = f" ({'; '.join(held)})" if held else ""
        if len(assumed.runs[pick]) == 1:
            tried = f"{tried}, with one seed each"
        missing = f" No time was left to try if {' or if '.join(self.left_out)}."
        return f"Holds under {'; '.join([f'{tried}{listed}', *limits])}.{missing * bool(self.left_out)}"

    def to_table(self) -> list[dict[str, object]]:
        """The conditions as ``tune.json`` has them."""
        return [
            {
                "condition": condition.name,
                "scores": {
                    f"{self.names[c]}, {c.learning_rate:g}": s if math.isfinite(s) else None
                    for c, s in condition.scores.items()
                },
            }
            for condition in self.conditions
        ]


def changes(fleet: Fleet, strategy: Strategy, horizon: float) -> dict[str, Change]:
    """The conditions to try, by name: other laws, speeds, a class gone, clients away.

    Laws that the strategy assumes already are left out, and laws of links where nothing travels. The first
    are those on which most depends, as there may be no time for all.
    """
    found: dict[str, Change] = {"conditions are as assumed": lambda strategy: strategy}
    travels = any(np.any(fleet.columns[c]) for c in ("downlink", "uplink") if c in fleet.columns)
    laws = {"deterministic": Law("deterministic"), "log-normal": Law("lognormal", sigma=1.0)}
    for name, law in laws.items():
        if travels and strategy.scenario.link_law != law:
            found[f"link times are {name}"] = _with_scenario(link_law=law)
        if strategy.scenario.law != (law,):
            found[f"service times are {name}"] = _with_scenario(law=(law,))
    signs = np.where(np.arange(fleet.classes) % 2 == 0, 1.0 - OFF, 1.0 + OFF)
    found[f"speeds are {100 * OFF:.0f} % off"] = _with_fleet(
        lambda own: own.with_rates(own.service_rates * np.resize(signs, own.classes))
    )
    if fleet.classes > 1:
        found["the slowest class is gone"] = _with_fleet(_without_slowest)
    if not fleet.is_intermittent and math.isfinite(horizon):
        found["a third of the clients are away at any time"] = _with_fleet(
            lambda own: _intermittent(own, horizon)
        )
    return found


def examine(
    setting: Setting,
    candidates: Sequence[Candidate],
    engine: Engine,
    horizon: float,
    deadline: float = math.inf,
    seconds: float = 0.0,
) -> Robustness:
    """Run ``candidates`` to the end under every condition, on pilot seeds and held-out samples.

    Cost: conditions times candidates times ``SEEDS`` whole runs. If runs take about ``seconds`` each and there
    is no time for two conditions before the ``deadline`` (of the monotonic clock), there are fewer seeds.
    A condition that is not done by then is left out, and none is begun that would take as long as the longest so far.
    """
    left = deadline - monotonic()
    affordable = left / max(FEWEST * len(candidates) * seconds, 1e-9)
    seeds = max(1, int(min(SEEDS, affordable)))
    strategies = setting.experiment.strategies
    first = strategies[candidates[0].strategy]
    found: list[Condition] = []
    refused: list[str] = []
    longest = 0.0
    tried = changes(setting.experiment.fleet, first, horizon)
    for name, change in tried.items():
        begun = monotonic()
        if found and begun + longest > deadline:
            break
        try:
            changed = tuple(change(strategy) for strategy in strategies)
        except InvalidInput:
            refused.append(name)  # a law or a fleet that this policy cannot be simulated with
            continue
        experiment = dataclasses.replace(setting.experiment, strategies=changed)
        limit = time() + deadline - begun
        scores = _scores(setting, experiment, candidates, engine, horizon, limit, seeds)
        if scores is None:
            break
        found.append(Condition(name, scores))
        longest = max(longest, monotonic() - begun)
    names = {c: strategies[c.strategy].name for c in candidates}
    done = {*refused, *(condition.name for condition in found)}
    return Robustness(tuple(found), names, tuple(name for name in tried if name not in done))


def _scores(
    setting: Setting,
    experiment: Experiment,
    candidates: Sequence[Candidate],
    engine: Engine,
    horizon: float,
    deadline: float,
    seeds: int,
) -> dict[Candidate, tuple[float, ...]] | None:
    """The scores of each candidate, one per seed; nothing if the ``deadline`` came first."""
    groups: dict[object, list[Candidate]] = {}
    for candidate in candidates:
        key = group_key(experiment.strategies[candidate.strategy])
        groups.setdefault(key, []).append(candidate)
    jobs = [
        Pilot(experiment, setting.criterion, tuple(group), setting.pilot_seed + FIRST_SEED + k, 1.0)
        for k in range(seeds)  # the problem of a seed is built once for all groups
        for group in groups.values()
    ]
    scores: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}
    work = [(deadline, job, [None] * len(job.candidates)) for job in jobs]
    results = dict(engine.map(advance_until, work))
    for place in sorted(results):
        done = results[place]
        if done is None:
            return None
        for candidate, history in zip(jobs[place].candidates, done.histories, strict=True):
            end = horizon if math.isfinite(horizon) else float(history.time[-1])
            scores[candidate].append(setting.criterion.score(history, end))
    return {candidate: tuple(own) for candidate, own in scores.items()}


def _with_scenario(**parts: object) -> Change:
    def change(strategy: Strategy) -> Strategy:
        scenario = dataclasses.replace(strategy.scenario, **parts)  # type: ignore[arg-type]
        return dataclasses.replace(strategy, scenario=scenario)

    return change


def _with_fleet(change_fleet: Callable[[Fleet], Fleet]) -> Change:
    def change(strategy: Strategy) -> Strategy:
        network = dataclasses.replace(strategy.network, fleet=change_fleet(strategy.network.fleet))
        return dataclasses.replace(strategy, network=network)

    return change


def _without_slowest(fleet: Fleet) -> Fleet:
    rates = fleet.service_rates.copy()
    rates[rates == rates.min()] *= GONE
    return fleet.with_rates(rates)


def _intermittent(fleet: Fleet, horizon: float) -> Fleet:
    """Clients that are present two thirds of the time, in stretches of a tenth of the horizon."""
    up = np.full(fleet.classes, horizon / 10.0)
    columns = {**fleet.columns, "mean_up": up, "mean_down": up / 2.0}
    return Fleet(
        fleet.service_rates, fleet.counts, fleet.names, law=fleet.law, extra=fleet.extra, **columns
    )


def _times_worse(score: float, other: float) -> float:
    """How many times worse a score is; 1 where a ratio says nothing."""
    if math.isinf(score):
        return 1.0 if math.isinf(other) else math.inf
    return score / other if score > 0.0 and other > 0.0 else 1.0


def _change(times: float) -> str:
    """How much worse or better a score is, in words.

    >>> _change(1.234), _change(0.8), _change(1.001)
    ('23 % worse', '20 % better', 'the same')
    """
    if abs(times - 1.0) < SAME:
        return "the same"
    return f"{_more(times)} worse" if times > 1.0 else f"{100 * (1.0 - times):.0f} % better"


def _more(times: float) -> str:
    """A ratio in words.

    >>> _more(1.23), _more(3.0), _more(math.inf)
    ('23 %', '3.0 times', 'infinitely')
    """
    if math.isinf(times):
        return "infinitely"
    return f"{100 * (times - 1):.0f} %" if times < 2 else f"{times:.1f} times"
