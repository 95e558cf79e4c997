"""What tuning will cost, measured before it starts, and which candidates fit into a budget."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from sojourn._support.progress import duration
from sojourn.errors import InvalidInput
from sojourn.simulation.schedule import Schedule
from sojourn.strategy import Strategy
from sojourn.training.experiment.build import validation_problem
from sojourn.training.experiment.jobs import ONE_AT_A_TIME, at_seed, mean_steps, using_threads
from sojourn.training.problem.gradients import LONGEST_RUN, stacks_well
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack
from sojourn.tuning.pilots import evaluated_parts, group_key, schedule_for
from sojourn.tuning.setting import Setting
from sojourn.tuning.successive_halving import (
    AGAIN,
    RUNGS,
    expected_cost,
    expected_runs,
    opening,
)

TRIAL_GRADIENTS = 96
TRIAL_EVALUATIONS = 3
CONFIRMED = 3
"""The best strategies of successive halving that are run on fresh seeds, besides the baselines."""
LEAST_SEEDS, MOST_SEEDS = 3, 6
"""Fresh seeds on which they are compared."""
OVERHEAD = 1.2
"""What schedules and learning rates beyond an edge add, in proportion."""
MOST_SECONDS = 5.0
"""How long costs are measured at most."""
OVER = 0.15
"""By how much a budget may be exceeded if there were no answer otherwise, in proportion."""
MOST_CONFIRMING = 0.4
"""The largest fraction of a budget that is set aside for the confirmation."""
EXAMINED = 48
"""Whole runs under other conditions: about eight of them, two strategies, three seeds."""
MOST_EXAMINING = 0.15
"""The largest fraction of a budget that is set aside for other conditions."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Seconds and gradients, by group of strategies that share a schedule.

    ``solo`` is the seconds of a gradient of a run by itself, ``batched`` if its independent gradients are
    computed together, ``together`` those of one computed with the other
    candidates of its group; ``gradients`` are those of a whole run; ``evaluation`` is the seconds of
    one evaluation on the held-out samples. All are of the processor; on a busy machine they take
    ``slowdown`` times as long.
    """

    solo: float
    batched: bool
    evaluation: float
    together: Mapping[object, float]
    gradients: Mapping[object, float]
    slowdown: float = 1.0

    def whole_run(self, setting: Setting) -> float:
        """Seconds of a whole run computed alone, on average over the strategies that open."""
        strategies = [setting.experiment.strategies[i] for i in setting.rates]
        numbers = [self.gradients[group_key(strategy)] for strategy in strategies]
        return self.solo * sum(numbers) / len(numbers)


def measure(setting: Setting, seconds: float = MOST_SECONDS) -> Costs:
    """Time a few gradients of every group of candidates, alone and together with its group.

    After ``seconds`` the remaining groups are taken to cost the mean of those measured: a rough estimate
    soon is worth more than a good one late.
    """
    experiment, seed = setting.experiment, setting.pilot_seed
    begun, processor = time.monotonic(), time.process_time()
    problem = validation_problem(experiment, seed)
    batched = stacks_well(problem)
    members: dict[object, list[int]] = {}
    for i in (*setting.rates, *setting.reserve):
        members.setdefault(group_key(experiment.strategies[i]), []).append(i)
    schedules = {
        key: schedule_for(experiment, experiment.strategies[own[0]], seed)
        for key, own in members.items()
    }
    resolved = {
        key: at_seed(experiment, experiment.strategies[own[0]], seed)
        for key, own in members.items()
    }
    gradients = {
        key: float(schedule.rounds * mean_steps(resolved[key]))
        for key, schedule in schedules.items()
    }
    # The groups that cost the most are measured first: the others hardly matter.
    together: dict[object, float] = {}
    solo = 0.0
    for key in sorted(members, key=lambda key: -gradients[key] * len(members[key])):
        if solo and time.monotonic() - begun > seconds:
            together[key] = sum(together.values()) / len(together)
            continue
        strategy = resolved[key]
        number = sum(len(setting.rates.get(i, ())) for i in members[key]) or 1
        rate = min(min(rates) for rates in (*setting.rates.values(), *setting.reserve.values()))
        with ONE_AT_A_TIME, using_threads(experiment.threads):
            seconds_of = partial(_seconds, strategy, schedules[key], problem, rate, seed)
            together[key] = seconds_of(min(number, LONGEST_RUN), batched)
            solo = solo or seconds_of(1, batched)
    with ONE_AT_A_TIME, using_threads(experiment.threads):
        evaluation = _seconds_to_evaluate(problem)
    taken = (time.monotonic() - begun) / max(time.process_time() - processor, 1e-9)
    return Costs(solo, batched, evaluation, together, gradients, max(1.0, taken))


def _seconds_to_evaluate(problem: Problem) -> float:
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
    """Processor time per gradient of ``copies`` runs together, the first two rounds left out."""
    replays = [
        Replay(
            schedule,
            problem,
            strategy.rule,
            learning_rate=rate,
            seed=seed,
            evaluate_every=schedule.rounds,
        )
        for _ in range(copies)
    ]
    places = [replay.beginning(batched) for replay in replays]
    stack = Stack(replays)
    stack.run(places, until=2, batched=batched)
    begin, before = time.thread_time(), sum(place.round for place in places)
    stack.run(places, until=max(4, TRIAL_GRADIENTS // copies), batched=batched)
    done = sum(place.round for place in places) - before
    return (time.thread_time() - begin) / max(1.0, done * mean_steps(strategy))


def planned_seconds(setting: Setting, costs: Costs, width: int) -> float:
    """About how long successive halving and confirmation take together."""
    strategies = [setting.experiment.strategies[i] for i in setting.rates]
    # As many strategies enter as are beside the first.
    rates = {**setting.rates, **setting.beside(next(iter(setting.rates)))}
    whole_runs = expected_cost(rates, setting.baselines)
    keys = [group_key(strategy) for strategy in strategies]
    one_run = sum(costs.gradients[key] * costs.together[key] for key in keys) / len(keys)
    halving = whole_runs * one_run + costs.evaluation * _evaluations(setting)
    halving *= costs.slowdown
    return OVERHEAD * halving / width + confirmation_seconds(setting, costs, width)


def confirmation_seconds(setting: Setting, costs: Costs, width: int) -> float:
    """About how long the confirmation on the least number of fresh seeds takes."""
    finalists = CONFIRMED + len(setting.baselines)
    runs = LEAST_SEEDS * finalists * costs.whole_run(setting)
    return costs.slowdown * (OVERHEAD * runs + LEAST_SEEDS * setting.building) / width


def examination_seconds(setting: Setting, costs: Costs, width: int) -> float:
    """About how long the pick and its rival take under all other conditions."""
    return EXAMINED * costs.whole_run(setting) * costs.slowdown / width


def _evaluations(setting: Setting) -> float:
    """About how many evaluations successive halving makes."""
    parts = evaluated_parts(setting.criterion)
    rows = np.diff([0, *np.searchsorted(parts, RUNGS, side="right")])
    runs = expected_runs(setting.rates, setting.baselines)
    return (1.0 + AGAIN) * float(np.dot(runs, rows))


def check_time_left(begun: float, budget: float) -> None:
    """Raise if ``budget`` seconds since ``begun`` are gone before anything was run."""
    spent = time.monotonic() - begun
    if spent > budget:
        raise InvalidInput(
            f"a budget of {duration(budget)} is too small: to load the libraries and the problem took "
            f"{duration(spent)}. Give more --budget."
        )


def least_seconds(setting: Setting, costs: Costs) -> float:
    """About how long the first rung takes, and one confirming run: before that there is no answer."""
    opened = opening(setting.rates)
    keys = [group_key(setting.experiment.strategies[c.strategy]) for c in opened]
    pilots = RUNGS[0] * sum(costs.gradients[key] * costs.together[key] for key in keys)
    return costs.slowdown * (OVERHEAD * (pilots + costs.whole_run(setting)) + setting.building)


def fitted(
    setting: Setting, costs: Costs, budget: float, width: int, spent: float = 0.0
) -> tuple[Setting, str]:
    """The setting with as many candidates as fit into ``budget`` seconds, and a sentence about it.

    ``spent`` seconds of the budget are gone already. Strategies are taken out, the last ones first, but no
    learning rates: four rates instead of eight would save a tenth of the time, and the best of a strategy
    could be far from all of them. If not even two strategies fit, their pilot runs will be ended early, and
    if there is no time for their first rung, only the first strategy runs, at its stable learning rate. A
    budget in which not a single run ends is refused.
    """
    if not setting.rates:
        raise InvalidInput(
            "there are no candidates: list strategies in the experiment, or none at all"
        )
    order = list(setting.rates)
    choices = [setting, *(setting.only(order[:number]) for number in range(len(order) - 1, 1, -1))]

    def expected(choice: Setting) -> float:
        examining = min(examination_seconds(choice, costs, width), MOST_EXAMINING * budget)
        return planned_seconds(choice, costs, width) + examining

    for choice in choices:
        seconds = expected(choice)
        if spent + seconds <= budget:
            return choice, f"{_described(choice, setting)}: about {duration(seconds)}"
    left = f"of which the budget leaves {duration(max(0.0, budget - spent))}"
    single = setting.stable(order[0])
    for choice in (choices[-1], single):
        seconds = expected(choice)
        if spent + least_seconds(choice, costs) <= (1.0 + OVER) * budget:
            break
    else:  # the one run that cannot be divided may take longer than what is left
        if least_seconds(single, costs) > budget:
            raise InvalidInput(
                f"a budget of {duration(budget)} is too small: a single run takes about "
                f"{duration(least_seconds(single, costs))}, all {len(order)} strategies about "
                f"{duration(spent + expected(setting))}. Give more --budget, or a "
                "shorter horizon (--time)."
            )
    return choice, f"{_described(choice, setting)}: about {duration(seconds)}, {left}"


def _described(chosen: Setting, whole: Setting) -> str:
    """How many strategies and learning rates there are to begin with."""
    strategies, candidates = len(chosen.rates), len(chosen.candidates)
    if candidates == 1:
        (only,) = chosen.candidates
        name = whole.experiment.strategies[only.strategy].name
        note = "" if len(whole.candidates) == 1 else ", reduced to fit the budget"
        return f"{name} at learning rate {only.learning_rate:g} alone{note}"
    note = "" if candidates == len(whole.candidates) else ", reduced to fit the budget"
    most = max(map(len, chosen.rates.values()))
    more = ", and the combinations beside the best" if chosen.reserve else ""
    each = "one learning rate" if most == 1 else f"up to {most} learning rates"
    return f"{strategies} strategies at {each} each{more}{note}"
