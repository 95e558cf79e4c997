r"""The candidates by default: a factorial design of rules, server optimisers and local work.

How many local steps a task should take follows from the journeys. A task that travels for :math:`l_i` and
takes H steps of :math:`1/\mu_i` each delivers H gradients in :math:`l_i + H/\mu_i`: one step wastes the link,
very many make the update stale. :math:`H_i = \mu_i l_i`, computing for as long as travelling, is within a factor of two
of both limits in noise; pilot runs decide between a few multiples of it, the same for all clients or each client's own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet
from sojourn.rules import rule_from_table
from sojourn.rules.state import LocalSteps, check_memory
from sojourn.strategy import Choices
from sojourn.types import FloatArray, Vector

CAP = 5.0
AVERAGE = 0.2
"""The last fraction of the versions whose mean is delivered: noise averages out, and steps can be larger."""
ADAM = {"name": "adam", "beta1": 0.0, "beta2": 0.99, "average": AVERAGE}
"""Steps scaled by root mean squares, without momentum: tasks in flight are momentum enough."""
SERVERS: Mapping[str, Mapping[str, object]] = {
    "plain": {"name": "plain"},
    "averaged": {"name": "plain", "average": AVERAGE},
    "momentum": {"name": "momentum", "beta": 0.9, "average": AVERAGE},
    "adaptive": ADAM,
}
"""The server optimisers that every rule is given."""
RULES: Mapping[str, Mapping[str, object]] = {
    "never-queue": {"name": "async-sgd"},
    "never-queue, capped": {"name": "async-sgd", "debias": 1.0, "cap": CAP},
    "never-queue, half debiased": {"name": "async-sgd", "debias": 0.5},
    "never-queue, unbiased": {"name": "async-sgd", "debias": 1.0},
    "FedBuff": {"name": "fedbuff"},
    "FedBuff, capped": {"name": "fedbuff", "debias": 1.0, "cap": CAP},
    "FedAsync": {"name": "fedasync"},
    "ACE": {"name": "ace", "warm-up": False},
}
"""The rules of the design, all under the policy never-queue: who counts how much, and when."""
SENDS_DIFFERENCES = ("FedBuff", "FedBuff, capped", "FedAsync")
SMALL, LARGE = 1 / 8, 1 / 2
"""Local work in multiples of :math:`\\mu_i l_i`, besides a single step."""
MOST_STEPS = 100
COHORT = 30
"""The largest cohort of FedAvg: of more clients, the slowest link makes rounds long."""
OVER_SELECTION = 0.3
"""How many more clients than results FedAvg asks for, as in production (Bonawitz et al., 2019)."""
LOCAL_STEP = 0.5
"""The learning rate of local steps times the curvature, where the tuned rate is the server's."""

UNIFORM, FEDBUFF, FEDASYNC, FEDAVG = "uniform routing", "FedBuff", "FedAsync", "FedAvg"
FEDAVG_OVER_SELECTED = "FedAvg, over-selected"
BASELINES = (UNIFORM, FEDBUFF, FEDASYNC, FEDAVG)
"""What frameworks ship, and the paper's starting point: what a recommendation has to beat."""


@dataclass(frozen=True)
class Proposal:
    """A strategy to try. ``levels`` is its place in the factorial design; outside of the design, empty.

    Strategies without a ``place`` among those that open are tried only if the first rung makes them promising.
    """

    name: str
    choices: Choices
    levels: Mapping[str, str] = field(default_factory=dict)
    place: int | None = 0
    baseline: bool = False

    @property
    def opens(self) -> bool:
        """Whether it runs from the beginning."""
        return self.place is not None


def local_work(fleet: Fleet) -> tuple[LocalSteps, ...]:
    """The numbers of local steps per task to try: one, and where journeys matter, a few more.

    The second is the same for all clients, from the median client; then there is one for each class of clients,
    who compute for a small and for a large part of their own journeys.

    >>> local_work(Fleet([1.0])), local_work(Fleet([10.0], uplink=[8.0]))
    ((1,), (1, 10, 40))
    >>> local_work(Fleet([1.0, 8.0, 20.0], uplink=[8.0, 8.0, 8.0]))
    (1, 8, (1, 8, 20), (4, 32, 80))
    """
    journeys = fleet.service_rates * _journeys(fleet)
    typical = float(np.median(fleet.expand(journeys)))
    steps: list[LocalSteps] = [1, min(MOST_STEPS, max(1, round(SMALL * typical)))]
    for part in (SMALL, LARGE):
        own = np.clip(np.round(part * journeys), 1, MOST_STEPS).astype(int).tolist()
        steps.append(own[0] if len(set(own)) == 1 else tuple(own))
    return tuple(dict.fromkeys(steps))


def typical_time(fleet: Fleet, steps: int) -> float:
    """The median over clients of the mean time that a task of ``steps`` steps takes, links included.

    >>> typical_time(Fleet([1.0, 2.0, 4.0], uplink=[3.0, 3.0, 3.0]), 10)
    8.0
    """
    return float(np.median(fleet.expand(steps / fleet.service_rates + _journeys(fleet))))


def _journeys(fleet: Fleet) -> FloatArray:
    """The mean time that a task of each class is on links."""
    journeys = np.zeros(fleet.service_rates.size)
    for column in ("downlink", "uplink"):
        if column in fleet.columns:
            journeys = journeys + fleet.columns[column]
    return journeys


def portfolio(
    fleet: Fleet,
    weights: Vector,
    routings: Mapping[str, Sequence[float]],
    curvature: float = 1.0,
) -> list[Proposal]:
    """The strategies to try, the most promising first, so that a small budget leaves out the last.

    Every rule is combined with every server optimiser and every amount of local work. Of these some open:
    each rule, each server and each amount of work at least once, and what was good before. The others
    are tried after the first rung, if it makes them promising. Rules that FedAvg's users know, uniform routing and
    the ``routings`` of theory (a probability per client) are there to be compared with.
    """
    work = local_work(fleet)
    design = [
        [_member(rule, server, steps, work, curvature) for rule in RULES for server in SERVERS]
        for steps in (*work[1:2], *work[:1], *work[2:])
    ]
    cohort = max(1, min(fleet.size // 3, COHORT))
    steps = max(step for step in work[:2] if isinstance(step, int))
    fixed = [
        Proposal(
            UNIFORM, Choices(rule="async-sgd", policy="routed", routing="uniform"), baseline=True
        ),
        Proposal(FEDAVG, Choices(rule=_rule("fedavg", steps), concurrency=cohort), baseline=True),
        Proposal(
            FEDAVG_OVER_SELECTED,
            Choices(
                rule=_rule("fedavg", steps),
                policy={
                    "name": "synchronous",
                    "over-selection": OVER_SELECTION,
                    "deadline": float(f"{2.0 * typical_time(fleet, steps):.2g}"),
                },
                concurrency=min(fleet.size, math.ceil((1.0 + OVER_SELECTION) * cohort)),
            ),
            baseline=True,
        ),
        *(
            Proposal(
                name,
                Choices(rule="generalized-async-sgd", policy="routed", routing=list(probabilities)),
            )
            for name, probabilities in routings.items()
        ),
    ]
    if len(work) > 1:
        twice = Choices(rule="async-sgd", policy="routed", routing="square-root")
        fixed.append(
            Proposal("two tasks per client", twice.over(Choices(concurrency=2 * fleet.size)))
        )
    opening = [p for group in design for p in sorted(group, key=_earliest) if p.opens]
    others = [p for group in design for p in group if not p.opens]
    return [p for p in (*opening, *fixed, *others) if _fits(p, fleet.size, weights)]


def _earliest(proposal: Proposal) -> int:
    return 0 if proposal.place is None else proposal.place


def promising(
    levels: Mapping[int, Mapping[str, str]], scores: Mapping[int, float], number: int
) -> list[int]:
    """The strategies without a score that the scores of the others make the most promising.

    The logarithm of a score is taken to be a sum of one effect per factor (least squares, shrunk a
    little towards no effect); those with the smallest predicted scores are returned, best first.

    >>> levels = {0: {"a": "x", "b": "u"}, 1: {"a": "y", "b": "u"}, 2: {"a": "x", "b": "v"}}
    >>> levels[3] = {"a": "y", "b": "v"}
    >>> promising(levels, {0: 1.0, 1: 0.5, 2: 0.5}, number=1)
    [3]
    """
    seen = [i for i in levels if i in scores and np.isfinite(scores[i]) and scores[i] > 0.0]
    rest = [i for i in levels if i not in scores]
    if len(seen) < 3 or not rest:
        return []
    columns = sorted({(f, level) for table in levels.values() for f, level in table.items()})

    def rows(numbers: Iterable[int]) -> np.ndarray:
        tables = [levels[i] for i in numbers]
        effects = [[float(table.get(f) == level) for f, level in columns] for table in tables]
        return np.hstack([np.ones((len(effects), 1)), np.array(effects)])

    known = rows(seen)
    target = np.log([scores[i] for i in seen])
    shrinkage = 0.1 * np.eye(known.shape[1])
    shrinkage[0, 0] = 0.0
    effects = np.linalg.solve(known.T @ known + shrinkage, known.T @ target)
    predicted = dict(zip(rest, (rows(rest) @ effects).tolist(), strict=True))
    return sorted(rest, key=lambda i: predicted[i])[:number]


def _member(
    rule: str, server: str, steps: LocalSteps, work: Sequence[LocalSteps], curvature: float
) -> Proposal:
    """One combination of the design."""
    level = f"{steps}"
    if isinstance(steps, tuple):
        level = f"{min(steps)} to {max(steps)}"
    name = rule
    name += "" if server == "plain" else f", {server}"
    name += "" if steps == 1 else f", {level} local steps"
    table: dict[str, object] = {**RULES[rule], "server": dict(SERVERS[server])}
    if server == "plain":
        del table["server"]
    if steps != 1:
        table["local-steps"] = list(steps) if isinstance(steps, tuple) else steps
    adaptive_differences = rule in SENDS_DIFFERENCES and server == "adaptive"
    if adaptive_differences or (rule not in SENDS_DIFFERENCES and steps != 1):
        table["local-learning-rate"] = float(f"{LOCAL_STEP / max(curvature, 1e-12):.2g}")
    if (
        adaptive_differences
    ):  # whose steps do not depend on the clients' rate: the server's is tuned
        table["server-learning-rate"] = "run"
    return Proposal(
        name,
        Choices(rule=table, policy="never-queue"),
        {"rule": rule, "server": server, "local work": level},
        place=_place(rule, server, steps, work),
        baseline=rule in (FEDBUFF, FEDASYNC) and server == "plain" and steps in work[:2],
    )


OPENING = (
    *("never-queue, capped/adaptive", "FedBuff/plain", "never-queue/plain", "FedAsync/plain"),
    *("never-queue, half debiased/adaptive", "never-queue/adaptive"),
    *("never-queue, capped/averaged", "never-queue, half debiased/averaged"),
    *("never-queue, capped/momentum", "FedBuff, capped/adaptive"),
    *("never-queue, unbiased/averaged", "ACE/averaged", "never-queue/momentum"),
)
"""Combinations that open where nothing travels. A small budget leaves out the last ones."""
OPENING_WITH_WORK = (
    *("never-queue/averaged", "FedBuff/plain", "never-queue/adaptive", "FedAsync/plain"),
    *("never-queue, half debiased/averaged", "never-queue, capped/adaptive"),
    *("FedBuff/adaptive", "FedBuff, capped/averaged"),
)
"""Combinations that open with the same small amount of local work for all."""
OPENING_WITH_ONE_STEP = (
    *("never-queue/adaptive", "FedBuff/plain", "never-queue/plain", "FedAsync/plain"),
)
OPENING_WITH_OWN_WORK = ("never-queue/adaptive", "FedBuff/plain")
"""Combinations that open with a number of steps for each class of clients."""


def _place(rule: str, server: str, steps: LocalSteps, work: Sequence[LocalSteps]) -> int | None:
    """The place of a combination among those that open with its amount of work; none if it does not."""
    opening: tuple[str, ...] = OPENING
    if len(work) > 1:
        others = OPENING_WITH_ONE_STEP if steps == 1 else OPENING_WITH_OWN_WORK
        opening = OPENING_WITH_WORK if steps == work[1] else others
    key = f"{rule}/{server}"
    return opening.index(key) if key in opening else None


def _rule(name: str, steps: int) -> dict[str, object]:
    return {"name": name} if steps == 1 else {"name": name, "local-steps": steps}


def _fits(proposal: Proposal, clients: int, weights: Vector) -> bool:
    """Whether the rule is valid with these options and its memory fits."""
    try:
        check_memory(rule_from_table(proposal.choices.rule or ""), clients, weights)
    except InvalidInput:
        return False
    return True
