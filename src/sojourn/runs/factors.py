"""What each factor of a factorial experiment is worth: main effects with confidence intervals.

Strategies differ in policy, weighting, rule, server optimiser, averaging and local work. The main
effect of a level is its mean difference from the reference level between strategies that agree in
all other factors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sojourn._support.estimate import Estimate
from sojourn.errors import InvalidInput
from sojourn.runs.comparison import LEVEL, t_limit
from sojourn.runs.history import History

FACTORS = ("policy", "rule", "weighting", "optimiser", "averaging", "local steps")

Levels = Mapping[str, str]
"""The level of each factor that a strategy has."""


@dataclass(frozen=True)
class Effect:
    r"""What ``level`` is worth beside ``reference``, other factors being equal.

    ``pairs`` strategies differ in this factor alone. ``value`` is their mean difference, or with
    ``ratio`` their geometric mean ratio, taken for every seed and then over the seeds; ``low`` and
    ``high`` bound it with 95 %, over all effects of the experiment together (Bonferroni), from the
    spread over seeds.
    """

    factor: str
    level: str
    reference: str
    value: float
    low: float
    high: float
    pairs: int
    seeds: int
    ratio: bool = False

    @property
    def significant(self) -> bool:
        """Whether the interval excludes no effect: 0, or a ratio of 1."""
        none = 1.0 if self.ratio else 0.0
        return self.low > none or self.high < none


def levels_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """The levels of a strategy, from its entry in ``summary.json``.

    >>> rule = {"name": "async-sgd", "debias": 1.0, "cap": 5.0, "server": {"name": "adam", "average": 0.2}}
    >>> list(levels_of({"policy": "never-queue", "rule": rule}).values())
    ['never-queue', 'async-sgd', 'debias 1, cap 5', 'adam', 'averaged', '1']
    """
    rule = entry["rule"] if isinstance(entry["rule"], Mapping) else {"name": entry["rule"]}
    server = rule.get("server") or {"name": "plain"}
    weights = [f"{key} {rule[key]:g}" for key in ("debias", "cap") if rule.get(key)]
    steps = rule.get("local-steps", 1)
    levels = (
        str(entry["policy"]),
        str(rule["name"]),
        ", ".join(weights) or "plain",
        str(server["name"]),
        "last version" if server.get("average") is None else "averaged",
        "by client" if isinstance(steps, list) else f"{steps}",
    )
    return dict(zip(FACTORS, levels, strict=True))


def main_effects(
    histories: Sequence[History], levels: Mapping[str, Levels], target: float | None = None
) -> list[Effect]:
    """The main effects on the final primary measure, or on the time to ``target`` of it.

    ``levels`` has the levels of every strategy by name. Effects on times, losses and other measures
    of which less is better are ratios; those on accuracies are differences. A run that diverged
    counts as the worst of all runs, and one that did not reach the target as its end: effects are
    then at least as large as shown.

    Cost: strategies squared times seeds.
    """
    values = _values(histories, target)
    every = [value for own in values.values() for value in own.values()]
    smaller = target is not None or not histories[0].measure.higher_is_better
    return effects_on(values, levels, ratio=smaller and min(every) > 0.0)


def effects_on(
    values: Mapping[str, Mapping[int, float]], levels: Mapping[str, Levels], *, ratio: bool = False
) -> list[Effect]:
    """The main effects on ``values`` by strategy and seed; with ``ratio``, on their logarithms.

    The reference of a factor is its level with the most partners, of equal ones the first.

    >>> levels = {name: dict.fromkeys(FACTORS, "same") | {"rule": name} for name in ("a", "b")}
    >>> (effect,) = effects_on({"a": {0: 2.0, 1: 4.0}, "b": {0: 1.0, 1: 2.0}}, levels, ratio=True)
    >>> effect.level, effect.reference, round(effect.value, 3)
    ('b', 'a', 0.5)
    """
    seeds = sorted(set.intersection(*(set(own) for own in values.values())))
    if not seeds:
        raise InvalidInput("the strategies have no seed in common: their differences say nothing")
    scaled = {
        name: {seed: math.log(own[seed]) if ratio else own[seed] for seed in seeds}
        for name, own in values.items()
    }
    found = []
    for factor in next(iter(levels.values())):
        ordered = list(dict.fromkeys(levels[name][factor] for name in values))
        partners = {
            (level, other): _pairs(values, levels, factor, level, other)
            for level in ordered
            for other in ordered
            if level != other
        }
        count = {
            level: sum(len(partners[k]) for k in partners if k[1] == level) for level in ordered
        }
        reference = max(ordered, key=lambda level: count[level])
        for level in ordered:
            pairs = partners.get((level, reference), [])
            if pairs:
                gaps = [
                    float(np.mean([scaled[a][s] - scaled[b][s] for a, b in pairs])) for s in seeds
                ]
                found.append((factor, level, reference, gaps, len(pairs)))
    return [_effect(*entry, tests=len(found), ratio=ratio) for entry in found]


def _values(histories: Sequence[History], target: float | None) -> dict[str, dict[int, float]]:
    higher_is_better = target is None and histories[0].measure.higher_is_better
    values: dict[str, dict[int, float]] = {}
    for history in histories:
        value = math.nan if target is None else history.time_to(target)
        if math.isnan(value) and history.diverged_at is None:
            value = history.final if target is None else float(history.time[-1])
        values.setdefault(history.strategy, {})[history.seed] = value
    finite = [v for own in values.values() for v in own.values() if math.isfinite(v)]
    worst = (min if higher_is_better else max)(finite) if finite else math.nan
    return {
        name: {seed: v if math.isfinite(v) else worst for seed, v in own.items()}
        for name, own in values.items()
    }


def _pairs(
    names: Mapping[str, object], levels: Mapping[str, Levels], factor: str, level: str, other: str
) -> list[tuple[str, str]]:
    """Strategies that have ``level`` and ``other`` of a factor, and agree in all other factors."""

    def rest(name: str) -> tuple[str, ...]:
        return tuple(level for f, level in levels[name].items() if f != factor)

    partners = {rest(name): name for name in names if levels[name][factor] == other}
    mine = [name for name in names if levels[name][factor] == level]
    return [(name, partners[rest(name)]) for name in mine if rest(name) in partners]


def _effect(
    factor: str,
    level: str,
    reference: str,
    gaps: Sequence[float],
    pairs: int,
    *,
    tests: int,
    ratio: bool,
) -> Effect:
    found, seeds = Estimate.from_samples(gaps), len(gaps)
    value, low, high = float(found.mean), -math.inf, math.inf
    if seeds > 1:
        margin = t_limit(LEVEL / max(1, tests), seeds) * float(found.standard_error)
        low, high = value - margin, value + margin
    if ratio:
        value, low, high = math.exp(value), math.exp(low), math.exp(high)
    return Effect(factor, level, reference, value, low, high, pairs, seeds, ratio)
