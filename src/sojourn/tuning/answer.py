"""The answer of a tuning in words, and as a plan."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.estimate import Estimate
from sojourn.planning import Plan
from sojourn.planning.measured import Measured
from sojourn.provenance import provenance

if TYPE_CHECKING:
    from sojourn.tuning.tune import Confirmed, Tuned


def sentence(tuned: "Tuned") -> str:
    """What to do, how good it is, and what the others need or reach."""
    pick, others = tuned.pick, [row for row in tuned.table[1:] if row.baseline]
    if not others:
        others = list(tuned.table[1:])
    head = f"{pick.name} at learning rate {pick.learning_rate:g}"
    if tuned.setting.criterion.kind == "target":
        percent = f"{100 * (tuned.setting.criterion.target or 0.0):g} %"
        if not math.isfinite(pick.score.mean):
            return f"{head} comes closest to {percent}, which nobody reached: give it longer."
        begin = f"{head} reaches {percent} in {pick.score:.3g} units of time"
        rest = [_needs(row, pick) for row in others]
    else:
        begin = f"{head} ends at a test loss of {pick.score:.3g}{_accuracy(pick)}"
        rest = [f"{row.name} at {row.score:.3g}{_accuracy(row)}" for row in others]
    tail = f"; {', '.join(rest)}" if rest else ""
    ties = f" It ties with {' and '.join(tuned.tied)}." if tuned.tied else ""
    return f"{begin}{tail}.{ties}"


def plan_of(tuned: "Tuned") -> Plan:
    """The pick as a plan that `train`, `simulate` and `deploy` take, with its evidence."""
    strategy = tuned.setting.experiment.strategies[tuned.pick.strategy]
    evidence: dict[str, Any] = {
        "sentence": tuned.sentence,
        "seeds": len(tuned.pick.scores),
        "candidates": tuned.race.entered,
        "gradients": tuned.gradients,
    }
    return Plan(
        fleet=tuned.setting.experiment.fleet,
        objective=Measured(tuned.setting.criterion.describe(), float(tuned.pick.score.mean)),
        network=strategy.network,
        learning_rate=tuned.pick.learning_rate,
        value=float(tuned.pick.score.mean),
        provenance=provenance(),
        policy=strategy.scenario.policy,
        rule=strategy.rule,
        evidence=evidence,
    )


def _needs(row: "Confirmed", pick: "Confirmed") -> str:
    reached = [s for s in row.scores if math.isfinite(s)]
    horizon = max((float(h.time[-1]) for h in row.histories if h.rows), default=math.nan)
    late = [s for s in reached if s > horizon]
    if not reached or late:
        number = len(reached) - len(late)
        return f"{row.name} does not within {horizon:g}" + (
            f" ({number} of {len(row.scores)} runs do)" if number else ""
        )
    return f"{row.name} needs {row.score.mean:.3g} ({row.score.mean / pick.score.mean:.1f} times)"


def _accuracy(row: "Confirmed") -> str:
    finals = [history.final_accuracy for history in row.histories]
    if not finals or not np.isfinite(finals).all():
        return ""
    return f" ({Estimate.from_samples(finals).mean:.1%})"
