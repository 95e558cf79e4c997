r"""The candidates by default: a factorial design of rules, server optimisers and local work.

How many local steps a task should take follows from the journeys. A task that travels for :math:`l_i` and
takes H steps of :math:`1/\mu_i` each delivers H gradients in :math:`l_i + H/\mu_i`: one step wastes the link,
very many make the update stale. :math:`H_i = \mu_i l_i`, computing for as long as travelling, is within a factor of two
of both limits in noise; pilot runs decide between multiples of it, a factor of four apart, the same for all clients or each
client's own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.rules import FedBuff, Weighting, rule_from_table
from sojourn.rules.state import LocalSteps, check_memory
from sojourn.strategy import Choices
from sojourn.theory.never_queue import never_queue
from sojourn.tuning.learning_rates import FACTOR
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
BUFFERED = ("FedBuff", "FedBuff, capped")
PARTS = (1 / 8, 1 / 2, 2.0)
"""Local work in multiples of :math:`\\mu_i l_i`, besides a single step."""
CENTRE = {"rule": "never-queue", "server": "averaged"}
"""The middle of the opening star, with a small amount of local work: the plainest rule, without its last noise."""
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

    Those that do not open are tried if one beside them in the design is among the best.
    """

    name: str
    choices: Choices
    levels: Mapping[str, str] = field(default_factory=dict)
    opens: bool = True
    baseline: bool = False


def local_work(fleet: Fleet) -> tuple[LocalSteps, ...]:
    """The numbers of local steps per task to try: one, and where journeys matter, several amounts.

    Each is the same for all clients, from the median client, or one for each class of clients, from its own
    journeys; computing takes an eighth, a half or twice as long as travelling.

    >>> local_work(Fleet([1.0])), local_work(Fleet([10.0], uplink=[8.0]))
    ((1,), (1, 10, 40, 100))
    >>> local_work(Fleet([1.0, 8.0, 20.0], uplink=[8.0, 8.0, 8.0]))
    (1, 8, (1, 8, 20), 32, (4, 32, 80), 100, (16, 100, 100))
    """
    journeys = fleet.service_rates * _journeys(fleet)
    typical = float(np.median(fleet.expand(journeys)))
    steps: list[LocalSteps] = [1]
    for part in PARTS:
        own = np.clip(np.round(part * journeys), 1, MOST_STEPS).astype(int).tolist()
        steps.append(min(MOST_STEPS, max(1, round(part * typical))))
        steps.append(own[0] if len(set(own)) == 1 else tuple(own))
    return tuple(dict.fromkeys(steps))


def buffers(clients: int) -> tuple[int, ...]:
    r"""The buffer sizes to try, the one that frameworks ship first.

    A buffer of K arrivals averages the noise of K tasks and makes K times fewer moves, each less stale in moves.
    None (K = 1) moves soonest. With :math:`K = \sqrt n` of n tasks in flight, moves and tasks per move
    are balanced; with n/3 a client's next task has mostly seen its last one. A size less than a factor of
    two from another is left out: the learning rates, which can make up for it, are no denser.

    >>> buffers(12), buffers(20), buffers(300)
    ((10, 1, 3), (10, 1, 4), (10, 1, 100))
    """
    found = [FedBuff().buffer_size]
    for size in (1, round(math.sqrt(clients)), max(1, round(clients / 3))):
        if all(max(size, other) >= FACTOR * min(size, other) for other in found):
            found.append(size)
    return tuple(found)


def same_weights(fleet: Fleet, steps: LocalSteps) -> dict[str, str]:
    """For every rule, the first in `RULES` that does the same with these clients and this work.

    Weights against bias depend on how often each client is heard. Where all are heard equally often they
    are one, and a cap that no weight reaches changes nothing: such rules are one rule, tried once.

    >>> same_weights(Fleet([1.0], counts=[3]), 1)["FedBuff, capped"]
    'FedBuff'
    >>> same_weights(Fleet([1.0, 2.0]), 1)["never-queue, unbiased"]
    'never-queue, capped'
    """
    network = Network(fleet, uniform_routing(fleet), fleet.size)
    shares = fleet.expand(never_queue(network, work=steps).shares)
    first: dict[object, str] = {}
    found = {}
    for rule, table in RULES.items():
        own = {key: table[key] for key in ("debias", "cap") if key in table}
        weights = Weighting(**own).divisors(shares).round(6)  # type: ignore[arg-type]
        found[rule] = first.setdefault((table["name"], weights.tobytes()), rule)
    return found


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


def portfolio(fleet: Fleet, weights: Vector, curvature: float = 1.0) -> list[Proposal]:
    """The strategies to try, so that a small budget leaves out the last.

    Every rule is combined with every server optimiser, every amount of local work and, if it has a buffer,
    every size of it. A star of these opens: a `CENTRE`, what is `beside` it, FedAsync and FedBuff as they are
    shipped, and FedBuff's other buffers. The others are tried if they are beside a leader. FedAvg and uniform routing
    are there to be compared with, and no other routing: none beats never-queue in noise and staleness.
    """
    work = local_work(fleet)
    usual = work[:2][-1]
    design = [p for steps in (usual, *work) for p in _combinations(fleet, steps, work, curvature)]
    design = list({p.name: p for p in design}.values())
    levels = {i: p.levels for i, p in enumerate(design)}
    centre = next(i for i, own in levels.items() if own == {**CENTRE, "local work": _level(usual)})
    shipped = [i for i, p in enumerate(design) if p.baseline]
    sizes = [i for i in beside(levels, shipped[0]) if "buffer" in levels[i]]
    star = [i for i in beside(levels, centre) if "buffer" not in levels[i]]
    opening = dict.fromkeys([centre, *shipped, *star, *sizes])
    design = [replace(p, opens=i in opening) for i, p in enumerate(design)]
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
    ]
    if len(work) > 1:
        twice = Choices(rule="async-sgd", policy="routed", routing="square-root")
        fixed.append(
            Proposal("two tasks per client", twice.over(Choices(concurrency=2 * fleet.size)))
        )
    others = [p for p in design if not p.opens]
    ordered = (*(design[i] for i in opening), *fixed, *others)
    return [p for p in ordered if _fits(p, fleet.size, weights)]


def beside(levels: Mapping[int, Mapping[str, str]], strategy: int) -> list[int]:
    """The strategies of the design that differ from ``strategy`` in one factor.

    A buffer of the size that frameworks ship is no level of its own, so that rules with and without it are beside
    each other. With local work, rules with any buffer are beside one without: a buffer of one task is then a rule of its
    own, as its clients' learning rate is tuned; with a single step it is the rule without a buffer.

    >>> levels = {0: {"a": "x", "b": "u"}, 1: {"a": "y", "b": "u"}, 2: {"a": "x", "b": "v"}}
    >>> levels[3] = {"a": "y", "b": "v"}
    >>> beside(levels, 0), beside(levels, 4)
    ([1, 2], [])
    """
    own = levels.get(strategy, {})
    return [other for other, table in levels.items() if own and _are_beside(own, table)]


def _are_beside(own: Mapping[str, str], other: Mapping[str, str]) -> bool:
    apart = {factor for factor in {*own, *other} if own.get(factor) != other.get(factor)}
    if apart != {"rule", "buffer"}:
        return len(apart) == 1
    buffered = own["rule"] in BUFFERED and other["rule"] in BUFFERED
    return not buffered and own["local work"] != _level(1)


def _combinations(
    fleet: Fleet, steps: LocalSteps, work: Sequence[LocalSteps], curvature: float
) -> list[Proposal]:
    """Every rule with every server optimiser and buffer size that makes a difference, with ``steps`` per task."""
    _, *sizes = buffers(fleet.size)
    found = []
    for rule in dict.fromkeys(same_weights(fleet, steps).values()):
        for server in SERVERS:
            baseline = rule in (FEDBUFF, FEDASYNC) and server == "plain" and steps in work[:2]
            found.append(_member(rule, server, steps, curvature, baseline=baseline))
            found += [
                _member(rule, server, steps, curvature, buffer=size)
                for size in (sizes if rule in BUFFERED else ())
            ]
    return found


def _level(steps: LocalSteps) -> str:
    return f"{min(steps)} to {max(steps)}" if isinstance(steps, tuple) else f"{steps}"


def _member(
    rule: str,
    server: str,
    steps: LocalSteps,
    curvature: float,
    *,
    buffer: int | None = None,
    baseline: bool = False,
) -> Proposal:
    """One combination of the design; with no ``buffer``, that of the rule itself."""
    levels = {"rule": rule, "server": server, "local work": _level(steps)}
    table: dict[str, object] = {**RULES[rule], "server": dict(SERVERS[server])}
    name = rule
    if buffer is not None:
        levels["buffer"] = f"{buffer}"
        table["buffer-size"] = buffer
        name += f", K = {buffer}"
    name += "" if server == "plain" else f", {server}"
    name += "" if steps == 1 else f", {_level(steps)} local steps"
    if server == "plain":
        del table["server"]
    if steps != 1:
        table["local-steps"] = list(steps) if isinstance(steps, tuple) else steps
    adaptive_differences = rule in SENDS_DIFFERENCES and server == "adaptive"
    if adaptive_differences or (rule not in SENDS_DIFFERENCES and steps != 1):
        table["local-learning-rate"] = float(f"{LOCAL_STEP / max(curvature, 1e-12):.2g}")
    if (
        adaptive_differences
    ):  # their steps do not depend on the clients' rate: the server's is tuned
        table["server-learning-rate"] = "run"
    choices = Choices(rule=table, policy="never-queue")
    return Proposal(name, choices, levels, baseline=baseline)


def _rule(name: str, steps: int) -> dict[str, object]:
    return {"name": name} if steps == 1 else {"name": name, "local-steps": steps}


def _fits(proposal: Proposal, clients: int, weights: Vector) -> bool:
    """Whether the rule is valid with these options and its memory fits."""
    try:
        check_memory(rule_from_table(proposal.choices.rule or ""), clients, weights)
    except InvalidInput:
        return False
    return True
