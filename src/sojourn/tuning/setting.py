"""What is to be tuned: an experiment, its candidates, and where their learning rates lie."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.config import Table
from sojourn.errors import InvalidFile
from sojourn.jackson import analyze
from sojourn.network import Network, square_root_routing
from sojourn.optimize import NoiseRate, Objective, PerTime, optimize_routing
from sojourn.rules import AsyncSGD, Weighting
from sojourn.train.experiment.build import build_problem, calibration_of
from sojourn.train.experiment.calibrate import curvature
from sojourn.train.experiment.cells import threads_for
from sojourn.train.experiment.experiment import FIRST_PILOT_SEED, Experiment, experiment_from_table
from sojourn.train.experiment.strategy import Strategy, learning_rates_given
from sojourn.train.replay.problem import Problem
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.learning_rates import grid
from sojourn.tuning.portfolio import BASELINES, portfolio
from sojourn.tuning.race import Candidate

RATES = 8
"""Learning rates of every candidate, before any are added beyond an edge."""
_PLACEHOLDER = 1.0


@dataclass(frozen=True, eq=False)
class Setting:
    """An experiment whose strategies are the candidates, and what decides between them.

    ``rates`` has the learning rates to begin with, by the number of the strategy; ``baselines`` are
    the numbers of those that a recommendation is compared with.
    """

    experiment: Experiment
    criterion: Criterion
    rates: Mapping[int, tuple[float, ...]]
    baselines: tuple[int, ...]
    pilot_seed: int
    curvature: float

    @property
    def candidates(self) -> list[Candidate]:
        """Every strategy at every learning rate."""
        return [Candidate(i, rate) for i, rates in self.rates.items() for rate in rates]

    def without(self, strategies: Sequence[int], rates: int) -> "Setting":
        """The same with these strategies only, at ``rates`` learning rates in the middle of each."""
        kept = {i: _middle(self.rates[i], rates) for i in strategies}
        return dataclasses.replace(self, rates=kept)


def read_setting(
    path: Path,
    *,
    time: float | None = None,
    rounds: int | None = None,
    target: float | None = None,
    criterion: str | None = None,
    data_dir: str | None = None,
) -> Setting:
    """The experiment in ``path``, with its own candidates or, if it lists none, the portfolio.

    ``time`` or ``rounds`` replaces the file's horizon; with ``target`` candidates are judged by the
    time to that accuracy.
    """
    values = dict(Table.read(path).values)
    if time is not None or rounds is not None:
        values.pop("time", None)
        values.pop("rounds", None)
        values |= {"time": time} if time is not None else {"rounds": rounds}
    values["paired"] = True
    keys: tuple[str, ...] = ("strategies", "strategy")
    listed: dict[str, Any] = {key: values.pop(key) for key in keys if key in values}
    given = values.pop("learning-rate", None)
    where, folder = str(path), path.parent

    def read(strategies: Mapping[str, Any]) -> Experiment:
        table = {**values, "learning-rate": _PLACEHOLDER, **strategies}
        return experiment_from_table(Table(table, where), folder)

    base = read({"strategy": [{"name": "base", "rule": "async-sgd", "policy": "never-queue"}]})
    if data_dir is not None:
        base = dataclasses.replace(base, data_dir=data_dir)
    pilot_seed = pilot_seed_of(base.seeds)
    problem = build_problem(base, pilot_seed)
    own = bool(listed)
    if not own:
        routings = planned_routings(base, problem, pilot_seed)
        listed = {"strategy": portfolio(base.fleet, problem.initial_weights().numpy(), routings)}
    experiment = read(_without_rates(listed, where))
    experiment = dataclasses.replace(
        experiment, data_dir=base.data_dir, threads=threads_for(experiment, 1), pilot_seeds=()
    )
    bend = curvature(problem, problem.initial_weights(), seed=pilot_seed)
    rates = {
        i: _rates(strategy, _own_rates(listed, i) or given, bend, where)
        for i, strategy in enumerate(experiment.strategies)
    }
    names = [strategy.name for strategy in experiment.strategies]
    baselines = tuple(i for i, name in enumerate(names) if name in BASELINES and not own)
    kind: Any = criterion or ("final" if target is None else "target")
    return Setting(
        experiment=experiment,
        criterion=Criterion(kind, target),
        rates=rates,
        baselines=baselines,
        pilot_seed=pilot_seed,
        curvature=bend,
    )


def planned_routings(experiment: Experiment, problem: Problem, seed: int) -> dict[str, list[float]]:
    """The best routings by theory, with a probability per client and as many tasks as clients.

    That of least noise per unit of time, and the minimum of the paper's H at its own learning rate,
    with constants measured on the training data.
    """
    fleet = experiment.fleet
    smallest = grid(
        AsyncSGD(),
        curvature(problem, problem.initial_weights(), seed=seed),
        tasks=fleet.size,
        weight_square=1.0,
        number=RATES,
    )[0]
    constants = calibration_of(experiment, problem, learning_rate=smallest, seed=seed).constants
    start = Network(fleet, square_root_routing(fleet), fleet.size)
    rounds = experiment.rounds or analyze(start).throughput * float(experiment.time or 0.0)
    objectives: dict[str, Objective] = {
        "least-noise routing": NoiseRate(),
        "the paper's routing": PerTime(constants, None, rounds),
    }
    return {
        name: optimize_routing(fleet, fleet.size, objective).network.client_routing.tolist()
        for name, objective in objectives.items()
    }


def pilot_seed_of(seeds: Sequence[int]) -> int:
    """A seed that no confirming run uses."""
    return max(FIRST_PILOT_SEED, max(seeds) + 1)


def weight_square(strategy: Strategy) -> float:
    r"""The mean square weight of an update, :math:`\kappa = \sum_i s_i w_i^2`; 1 at least."""
    weighting = getattr(strategy.rule, "weighting", Weighting())
    shares = strategy.scenario.policy.shares(strategy.network)
    if shares is None or not isinstance(weighting, Weighting):
        return 1.0
    fleet = strategy.network.fleet
    worth = fleet.expand(fleet.relative_weights**2)
    return max(1.0, float(np.sum(worth * shares / weighting.divisors(shares) ** 2)))


def _rates(strategy: Strategy, given: Any, bend: float, where: str) -> tuple[float, ...]:
    if given is not None:
        return tuple(sorted(learning_rates_given(given, where)))
    tasks = strategy.scenario.policy.in_flight(strategy.network)
    return grid(
        strategy.rule, bend, tasks=tasks, weight_square=weight_square(strategy), number=RATES
    )


def _own_rates(listed: Mapping[str, Any], index: int) -> Any:
    tables = [{}] * len(listed.get("strategies", [])) + list(listed.get("strategy", []))
    return tables[index].get("learning-rate")


def _without_rates(listed: Mapping[str, Any], where: str) -> dict[str, Any]:
    tables = listed.get("strategy", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidFile(f"{where}: 'strategy' must be written as [[strategy]] tables")
    stripped = [{k: v for k, v in table.items() if k != "learning-rate"} for table in tables]
    return {**listed, **({"strategy": stripped} if "strategy" in listed else {})}


def _middle(rates: tuple[float, ...], number: int) -> tuple[float, ...]:
    """``number`` of the rates, evenly spread, both ends among them."""
    if number >= len(rates):
        return rates
    places = np.unique(np.linspace(0, len(rates) - 1, max(1, number)).round().astype(int))
    return tuple(rates[i] for i in places)
