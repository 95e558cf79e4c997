"""What the explorer recommends, in a sentence: against the settings on the page."""

from dataclasses import replace
from typing import Any, TypeAlias

from sojourn.dispatch import NeverQueue
from sojourn.live.numbers import class_rows, stable_rate, summary, time_to_target
from sojourn.live.settings import Settings, planned
from sojourn.optimize import NoiseRate

SAME = 0.005
"""Relative difference up to which two settings are called equally good."""
SAFE = 0.5
"""Part of the largest stable learning rate that is recommended."""
_Found: TypeAlias = tuple[str, str, Settings, bool]
"""Title and text, the better settings, and whether the present ones are as good."""


def advice(settings: Settings, curvature: float | None = None) -> dict[str, Any]:
    """The recommended plan with what it gains, and the settings that "use this" brings.

    Where a pilot has measured the ``curvature``, the learning rate it brings is within what delayed
    steps bear.
    """
    title, text, better, is_best = (
        _least_noise(settings) if isinstance(settings.objective, NoiseRate) else _soonest(settings)
    )
    best = planned(settings.fleet, settings.objective, None)
    fleet, p = best.network.fleet, best.network.routing
    use: dict[str, Any] = {"dispatch": better.dispatch, "concurrency": better.concurrency}
    if curvature is not None:
        bearable = SAFE * stable_rate(better, better.analysis, curvature)
        use["learning_rate"] = float(f"{min(settings.learning_rate, bearable):.2g}")
    return {
        "title": title,
        "text": text,
        "is_best": is_best,
        "use": use,
        "summary": summary(better, curvature),
        "plan": {
            "objective": best.objective.name,
            "value": best.value,
            "concurrency": best.concurrency,
            "learning_rate": best.learning_rate,
            "classes": [
                {
                    "name": fleet.label(k),
                    "routing": float(p[k]),
                    "share": float(p[k] * fleet.counts[k]),
                }
                for k in range(fleet.classes)
            ],
        },
    }


def _least_noise(settings: Settings) -> _Found:
    size = settings.fleet.size
    best = planned(settings.fleet, settings.objective, None)
    never = replace(settings, dispatch=NeverQueue.name, concurrency=size)
    routed = replace(settings, dispatch="planned", concurrency=best.concurrency)
    # Without links never queueing is at the floor; with links one task each may leave clients idle.
    better = min((never, routed), key=lambda way: way.analysis.noise_rate)
    now, then = settings.analysis, better.analysis
    less, more = now.noise_rate / then.noise_rate, then.throughput / now.throughput
    way = "Never queue" if better is never else "Route as planned"
    if less < 1.0 + SAME:
        title = "Nothing brings less noise than this"
        text = (
            f"With {settings.concurrency} tasks in flight the noise rate is {now.noise_rate:.3g}, and "
            f"a task takes {now.mean_staleness_time:.3g} units of time on average. What is left to "
            "choose is how much an update of a slow client counts: try it below."
        )
    else:
        title = f"{way}: {less:.3g} times less noise, {more:.3g} times as many updates"
        text = (
            f"{better.concurrency} tasks in flight{', one each' if better is never else ''}: noise "
            f"rate {then.noise_rate:.3g} instead of {now.noise_rate:.3g}, "
            f"{then.throughput:.3g} updates per unit of time instead of {now.throughput:.3g}, and a task "
            f"takes {then.mean_staleness_time:.3g} units of time on average instead of "
            f"{now.mean_staleness_time:.3g}."
        )
    return title, text, better, less < 1.0 + SAME


def _soonest(settings: Settings) -> _Found:
    best = planned(settings.fleet, settings.objective, None)
    better = replace(settings, dispatch="planned", concurrency=best.concurrency)
    shares = ", ".join(f"{row['share']:.0%} to {row['name']}" for row in class_rows(better))
    now = time_to_target(settings)
    gain = None if now is None else now / best.value
    is_best = gain is not None and gain < 1.0 + SAME
    tasks = f"{best.concurrency} task{'s' if best.concurrency > 1 else ''} in flight"
    if gain is None:
        title = f"The target after {best.value:.3g} units of time: {tasks}"
        text = f"{shares}. The bound speaks of routed tasks only, so it cannot rank never queueing."
    elif is_best:
        title = "By the bound nothing reaches the target sooner"
        text = f"{best.value:.3g} units of time, with {tasks}: {shares}."
    else:
        ahead = "The target comes in reach" if gain == float("inf") else f"{gain:.3g} times sooner"
        title = f"{ahead}: {tasks} instead of {settings.concurrency}"
        text = f"{best.value:.3g} units of time to the target. {shares}."
    text += (
        " Constants are assumed (L = 10, σ = 1, M = 1, A = 2.3): sojourn calibrate measures them."
    )
    return title, text, better, is_best
