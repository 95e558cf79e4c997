"""What is to be tuned: an experiment, its candidates, and where their learning rates lie."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from sojourn._support.configuration import Table
from sojourn.rules import Weighting
from sojourn.strategy import Strategy
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.calibrate import curvature
from sojourn.training.experiment.experiment import (
    FIRST_PILOT_SEED,
    Experiment,
    experiment_from_table,
)
from sojourn.training.experiment.jobs import threads_for
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.learning_rates import STEPS_ABOVE, STEPS_BELOW, grid
from sojourn.tuning.portfolio import Proposal, beside, portfolio
from sojourn.tuning.successive_halving import Candidate

RATES = 8
"""Learning rates of every candidate, before any are added beyond an edge."""
_PLACEHOLDER = 1.0
"""The learning rate of strategies whose candidates each have their own."""


@dataclass(frozen=True, eq=False)
class Setting:
    """An experiment whose strategies are the candidates, and what decides between them.

    ``rates`` has the learning rates to begin with, by the number of the strategy; ``baselines`` are
    the numbers of those that a recommendation is compared with, private ones among them: what privacy costs
    is to be seen, though it never wins. ``levels`` are the places of strategies in
    the factorial design, and ``reserve`` the learning rates of those that are tried only `beside` a leading
    one. Only strategies that can be deployed are recommended, unless ``virtual``.
    ``building`` is the processor time that the problem of one seed took to build, in seconds.
    """

    experiment: Experiment
    criterion: Criterion
    rates: Mapping[int, tuple[float, ...]]
    baselines: tuple[int, ...]
    pilot_seed: int
    curvature: float
    levels: Mapping[int, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    reserve: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    virtual: bool = False
    building: float = 0.0

    @property
    def candidates(self) -> list[Candidate]:
        """Every strategy at every learning rate."""
        return [Candidate(i, rate) for i, rates in self.rates.items() for rate in rates]

    @property
    def planned(self) -> Experiment:
        """The experiment with the strategies that may be run; their numbers here do not apply to it."""
        numbers = (*self.rates, *self.reserve)
        strategies = tuple(self.experiment.strategies[i] for i in numbers)
        return dataclasses.replace(self.experiment, strategies=strategies)

    def beside(self, strategy: int) -> dict[int, tuple[float, ...]]:
        """The strategies in reserve that differ from this one in one factor, with their learning rates."""
        return {i: self.reserve[i] for i in beside(self.levels, strategy) if i in self.reserve}

    def only(self, strategies: Sequence[int]) -> "Setting":
        """The same with these strategies only, and without a reserve."""
        rates = {i: self.rates[i] for i in strategies}
        baselines = tuple(i for i in self.baselines if i in rates)
        return dataclasses.replace(self, rates=rates, reserve={}, baselines=baselines)

    def stable(self, strategy: int) -> "Setting":
        """The same with this strategy alone, at the stable step of `grid`."""
        alone, rates = self.only([strategy]), self.rates[strategy]
        place = round(STEPS_BELOW / (STEPS_BELOW + STEPS_ABOVE) * (len(rates) - 1))
        return dataclasses.replace(alone, rates={strategy: (rates[place],)})


def read_setting(
    path: Path,
    *,
    time: float | None = None,
    rounds: int | None = None,
    target: float | None = None,
    criterion: str | None = None,
    data_dir: str | None = None,
    virtual: bool = False,
) -> Setting:
    """The experiment in ``path``, with its own candidates or, if it lists none, the portfolio.

    ``time`` or ``rounds`` replaces the file's horizon; with ``target`` candidates are judged by the
    time to that value of the problem's primary measure. With ``virtual`` a strategy may be recommended that
    only virtual time can run.
    """
    table = Table.read(path)
    if time is not None or rounds is not None:
        table.values.pop("time", None)
        table.values.pop("rounds", None)
        table.values |= {"time": time} if time is not None else {"rounds": rounds}
    table.values["paired"] = True
    experiment = experiment_from_table(table, path.parent, to_tune=True)
    if data_dir is not None:
        experiment = dataclasses.replace(experiment, data_dir=data_dir)
    pilot_seed = pilot_seed_of(experiment.seeds)
    begun = process_time()
    problem = build_problem(experiment, pilot_seed)
    building = process_time() - begun
    candidates = experiment.strategies
    bend = curvature(problem, problem.initial_weights(), seed=pilot_seed)
    proposals: list[Proposal] = []
    if not candidates:
        proposals = portfolio(experiment.fleet, problem.initial_weights().numpy(), bend)
        candidates = tuple(
            Strategy.resolve(
                proposal.choices,
                experiment.environment,
                fleet=experiment.fleet,
                name=proposal.name,
                where=str(path),
            )
            for proposal in proposals
        )
    rates = {
        i: tuple(sorted(strategy.learning_rates)) or proposed_rates(strategy, bend)
        for i, strategy in enumerate(candidates)
    }
    reserve = {i: rates.pop(i) for i, proposal in enumerate(proposals) if not proposal.opens}
    placed = tuple(dataclasses.replace(one, learning_rates=(_PLACEHOLDER,)) for one in candidates)
    experiment = dataclasses.replace(experiment, strategies=placed, pilot_seeds=())
    experiment = dataclasses.replace(experiment, threads=threads_for(experiment, 1))
    kind: Any = criterion or ("final" if target is None else "target")
    return Setting(
        experiment=experiment,
        criterion=Criterion.of(problem.measure, kind, target),
        rates=rates,
        baselines=_baselines(candidates, proposals),
        pilot_seed=pilot_seed,
        curvature=bend,
        levels={i: proposal.levels for i, proposal in enumerate(proposals) if proposal.levels},
        reserve=reserve,
        virtual=virtual,
        building=building,
    )


def _baselines(strategies: Sequence[Strategy], proposals: Sequence[Proposal]) -> tuple[int, ...]:
    """The numbers of the strategies that are confirmed even if they are not among the best."""
    compared = {i for i, proposal in enumerate(proposals) if proposal.baseline}
    private = {
        i for i, one in enumerate(strategies) if getattr(one.rule, "privacy", None) is not None
    }
    return tuple(sorted(compared | private))


def pilot_seed_of(seeds: Sequence[int]) -> int:
    """A seed that no confirming run uses."""
    return max(FIRST_PILOT_SEED, max(seeds) + 1)


def weight_square(strategy: Strategy) -> float:
    r"""The mean square weight of an update, :math:`\kappa = \sum_i s_i w_i^2`; 1 at least."""
    weighting = getattr(strategy.rule, "weighting", Weighting())
    shares = strategy.scenario.shares(strategy.network)
    if shares is None or not isinstance(weighting, Weighting):
        return 1.0
    fleet = strategy.network.fleet
    worth = fleet.expand(fleet.relative_weights**2)
    return max(1.0, float(np.sum(worth * shares / weighting.divisors(shares) ** 2)))


def proposed_rates(strategy: Strategy, bend: float) -> tuple[float, ...]:
    """Learning rates around the stable one for a loss of curvature ``bend``.

    A rule that moves once per ``buffer_size`` updates has so many times fewer moves in flight.
    """
    buffered = getattr(strategy.rule, "buffer_size", 1)
    tasks = max(1, strategy.policy.in_flight(strategy.network) // buffered)
    return grid(
        strategy.rule, bend, tasks=tasks, weight_square=weight_square(strategy), number=RATES
    )
