"""The summary of a comparison: means over seeds with standard errors."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sojourn._support.estimate import Estimate
from sojourn._support.numbers import or_null
from sojourn.dispatch import Policy
from sojourn.fleet import Network
from sojourn.rules import Rule, rule_to_table
from sojourn.runs.history import History
from sojourn.runs.measure import ACCURACY

TARGETS = (0.5, 0.8)
"""Accuracies whose times are reported by default."""

Tried = Mapping[float, Sequence[History]]
"""The pilot runs of a strategy by learning rate."""


def pilot_score(histories: Sequence[History]) -> float:
    """The score of a learning rate: the mean over time of the primary measure, higher is better.

    A measure of which less is better has its sign changed. Minus infinity if a run diverged.
    """
    if any(history.diverged_at is not None for history in histories):
        return -math.inf
    score = float(np.mean([history.mean for history in histories]))
    if not math.isfinite(score):
        return -math.inf
    return score if histories[0].measure.higher_is_better else -score


def best_learning_rate(pilots: Tried) -> float:
    """The learning rate with the best score; the smaller of equals, so the smallest if all diverged."""
    return min(pilots, key=lambda rate: (-pilot_score(pilots[rate]), rate))


def edge_of(rate: float, rates: Sequence[float]) -> str | None:
    """Whether the rate chosen is the ``"smallest"`` or ``"largest"`` of several.

    >>> edge_of(0.1, [0.01, 0.03, 0.1])
    'largest'
    """
    if len(rates) < 2:
        return None
    return {min(rates): "smallest", max(rates): "largest"}.get(rate)


def summarize_strategy(
    name: str,
    histories: Sequence[History],
    *,
    network: Network,
    rule: Rule,
    law: str,
    policy: Policy,
    learning_rate: float,
    targets: Sequence[float] | None,
    pilots: Tried | None = None,
) -> dict[str, object]:
    """One entry of ``summary.json``. Runs that diverged are listed, and left out of the means.

    The network is written only where tasks follow its routing. ``targets`` are values of the primary
    measure, by default ``TARGETS`` if that is an accuracy. A learning rate at an edge of those tried is
    noted unless the server made no update, since then no learning rate could help.
    """
    good = [history for history in histories if history.diverged_at is None]
    learnt = any(history.rows and history.updates[-1] for history in histories)
    measure = histories[0].measure
    if targets is None:
        targets = TARGETS if measure == ACCURACY else ()
    return {
        "name": name,
        **({"network": network.to_table()} if policy.routes else {}),
        "rule": rule_to_table(rule),
        "concurrency": network.concurrency,
        "law": law,
        "policy": policy.name,
        "learning_rate": learning_rate,
        "learning_rate_at_edge": edge_of(learning_rate, sorted(pilots or ())) if learnt else None,
        "measure": {"name": measure.name, "higher_is_better": measure.higher_is_better},
        "final": _over_seeds([history.final for history in good]),
        "mean": _over_seeds([history.mean for history in good]),
        "metrics": {
            name: _over_seeds([float(h.metrics[name][-1]) for h in good])
            for name in histories[0].metrics
        },
        "final_accuracy": _over_seeds([history.final_accuracy for history in good]),
        "mean_accuracy": _over_seeds([history.mean_accuracy for history in good]),
        "final_loss": _over_seeds([float(h.test_loss[-1]) for h in good]),
        "time_to": {f"{target:g}": _time_to(histories, target) for target in targets},
        "rounds": _over_seeds([float(h.round[-1]) for h in good]),
        "time": _over_seeds([float(h.time[-1]) for h in good]),
        "gradients": _over_seeds([float(h.gradients[-1]) for h in good]),
        "updates": _over_seeds([float(h.updates[-1]) for h in good]),
        "seeds": [history.seed for history in histories],
        "diverged": _diverged(histories),
        "pilots": [_pilot_entry(rate, runs) for rate, runs in sorted((pilots or {}).items())],
    }


def summarize(
    data: str,
    strategies: Sequence[Mapping[str, object]],
    provenance: Mapping[str, object],
    *,
    pilot_seeds: Sequence[int] = (),
) -> dict[str, object]:
    """The whole of ``summary.json``; ``data`` names the data set or the problem."""
    return {
        "provenance": dict(provenance),
        "data": data,
        "pilot_seeds": list(pilot_seeds),
        "strategies": [dict(entry) for entry in strategies],
    }


def _over_seeds(values: Sequence[float]) -> dict[str, float | None]:
    return Estimate.from_samples(values).to_table()


def _time_to(histories: Sequence[History], target: float) -> dict[str, object]:
    """The mean is given only if all seeds reached the target: one over some of them is biased."""
    times = [history.time_to(target) for history in histories]
    reached = [time for time in times if math.isfinite(time)]
    everyone = reached if len(reached) == len(times) else []
    known_to = [history.resolution(target) for history in histories if everyone]
    return {
        **_over_seeds(everyone),
        "reached": len(reached),
        "resolution": max(known_to) if known_to else None,
    }


def _pilot_entry(rate: float, runs: Sequence[History]) -> dict[str, object]:
    score = pilot_score(runs)
    return {
        "learning_rate": rate,
        "score": or_null(score),
        "diverged": _diverged(runs),
    }


def _diverged(runs: Sequence[History]) -> list[dict[str, int]]:
    return [
        {"seed": run.seed, "round": run.diverged_at} for run in runs if run.diverged_at is not None
    ]
