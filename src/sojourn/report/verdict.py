"""The verdict on a run: what to use, why, and what the test says of the other strategies.

It is made here, once, and shown word for word by the terminal, pages, the live view and notebooks.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from sojourn._support.files import exists
from sojourn._support.numbers import number
from sojourn._support.user_modules import KEPT_IN
from sojourn.errors import InvalidFile
from sojourn.report.outcomes import (
    Runs,
    by_strategy,
    final,
    finished,
    mean_time,
    reached,
    stopped_at,
    times_to,
)
from sojourn.runs.comparison import SequentialTest, significant_difference
from sojourn.runs.folder import Run, RunFolder
from sojourn.runs.history import History
from sojourn.runs.measure import Measure
from sojourn.strategy import modules_named

MOST_WORDS = 10
"""Words of a title."""
MOST_RIVALS = 3
"""Other strategies that the reason names."""
REFERENCES = ("uniform", "uniform routing")
"""Names of the strategy that the reason always names where it was run."""
Scores = Mapping[str, Mapping[int, float]]
"""Of every strategy, a score for each seed, smaller being better."""


class Candidate(TypedDict):
    """A strategy at a learning rate, and its score on held-out data after a rung."""

    name: str
    learning_rate: float
    score: float


class Rung(TypedDict):
    """One rung of successive halving."""

    fraction: float
    gradients: int
    diverged: int
    candidates: list[Candidate]


class Confirmed(TypedDict):
    """A strategy that ran on fresh seeds."""

    name: str
    score: dict[str, object]
    scores: list[float | None]
    learning_rate: NotRequired[float]
    baseline: NotRequired[bool]
    without_update: NotRequired[bool]


class Confirmation(TypedDict):
    """The pick of a tuning, and the scores on fresh seeds that it rests on."""

    pick: str
    learning_rate: float
    criterion: str
    confirmed: list[Confirmed]
    higher_is_better: NotRequired[bool]
    analyses: NotRequired[list[int]]
    caveats: NotRequired[str]


class Tuning(Confirmation):
    """The answer of a tuning, with all that a page needs of it."""

    race: list[Rung]
    gradients: int
    candidates: NotRequired[int]
    seconds: NotRequired[float]
    levels: NotRequired[dict[str, dict[str, str]]]


@dataclass(frozen=True)
class Verdict:
    """What to do, why, the strategies in groups by the test, and the command to type next.

    ``tested`` is what strategies are compared by, over ``seeds`` seeds. The ``pick`` is the one that
    is recommended, or that came closest. Every other strategy is ``alike`` (not significantly
    different from the pick in a paired t-test at 5 %), ``worse`` or, if the pick was chosen on other
    data, ``better``.
    """

    title: str
    because: str
    tested: str
    seeds: int
    pick: str
    alike: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()
    next_command: str = ""

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The strategies by heading, best first; no group is empty, and nothing tested has none."""
        if not self.tested:
            return {}
        seeds = f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"
        groups = {
            "Significantly better than the pick": self.better,
            f"The pick, by {self.tested}": (self.pick,),
            f"Not significantly different from it ({seeds})": self.alike,
            "Significantly worse": self.worse,
        }
        return {heading: names for heading, names in groups.items() if names}

    @property
    def strong(self) -> list[str]:
        """The strategies whose curves are drawn strong: the pick, its best rival, the reference."""
        rivals = [*self.better, *self.worse, *self.alike]
        return list(
            dict.fromkeys([self.pick, *rivals[:1], *(r for r in rivals if r in REFERENCES)])
        )

    @property
    def lines(self) -> list[str]:
        """The verdict as a terminal shows it: title, reason, groups, what to type next."""
        others = [f"{heading}: {'; '.join(names)}" for heading, names in list(self.groups.items())]
        command = [f"Next: {self.next_command}"] if self.next_command else []
        return [self.title, self.because, *others, *command]

    def _repr_html_(self) -> str:
        title, *lines = (escape(line) for line in self.lines)
        return f"<p><b>{title}</b></p>" + "".join(f"<p>{line}</p>" for line in lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def run_verdict(run: Run) -> Verdict:
    """The verdict on what a folder holds: a training, a tuning or a deployment.

    What was predicted of a deployment is not compared with it.
    """
    real = [history for history in run.histories if history.clock == "real"]
    return verdict_of(
        real or run.histories,
        run.targets,
        asked="targets" in run.experiment,
        tuning=checked_tuning(run) if run.tuning else None,
        folder=run.path,
    )


def verdict_of(
    histories: Sequence[History],
    targets: Sequence[float] = (),
    *,
    asked: bool = False,
    tuning: Confirmation | None = None,
    folder: Path | None = None,
) -> Verdict:
    """The verdict on the runs of one experiment or deployment.

    Strategies are compared by the time to the hardest of ``targets`` that one of them reached with
    every seed, or else by the final value of the primary measure. ``asked`` says that the user set
    the targets: then it is the first news if none was reached. Of a ``tuning``, as its file has it,
    the pick, the scores and the caveats are the tuning's own. ``folder`` is named by the next command.
    """
    runs = by_strategy(histories)
    measure = histories[0].measure
    test = _test(runs, targets, measure) if tuning is None else _tuned_test(tuning)
    order = sorted(test.scores, key=test.rank)
    pick = order[0] if tuning is None else str(tuning["pick"])
    others = [name for name in order if name != pick]
    # The pick of a tuning was chosen on other runs; here it is the best of these, which a test at
    # the full level would find significantly better too often.
    analyses = None if tuning is None else tuning.get("analyses")
    tests = SequentialTest(tuple(analyses)) if analyses else max(1, len(others))
    sides = {name: test.side(pick, name, tests) for name in others}
    caveats = "" if tuning is None else tuning.get("caveats", "")
    story = _Story(
        runs=runs,
        measure=measure,
        pick=pick,
        alike=tuple(name for name in others if sides[name] == 0),
        worse=tuple(name for name in others if sides[name] > 0),
        better=tuple(name for name in others if sides[name] < 0),
        targets=tuple(sorted(targets, reverse=measure.higher_is_better)),
        asked=test.by.startswith("time to") if tuning else asked,
        tuned=tuning is not None,
        folder=folder,
    )
    return Verdict(
        title=story.title(),
        because=" ".join(filter(None, [story.because(), caveats])),
        tested=test.by,
        seeds=story.seeds,
        pick=pick,
        alike=story.alike,
        worse=story.worse,
        better=story.better,
        next_command=story.next_command(),
    )


def checked_tuning(run: Run) -> Tuning:
    """The answer of a tuning, or ``InvalidFile`` where something is missing."""
    missing = {"pick", "learning_rate", "criterion", "confirmed", "race", "gradients"}
    missing -= set(run.tuning)
    if missing or not run.tuning["confirmed"] or not run.tuning["race"]:
        raise InvalidFile(
            f"{run.name}: the answer of the tuning lacks {', '.join(sorted(missing)) or 'rows'}. "
            "Run 'sojourn tune' again on the folder: finished runs are not run again."
        )
    return cast("Tuning", run.tuning)


@dataclass(frozen=True)
class _Test:
    """What strategies are compared ``by``, and their scores.

    Of a strategy that ``missed`` a target in some runs the time is unknown, and the end of a run, which
    hardly varies, would make any difference significant. It is compared by its ``ends`` instead; they
    are empty where runs stopped at the target, which leaves no end to compare.
    """

    by: str
    scores: Scores
    missed: Mapping[str, int] = field(default_factory=dict)
    ends: Scores = field(default_factory=dict)

    def rank(self, name: str) -> tuple[int, float]:
        """Fewest runs without a result first, then the smallest mean."""
        scores = self.scores[name]
        finite = [score for score in scores.values() if math.isfinite(score)]
        mean = sum(finite) / len(finite) if finite else math.inf
        return len(scores) - len(finite) + self.missed.get(name, 0), mean

    def side(self, pick: str, name: str, tests: int | SequentialTest) -> int:
        """1 if ``name`` is significantly worse than ``pick``, -1 if better, 0 if inconclusive."""
        if not self.missed.get(name):
            return _side(self.scores[pick], self.scores[name], tests)
        if not self.ends:
            return 0
        return max(0, _side(self.ends[pick], self.ends[name], tests))


def _test(runs: Runs, targets: Sequence[float], measure: Measure) -> _Test:
    """By the time to the hardest target that a strategy reached with every seed, else by the end."""
    ends = _ends(runs, measure)
    hardest_first = sorted(targets, reverse=measure.higher_is_better)
    for target in hardest_first:
        if any(math.isfinite(mean_time(histories, target).mean) for histories in runs.values()):
            times = {name: _times(histories, target) for name, histories in runs.items()}
            missed = {
                name: sum(map(math.isfinite, times[name].values())) - reached(histories, target)
                for name, histories in runs.items()
            }
            by = measure.time_to(target)
            if not any(missed.values()):
                return _Test(by, times)
            if stopped_at([run for group in runs.values() for run in group], target):
                return _Test(by, times, missed)
            by += f", or final {measure.label} where a run did not reach it"
            return _Test(by, times, missed, ends)
    return _Test(f"final {measure.label}", ends)


def _ends(runs: Runs, measure: Measure) -> dict[str, dict[int, float]]:
    """The final value of every run, smaller being better; infinite for one that diverged."""
    sign = -1.0 if measure.higher_is_better else 1.0
    ends = {}
    for name, histories in runs.items():
        good = {run.seed: sign * float(run.values(measure)[-1]) for run in finished(histories)}
        ends[name] = {run.seed: good.get(run.seed, math.inf) for run in histories}
    return ends


def _times(runs: Sequence[History], target: float) -> dict[int, float]:
    """When each seed came to ``target``; the end of a run that did not, the least that it takes.

    A run that diverged never comes to it: its end is no time.
    """
    ends = {run.seed: float(run.time[-1]) for run in finished(runs)}
    times = zip(runs, times_to(runs, target), strict=True)
    return {
        run.seed: time if math.isfinite(time) else ends.get(run.seed, math.inf)
        for run, time in times
    }


def _tuned_test(tuning: Confirmation) -> _Test:
    sign = -1.0 if tuning.get("higher_is_better", False) else 1.0
    scores = {
        str(entry["name"]): {
            seed: math.inf if score is None else sign * float(score)
            for seed, score in enumerate(entry["scores"])
        }
        for entry in tuning["confirmed"]
    }
    return _Test(str(tuning["criterion"]), scores)


def _side(
    best: Mapping[int, float], other: Mapping[int, float], tests: int | SequentialTest
) -> int:
    """1 if ``other`` is significantly worse than ``best``, -1 if better, 0 if the test is inconclusive.

    Seeds with which only ``other`` failed speak against it, so the rest may decide without them.
    """
    both = [seed for seed in best if seed in other]
    for seeds in (both, [seed for seed in both if math.isfinite(other[seed])]):
        gap = significant_difference([best[s] for s in seeds], [other[s] for s in seeds], tests)
        if gap is not None:
            return 1 if gap < 0 else -1
    return 0


@dataclass(frozen=True)
class _Story:
    """What the words of a verdict are made of; ``targets`` are the hardest first."""

    runs: Runs
    measure: Measure
    pick: str
    alike: tuple[str, ...]
    worse: tuple[str, ...]
    better: tuple[str, ...]
    targets: tuple[float, ...]
    asked: bool
    tuned: bool
    folder: Path | None

    @property
    def seeds(self) -> int:
        return len({run.seed for histories in self.runs.values() for run in histories})

    @property
    def pick_runs(self) -> Sequence[History]:
        return self.runs.get(self.pick, ())

    @property
    def diverged(self) -> bool:
        return not any(finished(histories) for histories in self.runs.values())

    @property
    def learnt(self) -> bool:
        """Whether some strategy ends visibly better than it began."""
        for histories in self.runs.values():
            good = finished(histories)
            starts = [float(run.values(self.measure)[0]) for run in good]
            end = float(final(histories, self.measure).mean)
            if good and self.measure.leaps(sum(starts) / len(starts), end):
                return True
        return False

    @property
    def missed(self) -> bool:
        """Whether the user set targets, and no run came to the easiest of them."""
        return bool(
            self.asked
            and self.targets
            and not any(reached(histories, self.targets[-1]) for histories in self.runs.values())
        )

    @property
    def target(self) -> float | None:
        """The hardest target that the pick reached with every seed."""
        known = (t for t in self.targets if math.isfinite(mean_time(self.pick_runs, t).mean))
        return next(known, None)

    @property
    def real(self) -> bool:
        return any(run.clock == "real" for histories in self.runs.values() for run in histories)

    def title(self) -> str:
        alone = len(self.runs) == 1
        if self.diverged:
            return "Lower the learning rate: every run diverged"
        if not self.learnt or self.missed:
            longer = f"{'Deploy' if self.real else 'Train'} longer"
            if not self.learnt:
                what = f"{self.pick} learnt nothing" if alone else "no strategy learnt anything"
                return f"{longer}: {what}"
            who = f"{self.pick} did not reach" if alone else "no strategy reached"
            return f"{longer}: {who} {self.measure.target(self.targets[-1])}"
        if alone and not self.tuned:
            return f"Reached {self._end(self.pick)} with {self.pick}"
        if self.seeds == 1 and not alone:
            return f"Run more seeds: {self.pick} leads after one"
        if not self.tuned and self.alike:
            if not self.worse and len(self.alike) > 1:
                return f"Run more seeds: {self.seeds} show no significant difference"
            if len(self.alike) == 1:
                return f"Use {self.pick} or {self.alike[0]}"
            return f"Use {self.pick} or one of {len(self.alike)} like it"
        title = f"Use {self.pick}, learning rate {self.pick_runs[0].learning_rate:g}"
        return title if len(title.split()) <= MOST_WORDS else f"Use {self.pick}"

    def because(self) -> str:
        if self.diverged:
            rates = [run.learning_rate for histories in self.runs.values() for run in histories]
            return f"The smallest learning rate was {min(rates):g}."
        if not self.learnt or self.missed:
            begun = self.measure.text(float(self.pick_runs[0].values(self.measure)[0]))
            span = self._amount(float(self.pick_runs[0].time[-1]))
            best = "The best, " if len(self.runs) > 1 else ""
            return (
                f"{best}{self.pick}{',' * bool(best)} went from {begun} to {self._end(self.pick)} "
                f"in {span}."
            )
        named = len(self.runs) == 1 or ((self.tuned or not self.alike) and self.seeds > 1)
        subject = "It" if named else self.pick
        target = self.target
        if target is None:
            parts = [f"{subject} ends at {self._end(self.pick)}"]
            parts += [
                f"{_quoted(name)} at {self._end(name, short=True)}" for name in self._rivals()
            ]
        else:
            mean = float(mean_time(self.pick_runs, target).mean)
            parts = [f"{subject} reaches {self.measure.target(target)} in {self._amount(mean)}"]
            parts += [self._needs(name, target) for name in self._rivals()]
        reason = f"{parts[0]}; {', '.join(parts[1:])}" if parts[1:] else parts[0]
        if self.seeds == 1 and len(self.runs) > 1:
            reason += "; one seed cannot show a significant difference"
        return f"{reason}."

    def next_command(self) -> str:
        if self.folder is None:
            return ""
        if self.real:
            return shlex.join(["sojourn", "fleet", "estimate", "--from-run", str(self.folder)])
        if self.tuned and not self.missed and self.learnt:
            strategy = self.folder / "strategy.toml"
            # Code of one's own that a file names is run only by those who trust the file.
            trust = ["--trust"] if exists(strategy) and modules_named(strategy) else []
            words = ["sojourn", *trust, "deploy", "init", "my-app", "--strategy", str(strategy)]
            return shlex.join([*words, *_own_problem(self.folder)])
        words = ["sojourn", "tune", str(self.folder / "experiment.toml")]
        if not self.diverged and (self.missed or not self.learnt):
            words += ["--time", f"{2.0 * float(self.pick_runs[0].time[-1]):.3g}"]
        return shlex.join(words)

    def _rivals(self) -> list[str]:
        """The best of those that are worse, else of those that are alike; the reference always."""
        others = [*self.better, *self.worse, *self.alike]
        chosen = others[:MOST_RIVALS]
        for name in REFERENCES:
            if name in others[MOST_RIVALS:]:
                chosen[-1] = name
        return chosen

    def _amount(self, time: float) -> str:
        return f"{number(time)} {'s' if self.real else 'time units'}"

    def _end(self, name: str, *, short: bool = False) -> str:
        mean = float(final(self.runs.get(name, ()), self.measure).mean)
        if math.isnan(mean):
            return "no value: it diverged"
        value = self.measure.text(mean)
        if short:
            return value
        return (
            f"{value} {self.measure.label}"
            if self.measure.percent
            else (f"a {self.measure.label} of {value}")
        )

    def _without_update(self, name: str) -> bool:
        """Whether the server made no update in any run, so that the end is the beginning."""
        histories = self.runs.get(name, ())
        return bool(histories) and not any(run.rows and run.updates[-1] for run in histories)

    def _needs(self, name: str, target: float) -> str:
        histories = self.runs.get(name, ())
        number_reached, mean = reached(histories, target), float(mean_time(histories, target).mean)
        if self._without_update(name):
            return f"{_quoted(name)} makes no update"
        if math.isfinite(mean):
            return f"{_quoted(name)} needs {number(mean)}"
        if not number_reached:
            return f"{_quoted(name)} does not reach it"
        return f"{_quoted(name)} reached it in {number_reached} of {len(histories)} runs"


def _own_problem(folder: Path) -> list[str]:
    """The option that gives an app the problem of a run, where it is a file of the user's own."""
    module, _, function = str(RunFolder(folder).experiment.get("problem", "")).partition(":")
    path = folder / KEPT_IN / f"{module}.py"
    return ["--problem", str(path)] if function == "problem" and path.is_file() else []


def _quoted(name: str) -> str:
    """A name that has a comma in it, so that a list of names can be read."""
    return f"“{name}”" if "," in name else name
