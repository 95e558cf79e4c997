"""The steady state of a network under any policy whose theory is known."""

from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.dispatch import POLICIES, Policy, Routed, as_policy
from sojourn.errors import InvalidInput
from sojourn.jackson import Analysis
from sojourn.jackson.analysis import Variable, analyze as analyze_routed
from sojourn.jackson.steady_state import Engine
from sojourn.network import Network

ROUTED = Routed()


def analyze(
    network: Network,
    policy: str | Mapping[str, Any] | Policy = ROUTED,
    *,
    engine: Engine = "auto",
    law: Variable | Sequence[Variable] | None = None,
    server_law: Variable | None = None,
) -> Analysis:
    r"""Throughput, staleness, load, weights and noise of ``network`` in steady state.

    ``policy`` is a name, a table or a value of `sojourn.dispatch`: ``routed`` is the paper's closed
    network (`sojourn.jackson.analyze`, exact for exponential times), ``never-queue`` is in closed
    form for every law (`sojourn.neverqueue.never_queue`), one's own gives its theory by
    ``Policy.analysis``. ``engine`` says how a closed network is computed. ``law`` and ``server_law``
    are of service times that are not exponential: for routed tasks the result is then an
    approximation, and says so (``is_exact``); never queueing does not depend on them. Without ``law``
    they are those that the fleet tells.

    >>> from sojourn.network import Fleet, balanced_routing
    >>> fleet = Fleet([1.0, 2.0])
    >>> network = Network(fleet, balanced_routing(fleet), concurrency=3)
    >>> analyze(network)
    Analysis(throughput 2.25, staleness 1.5 to 3 rounds, busiest client 75.0% busy)
    >>> analyze(network, "never-queue")
    Analysis(throughput 3, staleness 0.5 to 2 rounds, busiest client 100.0% busy)
    """
    chosen = as_policy(policy)
    if isinstance(chosen, Routed) and not (law is None and server_law is None):
        return analyze_routed(network, engine=engine, law=law, server_law=server_law)
    found = chosen.analysis(network, engine=engine)
    if found is None:
        known = " and ".join(
            f"'{name}'" for name, kind in POLICIES.items() if kind.analysis is not Policy.analysis
        )
        raise InvalidInput(
            f"no theory is known for the policy '{chosen.name}' on this network: there is one for "
            f"{known}, the latter without a server that takes time. Simulate this one."
        )
    return found
