"""Tune: theory proposes candidates, pilot runs decide, fresh seeds confirm."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from sojourn._support.files import alone_in
from sojourn._support.progress import Progress, Silent, parse_duration
from sojourn._support.provenance import provenance
from sojourn.errors import InvalidInput
from sojourn.figures.figure import Figure
from sojourn.report.tuned import race_figure
from sojourn.report.verdict import Confirmation as ConfirmationTable, Rung, Verdict, verdict_of
from sojourn.runs.folder import RunFolder
from sojourn.runs.measure import ACCURACY
from sojourn.runs.summary import TARGETS
from sojourn.training.experiment.engines import Engine, LocalEngine, TrackedEngine
from sojourn.training.experiment.jobs import at_seed
from sojourn.training.experiment.size import size_note
from sojourn.tuning.budget import (
    CONFIRMED,
    LEAST_SEEDS,
    MOST_CONFIRMING,
    MOST_EXAMINING,
    MOST_SECONDS,
    check_time_left,
    confirmation_seconds,
    examination_seconds,
    fitted,
    measure,
)
from sojourn.tuning.confirmation import ANALYSES, Confirmation, Confirmed, targets_of
from sojourn.tuning.robustness import Robustness, examine
from sojourn.tuning.runner import HalvingRunner
from sojourn.tuning.setting import Setting, read_setting
from sojourn.tuning.successive_halving import Candidate, Halving

STRATEGY = "strategy.toml"


@dataclass(frozen=True, eq=False)
class Tuned:
    """The result of tuning: the pick, what it was compared with, and what that cost.

    ``table`` has the pick first, then the other finalists, then the baselines; ``tied`` are the names of
    finalists that do not differ significantly from the pick (95 %). ``note`` says what the budget left out,
    and ``robustness`` has the pick and its nearest rival under other conditions.
    """

    setting: Setting
    halving: Halving
    table: tuple[Confirmed, ...]
    tied: tuple[str, ...]
    seconds: float
    folder: Path
    note: str = ""
    robustness: Robustness | None = None

    @property
    def gradients(self) -> int:
        """The gradients that pilot runs computed."""
        return self.halving.gradients

    @property
    def pick(self) -> Confirmed:
        """The recommended strategy."""
        return self.table[0]

    @property
    def verdict(self) -> Verdict:
        """What to use, why, and what the test says of the others."""
        histories = [history for row in self.table for history in row.histories]
        targets = targets_of(self.setting)
        if targets is None:
            targets = TARGETS if histories[0].measure == ACCURACY else ()
        return verdict_of(histories, targets, tuning=_confirmed_table(self), folder=self.folder)

    @property
    def sentence(self) -> str:
        """The answer in words."""
        return f"{self.verdict.title}. {self.verdict.because}"

    @property
    def caveats(self) -> str:
        """Under which other conditions the answer holds, and what the budget left out."""
        pick = Candidate(self.pick.strategy, self.pick.learning_rate)
        hangs_on = "" if self.robustness is None else self.robustness.sentence(pick)
        return " ".join(filter(None, [hangs_on, self.note]))

    def plot(self) -> Figure:
        """Scores against the fraction of the horizon, the candidates that ran to the end named."""
        return race_figure("race", _rungs(self), self.setting.criterion.describe())

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()

    def __repr__(self) -> str:
        return f"Tuned({self.sentence})"


def tune(
    experiment: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    time: float | None = None,
    rounds: int | None = None,
    target: float | None = None,
    criterion: str | None = None,
    virtual: bool = False,
    robust: bool = False,
    budget: float | str | None = None,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """The best strategy for a fleet and a learning problem, found by pilot runs and confirmed.

    ``experiment`` is a TOML file: fleet, data or problem, model, horizon and, if one wants to choose among
    a few only, strategies. ``time`` or ``rounds`` replaces its horizon. Candidates are judged by the
    problem's primary measure at the end (the loss, where that is an accuracy), or with ``target`` by the
    time to that value of it, or by another ``criterion``. Only what can be deployed is recommended, unless
    ``virtual`` time is enough; with ``robust`` the pick is the finalist whose worst case under other
    conditions is the best. ``budget`` is in seconds, or text such as ``"10m"``. Everything goes to the folder ``out``: ``strategy.toml``,
    ``tune.json``, and the confirming runs as `sojourn.training` writes them; what an interrupted call
    finished is not run again.
    """
    begun = monotonic()
    seconds = parse_duration(budget) if isinstance(budget, str) else budget
    setting = read_setting(
        Path(experiment),
        time=time,
        rounds=rounds,
        target=target,
        criterion=criterion,
        virtual=virtual,
    )
    engine = LocalEngine(jobs)
    return tune_setting(
        setting, Path(out), engine=engine, budget=seconds, say=say, begun=begun, robust=robust
    )


def tune_setting(
    setting: Setting,
    folder: Path,
    *,
    engine: Engine | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
    begun: float | None = None,
    check: bool = True,
    robust: bool = False,
) -> Tuned:
    """Choose among the candidates of ``setting`` by pilot runs, confirm the best on fresh seeds, write it.

    ``budget`` is in seconds since ``begun`` (of the monotonic clock; by default, now). Candidates are left
    out, the least promising first, until the plan fits, and ``say`` is called with that plan. The time is
    checked as tuning runs: when it is out, the best strategy so far is confirmed on as many seeds as there
    is time for. Then the pick and its nearest rival are run under other conditions (`sojourn.tuning.robustness`),
    if there is time, unless ``check`` is false. With ``robust`` all finalists are, at smaller learning rates, too,
    before one of them is picked: the one whose worst case is the best. What ``folder`` holds of an earlier call is not run again.
    The test set is used for the confirmation only, after the choice.
    """
    begun = monotonic() if begun is None else begun
    limit = math.inf if budget is None else budget
    deadline = begun + limit
    engine = worth_starting(engine or LocalEngine(), monotonic() - begun, deadline - monotonic())
    shown = progress or Silent()
    check_time_left(begun, limit)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        shown.start("tune: measuring costs")
        costs = measure(setting, min(MOST_SECONDS, limit / 10.0))
        setting, planned = fitted(setting, costs, limit, engine.width, monotonic() - begun)
        size = size_note(setting.planned, timed=False, seed=setting.pilot_seed)
        say(f"{planned}; {size}")
        confirming = confirmation_seconds(setting, costs, engine.width)
        confirming = min(confirming, MOST_CONFIRMING * (deadline - monotonic()))
        examining = (
            examination_seconds(setting, costs, engine.width) if check and not robust else 0.0
        )
        examining = min(examining, MOST_EXAMINING * (deadline - monotonic()))
        runner = HalvingRunner(setting, folder, engine, shown)
        # With `robust` the conditions take their time before the confirmation: as much as the pilot runs.
        runner.deadline = deadline - confirming - examining
        if robust:
            runner.deadline = (monotonic() + runner.deadline) / 2.0
        halving = runner.run()
        finalists = _finalists(setting, halving)
        if not finalists:
            raise InvalidInput(
                "every candidate diverged, at every learning rate that was tried. Give smaller ones: "
                "learning-rate = [...] in the experiment."
            )
        examined = None
        if robust:
            shown.start("tune: other conditions")
            tried = _slower(finalists[:CONFIRMED])
            examined = examine(setting, tried, engine, _horizon(setting), deadline - confirming)
            best = examined.best()
            finalists = [best, *(c for c in finalists if c.strategy != best.strategy)]
        confirmation = Confirmation(
            setting,
            folder,
            engine,
            shown,
            deadline=deadline - examining,
            seconds=costs.slowdown * costs.whole_run(setting) / engine.width,
            batched=costs.batched,
        )
        table, tied = confirmation.run(finalists)
        if examined is None and check:
            shown.start("tune: other conditions")
            pair = [Candidate(row.strategy, row.learning_rate) for row in table[:2]]
            each = confirmation.seconds
            examined = examine(setting, pair, engine, _horizon(setting), deadline, each)
        tuned = Tuned(
            setting=setting,
            halving=halving,
            table=table,
            tied=tied,
            seconds=monotonic() - begun,
            folder=folder,
            note=_note(halving, len(table[0].scores)),
            robustness=examined,
        )
        _write(tuned)
        return tuned


def worth_starting(engine: Engine, loading: float, left: float) -> Engine:
    """The engine, without its processes on this machine if to start them takes longer than they save.

    A process takes about as long to start as this one took, ``loading`` seconds; w of them do in
    ``loading`` + W/w what one does in W, at most the seconds ``left``.

    >>> worth_starting(LocalEngine(2), 10.0, 15.0), worth_starting(LocalEngine(2), 10.0, 25.0)
    (LocalEngine(jobs=1), LocalEngine(jobs=2))
    """
    if isinstance(engine, TrackedEngine):
        return replace(engine, engine=worth_starting(engine.engine, loading, left))
    if not isinstance(engine, LocalEngine) or loading + left / engine.width <= left:
        return engine
    return LocalEngine()


def _finalists(setting: Setting, halving: Halving) -> list[Candidate]:
    """The best strategies that can be recommended, then the baselines that are not among them."""
    podium = halving.podium()
    strategies = setting.experiment.strategies
    allowed = [
        c for c in podium if setting.virtual or strategies[c.strategy].not_deployable() is None
    ]
    best = (allowed or podium)[:CONFIRMED]
    return best + [c for c in podium if c not in best and c.strategy in setting.baselines]


def _horizon(setting: Setting) -> float:
    """How long runs last in virtual time; infinite where rounds are counted."""
    return math.inf if setting.experiment.time is None else setting.experiment.time


def _slower(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, and the same at a half and a quarter of their learning rates."""
    parts = (1.0, 0.5, 0.25)
    return [
        dataclasses.replace(c, learning_rate=part * c.learning_rate)
        for c in candidates
        for part in parts
    ]


def _note(halving: Halving, seeds: int) -> str:
    """What the budget left out, in a sentence; empty if nothing."""
    if halving.stopped:
        fraction = halving.rungs[-1].fraction
        where = f"at {fraction:.3g} of the horizon" if fraction < 1.0 else "in their last rung"
        confirm = "one fresh seed confirms" if seeds == 1 else f"{seeds} fresh seeds confirm"
        return f"The budget ended the pilot runs {where}, and {confirm} the pick."
    if seeds < LEAST_SEEDS:
        return f"The budget allowed {seeds} of {LEAST_SEEDS} fresh seeds."
    return ""


def _confirmed_table(tuned: Tuned) -> ConfirmationTable:
    """The pick and the scores on fresh seeds, as they stand in the answer's file."""
    return {
        "criterion": tuned.setting.criterion.describe(),
        "higher_is_better": tuned.setting.criterion.higher_is_better,
        "pick": tuned.pick.name,
        "learning_rate": tuned.pick.learning_rate,
        "analyses": list(ANALYSES),
        "caveats": tuned.caveats,
        "confirmed": [
            {
                "name": row.name,
                "learning_rate": row.learning_rate,
                "baseline": row.baseline,
                "without_update": row.without_update,
                "score": row.score.to_table(),
                "scores": [s if math.isfinite(s) else None for s in row.scores],
            }
            for row in tuned.table
        ],
    }


def _answer(tuned: Tuned) -> dict[str, object]:
    """The answer as its file has it."""
    names = [strategy.name for strategy in tuned.setting.experiment.strategies]
    return {
        "sentence": tuned.sentence,
        "levels": {names[i]: dict(levels) for i, levels in tuned.setting.levels.items()},
        "conditions": [] if tuned.robustness is None else tuned.robustness.to_table(),
        **_confirmed_table(tuned),
        "tied": list(tuned.tied),
        "race": _rungs(tuned),
        "candidates": tuned.halving.compared,
        "gradients": tuned.gradients,
        "seconds": round(tuned.seconds, 1),
        "provenance": provenance(experiment=tuned.setting.experiment.to_table()),
    }


def _rungs(tuned: Tuned) -> list[Rung]:
    """Every rung of successive halving, the best candidate first."""
    names = [strategy.name for strategy in tuned.setting.experiment.strategies]
    return [
        {
            "fraction": rung.fraction,
            "gradients": rung.gradients,
            "candidates": [
                {"name": names[c.strategy], "learning_rate": c.learning_rate, "score": s}
                for c, s in sorted(rung.scores.items(), key=lambda item: item[::-1])
                if math.isfinite(s)
            ],
            "diverged": sum(not math.isfinite(s) for s in rung.scores.values()),
        }
        for rung in tuned.halving.rungs
    ]


def _write(tuned: Tuned) -> None:
    folder = RunFolder(tuned.folder)
    with folder.ledger.writing(tuned.folder / STRATEGY) as temporary:
        write_strategy(tuned, temporary)
    table = _answer(tuned)
    with folder.ledger.writing(folder.tuning_path) as temporary:
        temporary.write_text(json.dumps(table, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_strategy(tuned: "Tuned", path: Path) -> None:
    """Write the pick as a strategy that `simulate`, `train` and `deploy` take, with its evidence."""
    pick = tuned.pick
    experiment = tuned.setting.experiment
    strategy = at_seed(experiment, experiment.strategies[pick.strategy], experiment.seeds[0])
    replace(strategy, learning_rates=(pick.learning_rate,)).write(
        path,
        evidence={
            "criterion": tuned.setting.criterion.describe(),
            "score": float(pick.score.mean),
            "sentence": tuned.sentence,
            "seeds": len(pick.scores),
            "candidates": tuned.halving.compared,
            "gradients": tuned.gradients,
        },
        provenance=provenance(),
    )
