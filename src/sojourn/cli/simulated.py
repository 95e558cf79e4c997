"""What ``sojourn simulate`` finds, as numbers for programs: simulation beside theory."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.checks import check_number
from sojourn.energy import energy_per_round
from sojourn.estimate import Estimate
from sojourn.network import Network

if TYPE_CHECKING:
    from sojourn.jackson import Analysis
    from sojourn.simulation.estimates import Estimates
    from sojourn.simulation.scenario import Scenario


def _theory(network: Network, scenario: "Scenario") -> "Analysis | None":
    """What is known of these clients with exponential times, or of their policy for all."""
    from sojourn.jackson import analyze
    from sojourn.laws import Law

    loses = scenario.offline == "lose" and network.fleet.comes_and_goes
    if loses or scenario.hours is not None or scenario.drift is not None:
        return None
    if scenario.policy.routes:
        return analyze(network, law=Law("exponential"))
    return scenario.policy.analysis(network)


def comparison(network: Network, found: "Estimates", scenario: "Scenario") -> dict[str, Any]:
    """Simulation beside theory: throughput, energy, and every class."""
    from sojourn.jackson import analyze

    fleet = network.fleet
    slowed = replace(network, fleet=fleet.with_rates(fleet.service_rates / scenario.work))
    theory = _theory(slowed, scenario)
    energy = None
    near: dict[str, Any] = {} if theory is None else {"theory_is_exact": theory.is_exact}
    if scenario.policy.routes and theory is not None:
        laws: list[Any] = [*scenario.laws, scenario.server_law]
        if not scenario.is_exponential and all(
            np.isfinite(getattr(x, "scv", np.nan)) for x in laws
        ):
            approximate = analyze(slowed, law=laws[:-1], server_law=laws[-1])
            near |= {"approximate_throughput": approximate.throughput}
        if found.energy is not None and theory.is_exact:
            energy = energy_per_round(slowed).value
    return {
        "replicates": found.replicates,
        "rounds": _row(found.rounds, None),
        "time": _row(found.time, None),
        "throughput": _row(found.throughput, None if theory is None else theory.throughput),
        **near,
        **({} if found.energy is None else {"energy": _row(found.energy, energy)}),
        "classes": _classes(network, found, theory),
        "gradient": None if found.gradient is None else found.gradient.to_table(),
    }


def traffic(network: Network, found: "Estimates", model_bytes: float) -> list[dict[str, Any]]:
    """Bytes that one client of each class receives, and as many that it sends, per unit of time."""
    size = check_number("--model-bytes", model_bytes, above=0.0)
    assert found.completed is not None
    each = Estimate(size * found.completed.mean, size * found.completed.standard_error)
    return [
        {"name": network.fleet.label(k), **_row(each, None, k)}
        for k in range(network.fleet.classes)
    ]


def _classes(
    network: Network, found: "Estimates", theory: "Analysis | None"
) -> list[dict[str, Any]]:
    return [
        {
            "name": network.fleet.label(k),
            "count": int(network.fleet.counts[k]),
            "mean_tasks": _row(
                found.mean_tasks, None if theory is None else theory.relative_delay[k], k
            ),
            "staleness": _row(found.staleness, None if theory is None else theory.staleness[k], k),
        }
        for k in range(network.fleet.classes)
    ]


def _row(found: Estimate, theory: float | None, k: int | tuple[()] = ()) -> dict[str, Any]:
    """One comparison; what cannot be had, such as the staleness of a client never seen, is None."""
    mean, error = float(np.asarray(found.mean)[k]), float(np.asarray(found.standard_error)[k])
    numbers = {"mean": mean, "standard_error": error}
    if theory is not None:
        score = Estimate(mean, error).z_scores(theory)
        numbers |= {"theory": float(theory), "z": float(score)}
    return {key: value if np.isfinite(value) else None for key, value in numbers.items()}
