"""The steady state of a network under any policy whose theory is known."""

from collections.abc import Mapping

from sojourn.dispatch.policies import POLICIES, NeverQueue, Routed, as_policy
from sojourn.dispatch.policy import Policy
from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.fleet.laws import LawLike, Laws
from sojourn.theory.jackson import Analysis
from sojourn.theory.jackson.analysis import analyze as analyze_routed
from sojourn.theory.jackson.steady_state import Engine
from sojourn.theory.never_queue import never_queue

ROUTED = Routed()


def analyze(
    network: Network,
    policy: str | Mapping[str, object] | Policy = ROUTED,
    *,
    engine: Engine = "auto",
    law: Laws | None = None,
    server_law: LawLike | None = None,
) -> Analysis:
    r"""Throughput, staleness, load, weights and noise of ``network`` in steady state.

    ``policy`` is a name, a table or a value of `sojourn.dispatch`: ``routed`` is the paper's closed
    network (`sojourn.theory.jackson.analyze`, exact for exponential times), ``never-queue`` is in
    closed form for every law (`sojourn.theory.never_queue.never_queue`), one's own gives its theory
    by ``Policy.analysis``. ``engine`` says how a closed network is computed. ``law`` and
    ``server_law`` are the laws of service times as in ``simulate``: a name, a table, a law, or
    (``law``) a list with one per class; by default the fleet's own. If they are not exponential the
    result for routed tasks is an approximation, and says so (``is_exact``, ``caution``); that of
    never-queue depends on them only with ``patience``.

    >>> from sojourn.fleet import Fleet, balanced_routing
    >>> fleet = Fleet([1.0, 2.0])
    >>> network = Network(fleet, balanced_routing(fleet), concurrency=3)
    >>> analyze(network)
    Analysis(throughput 2.25, staleness 1.5 to 3 rounds, busiest client 75.0% busy)
    >>> analyze(network, "never-queue")
    Analysis(throughput 3, staleness 0.5 to 2 rounds, busiest client 100.0% busy)
    """
    chosen = as_policy(policy)
    if isinstance(chosen, Routed):
        return analyze_routed(network, engine=engine, law=law, server_law=server_law)
    if isinstance(chosen, NeverQueue) and chosen.patience is not None and not network.has_delays:
        return never_queue(network, patience=chosen.patience, law=law)
    found = chosen.analysis(network)
    if found is None:
        known = " and ".join(
            f"'{name}'" for name, kind in POLICIES.items() if kind.analysis is not Policy.analysis
        )
        raise InvalidInput(
            f"no theory is known for the policy '{chosen.name}' on this network: there is one for "
            f"{known}, the latter without a server that takes time. Simulate this one."
        )
    return found
