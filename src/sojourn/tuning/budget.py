"""What a race will cost, measured before it starts, and how to make it fit."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.simulation.schedule import Schedule
from sojourn.train.experiment.build import validation_problem
from sojourn.train.experiment.cells import ONE_AT_A_TIME, using_threads
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.strategy import Strategy
from sojourn.train.replay.gradients import stacks_well
from sojourn.train.replay.loop import Replay
from sojourn.train.replay.problem import Problem
from sojourn.train.replay.replay import MOST_TOGETHER, Lockstep
from sojourn.tuning.pilots import evaluated_parts, group_key, schedule_for
from sojourn.tuning.race import (
    LEAST_FINALISTS,
    LEAST_SEEDS,
    LOOKED_BELOW,
    RUNGS,
    expected_cost,
    expected_runs,
    repeated,
)
from sojourn.tuning.setting import Setting

TRIAL_GRADIENTS = 96
TRIAL_EVALUATIONS = 3
FEWEST_RATES = 4
OVERHEAD = 1.2
"""Schedules and learning rates added beyond an edge, in proportion."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Seconds per gradient: alone, and in lockstep by group; gradients of a whole run by group.

    ``evaluation`` is the seconds that judging weights on the held-out samples takes.
    """

    solo: float
    evaluation: float
    together: Mapping[Any, float]
    runs: Mapping[Any, float]

    def gradients(self, experiment: Experiment) -> float:
        """Gradients of a whole run, on average over the strategies."""
        return sum(self.runs[group_key(s)] for s in experiment.strategies) / len(
            experiment.strategies
        )


def measure(setting: Setting) -> Costs:
    """Time a few gradients of every group of candidates, alone and in lockstep."""
    experiment, seed = setting.experiment, setting.pilot_seed
    problem = validation_problem(experiment, seed)
    batched = stacks_well(problem)
    together: dict[Any, float] = {}
    runs: dict[Any, float] = {}
    solo = 0.0
    for i, strategy in enumerate(experiment.strategies):
        key = group_key(strategy)
        if key in together:
            continue
        members = [j for j, s in enumerate(experiment.strategies) if group_key(s) == key]
        number = sum(len(setting.rates[j]) for j in members if j in setting.rates) or 1
        schedule = schedule_for(experiment, strategy, seed)
        rate = min(setting.rates.get(i, (1e-3,)))
        runs[key] = float(schedule.rounds * strategy.rule.local_steps)

        with ONE_AT_A_TIME, using_threads(experiment.threads):
            runs_of = partial(_seconds, strategy, schedule, problem, rate, seed)
            together[key] = runs_of(min(number, MOST_TOGETHER), batched)
            solo = solo or runs_of(1, False)
    with ONE_AT_A_TIME, using_threads(experiment.threads):
        evaluation = _seconds_to_judge(problem)
    return Costs(solo, evaluation, together, runs)


def _seconds_to_judge(problem: Problem) -> float:
    weights = problem.initial_weights()
    problem.measures(weights)
    begin = time.thread_time()
    for _ in range(TRIAL_EVALUATIONS):
        problem.measures(weights)
    return (time.thread_time() - begin) / TRIAL_EVALUATIONS


def _seconds(
    strategy: Strategy,
    schedule: Schedule,
    problem: Problem,
    rate: float,
    seed: int,
    copies: int,
    batched: bool,
) -> float:
    """Processor time per gradient of so many runs in lockstep, the first two rounds left out."""
    replays = [
        Replay(schedule, problem, strategy.rule, learning_rate=rate, seed=seed)
        for _ in range(copies)
    ]
    for replay in replays:
        replay.evaluate(every=max(1, schedule.rounds))
    places = [replay.beginning(batched) for replay in replays]
    lockstep = Lockstep(replays)
    lockstep.run(places, until=2, batched=batched)
    begin, before = time.thread_time(), sum(place.round for place in places)
    lockstep.run(places, until=max(4, TRIAL_GRADIENTS // copies), batched=batched)
    done = sum(place.round for place in places) - before
    return (time.thread_time() - begin) / max(1, done * strategy.rule.local_steps)


def planned_seconds(setting: Setting, costs: Costs, width: int) -> float:
    """About how long race and confirmation take."""
    strategies = setting.experiment.strategies
    entered = setting.candidates
    share = expected_cost(len(entered), len(setting.rates)) / max(1, len(entered))
    race = costs.evaluation * _evaluations(setting)
    for candidate in entered:
        key = group_key(strategies[candidate.strategy])
        race += share * costs.runs[key] * costs.together[key]
    finalists = LEAST_FINALISTS + len(setting.baselines)
    each = [costs.runs[group_key(strategies[i])] for i in setting.rates]
    confirm = LEAST_SEEDS * finalists * costs.solo * sum(each) / max(1, len(each))
    return OVERHEAD * (race + confirm) / width


def _evaluations(setting: Setting) -> float:
    """About how many evaluations a race takes."""
    parts = evaluated_parts(setting.criterion)
    rows = np.diff([0, *np.searchsorted(parts, RUNGS, side="right")])
    runs = expected_runs(len(setting.candidates), len(setting.rates))
    whole = sum(repeated(len(setting.candidates))) + LOOKED_BELOW
    return float(np.dot(runs, rows)) + whole * parts.size


def fitted(setting: Setting, costs: Costs, budget: float | None, width: int) -> tuple[Setting, str]:
    """The setting with as many candidates as fit into ``budget`` seconds, and a sentence about it."""
    if not setting.rates:
        raise InvalidInput(
            "there are no candidates: list strategies in the experiment, or none at all"
        )
    whole = planned_seconds(setting, costs, width)
    if budget is None or whole <= budget:
        return setting, _sentence(setting, whole, "")
    most = max(len(rates) for rates in setting.rates.values())
    for rates in range(most - 1, FEWEST_RATES - 1, -1):
        smaller = setting.without(list(setting.rates), rates)
        if planned_seconds(smaller, costs, width) <= budget:
            return smaller, _sentence(
                smaller,
                planned_seconds(smaller, costs, width),
                "fewer learning rates, to fit the budget",
            )
    order = list(setting.rates)
    for number in range(len(order) - 1, 1, -1):
        smaller = setting.without(order[:number], FEWEST_RATES)
        if planned_seconds(smaller, costs, width) <= budget:
            return smaller, _sentence(
                smaller,
                planned_seconds(smaller, costs, width),
                "fewer candidates, to fit the budget",
            )
    least = planned_seconds(setting.without(order[:2], FEWEST_RATES), costs, width)
    raise InvalidInput(
        f"a budget of {duration(budget)} is too small for one race: two strategies at "
        f"{FEWEST_RATES} learning rates take about {duration(least)}, all {len(order)} about "
        f"{duration(whole)}. Give more --budget, or a shorter horizon (--time)."
    )


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(75), duration(8000)
    ('75 s', '2 h 13 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``10m`` or ``2h``.

    >>> parse_duration("10m"), parse_duration("1.5h")
    (600.0, 5400.0)
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    unit = units.get(text[-1:])
    try:
        value = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InvalidInput(f"a budget is a time such as 90s, 10m or 2h; it is '{text}'")
    return value


def _sentence(setting: Setting, seconds: float, cut: str) -> str:
    strategies, candidates = len(setting.rates), len(setting.candidates)
    note = f" ({cut})" if cut else ""
    return (
        f"{candidates} candidates ({strategies} strategies at "
        f"{candidates / strategies:.3g} learning rates each){note}: about {duration(seconds)}"
    )
