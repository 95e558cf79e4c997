"""Runs successive halving: rungs of pilot runs, saved so that none is run twice."""

import json
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch

from sojourn._support.configuration import parse_json
from sojourn._support.files import file_name, read_text
from sojourn._support.ledger import Ledger
from sojourn._support.numbers import or_null
from sojourn._support.progress import TENTH, Progress
from sojourn.errors import InvalidFile
from sojourn.runs.history import History
from sojourn.runs.measure import LOSS
from sojourn.training.experiment.build import validation_problem
from sojourn.training.experiment.engines import Engine
from sojourn.training.replay.checkpoint import Checkpoint, CheckpointFile, digest
from sojourn.training.replay.state import ReplayState
from sojourn.tuning.budget import CONFIRMED, LEAST_SEEDS, OVERHEAD
from sojourn.tuning.pilots import (
    Advanced,
    Pilot,
    advance_until,
    group_key,
    horizon_of,
    schedule_for,
)
from sojourn.tuning.setting import Setting
from sojourn.tuning.successive_halving import (
    AGAIN,
    AGAIN_FOR_TIMES,
    RUNGS,
    Candidate,
    Halving,
    Rung,
    expected_cost,
)

HALVING = "halving.json"
FORMAT = "sojourn successive halving 1"


class HalvingRunner:
    """Runs successive halving in ``folder``, going on from what an earlier call saved there.

    At the ``deadline`` (of the monotonic clock) jobs are given up, and before it no job is begun that
    would not be finished by then, by what earlier ones of its group took. The first job of all, that of
    the first strategy, is always finished: without it there is no answer.
    """

    def __init__(self, setting: Setting, folder: Path, engine: Engine, progress: Progress) -> None:
        self.setting, self.folder, self.engine, self.progress = setting, folder, engine, progress
        self.deadline = math.inf
        self._positions: dict[Candidate, ReplayState] = {}
        # The scores of those that have reached the target: they are run no further.
        self._reached: dict[Candidate, float] = {}
        self._without_weights: float | None = None
        self._signature = digest(
            json.dumps(setting.experiment.signature(), sort_keys=True, default=str)
        )
        self._begun = time.monotonic()
        self._late = False
        self._seconds: dict[object, float] = defaultdict(float)
        self._whole_runs: dict[object, float] = defaultdict(float)

    def run(self) -> Halving:
        """All rungs."""
        rates = {i: tuple(own) for i, own in self.setting.rates.items()}
        names = tuple(strategy.name for strategy in self.setting.experiment.strategies)
        halving = self._saved() or Halving([], rates, names)
        halving.baselines = self.setting.baselines
        if self.setting.criterion.kind == "target":
            for rung in halving.rungs:  # half the idle score is the time until which it ran
                self._reached |= {
                    c: own[0] for c, own in rung.runs.items() if own[0] <= rung.idle / 2
                }
        extrapolate = self.setting.criterion.kind == "final"
        while len(halving.rungs) < len(RUNGS) and not halving.stopped:
            self._load(halving.going_on(extrapolate), len(halving.rungs))
            halving.advance(
                self._to,
                extrapolate=extrapolate,
                stop=self._out_of_time,
                enter=self.setting.beside,
                again=AGAIN_FOR_TIMES if self._reached else AGAIN,
            )
            if not halving.stopped:
                self._save(halving, halving.going_on(extrapolate))
        return halving

    def _out_of_time(self) -> bool:
        """Whether the deadline has passed, or some job could not be finished before it."""
        self._late = self._late or time.monotonic() > self.deadline
        return self._late

    def _to(self, fraction: float, alive: Sequence[Candidate], repetition: int) -> Rung:
        """Run candidates on to a fraction of the horizon; a repetition has another seed, from the start."""
        rung = Rung(fraction)
        begun = {} if repetition else self._positions
        for candidate in () if repetition else alive:
            if candidate in self._reached:
                rung.runs[candidate] = (self._reached[candidate],)
                rung.idle = self._idle_score(None, fraction * self._horizon(candidate))
        left = [candidate for candidate in alive if candidate not in rung.runs]
        jobs = self._jobs(fraction, left, self.setting.pilot_seed + repetition, begun)
        self._report(fraction, 0, len(alive))
        jobs = jobs[: self._affordable(jobs, begun)]
        deadline = time.time() + self.deadline - time.monotonic()
        arguments = [(deadline, pilot, [begun.get(c) for c in pilot.candidates]) for pilot in jobs]
        for place, done in self._finished(arguments):
            if done is None:
                self._late = True
                continue
            pilot = jobs[place]
            group = self._group(pilot.candidates[0])
            self._seconds[group] += done.seconds
            self._whole_runs[group] += done.whole_runs
            begun.update(zip(pilot.candidates, done.positions, strict=True))
            for candidate, history, position in zip(
                pilot.candidates, done.histories, done.positions, strict=True
            ):
                until = fraction * self._horizon(candidate)
                score = self.setting.criterion.score(history, until)
                rung.runs[candidate] = (score,)
                rung.idle = self._idle_score(history, until)
                if position.stopped and not repetition:
                    self._reached[candidate] = score
                if not history.rows or not history.updates[-1]:
                    rung.without_update.add(candidate.strategy)
            rung.gradients += done.gradients
            self._report(fraction, len(rung.runs), len(alive))
        return rung

    def _idle_score(self, history: History | None, until: float) -> float:
        """The score of a run that has learnt nothing: that of the untrained model, or of one that predicts nothing.

        An untrained model predicts at random, and to unlearn that is not to learn: a model whose weights are all zero is
        better by some per cent, which a few steps towards anybody's data gain.
        """
        idle = self.setting.criterion.idle(history, until)
        if self.setting.criterion.kind == "target" or self.setting.criterion.measure != LOSS:
            return idle
        if self._without_weights is None:
            problem = validation_problem(self.setting.experiment, self.setting.pilot_seed)
            weights = torch.zeros_like(problem.initial_weights())
            loss = math.inf if problem.sends_buffers else float(problem.measures(weights).loss)
            self._without_weights = loss if math.isfinite(loss) else math.inf
        return min(idle, self._without_weights)

    def _finished(
        self, work: Sequence[tuple[float, Pilot, list[ReplayState | None]]]
    ) -> Iterator[tuple[int, Advanced | None]]:
        """What jobs give, with their places; the first of all in this process, as others start later."""
        first = work[:1] if math.isfinite(self.deadline) and not self._whole_runs else []
        for _, pilot, positions in first:
            yield 0, advance_until(math.inf, pilot, positions)
        rest = work[len(first) :]
        for place, done in self.engine.map(advance_until, rest) if rest else ():
            yield place + len(first), done

    def _affordable(self, jobs: Sequence[Pilot], begun: Mapping[Candidate, ReplayState]) -> int:
        """How many of the jobs can be finished before the deadline, as far as their groups' speed is known."""
        left = (self.deadline - time.monotonic()) * self.engine.width
        for number, pilot in enumerate(jobs):
            group = self._group(pilot.candidates[0])
            if not self._whole_runs.get(group):
                continue
            before = (0.0, *RUNGS)[RUNGS.index(pilot.fraction)]
            runs = sum(pilot.fraction - before * (c in begun) for c in pilot.candidates)
            left -= runs * self._seconds[group] / self._whole_runs[group]
            if left < 0.0:
                self._late = True
                return number
        return len(jobs)

    def _group(self, candidate: Candidate) -> object:
        return group_key(self.setting.experiment.strategies[candidate.strategy])

    def _report(self, fraction: float, done: int, total: int) -> None:
        """Progress in the words of the user: which rung, how many runs, how long it will take."""
        phase = f"tune: rung {RUNGS.index(fraction) + 1} of {len(RUNGS)}, {done} of {total} runs"
        confirming = LEAST_SEEDS * (CONFIRMED + len(self.setting.baselines))
        planned = OVERHEAD * expected_cost(self.setting.rates, self.setting.baselines) + confirming
        spent = time.monotonic() - self._begun
        # Whichever ends the pilot runs first: their number, or the budget.
        done_runs = sum(self._whole_runs.values())
        part = max(done_runs / planned, spent / max(self.deadline - self._begun, 1e-9))
        part = min(1.0, part)
        if part > TENTH:
            phase += f", {timedelta(seconds=int((1.0 / part - 1.0) * spent))} left"
        self.progress.start(phase, 100.0, 100.0 * part)

    def _horizon(self, candidate: Candidate) -> float:
        experiment = self.setting.experiment
        if experiment.time is not None:
            return experiment.time
        strategy = experiment.strategies[candidate.strategy]
        return horizon_of(experiment, schedule_for(experiment, strategy, self.setting.pilot_seed))

    def _jobs(
        self,
        fraction: float,
        alive: Sequence[Candidate],
        seed: int,
        begun: Mapping[Candidate, ReplayState],
    ) -> list[Pilot]:
        """Candidates that share a schedule and stand at one round together, divided among the workers."""
        groups: dict[object, list[Candidate]] = {}
        for candidate in alive:
            place = begun[candidate].round if candidate in begun else 0
            groups.setdefault((self._group(candidate), place), []).append(candidate)
        if not groups:
            return []
        width, first = self.engine.width, alive[0].strategy
        pieces = [group[i::width] for group in groups.values() for i in range(width)]
        if math.isfinite(self.deadline) and not self._whole_runs:
            others = [[c for c in piece if c.strategy != first] for piece in pieces]
            pieces = [[c for c in alive if c.strategy == first], *others]
        return [
            Pilot(self.setting.experiment, self.setting.criterion, tuple(piece), seed, fraction)
            for piece in pieces
            if piece
        ]

    # Files

    def _save(self, halving: Halving, alive: Sequence[Candidate]) -> None:
        """Write the rung that is done.

        The pilots of a rung are written beside those of the one before, which are removed only after the
        record of the rung is written: a run that is killed in between goes on from the rung before, and
        counts its gradients once.
        """
        rungs = len(halving.rungs)
        going = [candidate for candidate in alive if candidate not in self._reached]
        for candidate in going:
            self._file(candidate, rungs).write(self._positions[candidate])
        table = {
            "format": FORMAT,
            "signature": self._signature,
            "criterion": self.setting.criterion.describe(),
            "names": list(halving.names),
            "rates": {str(i): list(rates) for i, rates in halving.rates.items()},
            "rungs": [
                {
                    "fraction": rung.fraction,
                    "gradients": rung.gradients,
                    "idle": rung.idle,
                    "without_update": sorted(rung.without_update),
                    "runs": [
                        [c.strategy, c.learning_rate, [or_null(s) for s in runs]]
                        for c, runs in sorted(rung.runs.items())
                    ],
                }
                for rung in halving.rungs
            ],
        }
        with Ledger(self.folder).writing(self.folder / HALVING) as temporary:
            temporary.write_text(json.dumps(table, indent=1), encoding="utf-8")
        self._positions = {c: self._positions[c] for c in going}
        shutil.rmtree(self._pilots(rungs - 1), ignore_errors=True)

    def _saved(self) -> Halving | None:
        path = self.folder / HALVING
        if not path.exists():
            return None
        Ledger(self.folder).check(path)
        halving, made_for = read_halving(path)
        if made_for != (self._signature, self.setting.criterion.describe()):
            raise InvalidFile(
                f"{path}: pilot runs of another experiment or criterion. Give another --out."
            )
        return halving

    def _load(self, alive: Sequence[Candidate], rungs: int) -> None:
        for candidate in alive:
            if candidate not in self._positions and candidate not in self._reached:
                for position in self._file(candidate, rungs).read():
                    self._positions[candidate] = position

    def _pilots(self, rungs: int) -> Path:
        return self.folder / "pilots" / f"rung-{rungs}"

    def _file(self, candidate: Candidate, rungs: int) -> CheckpointFile:
        name = self.setting.experiment.strategies[candidate.strategy].name
        path = self._pilots(rungs) / f"{file_name(name)}_rate-{candidate.learning_rate!r}.npz"
        return CheckpointFile(Checkpoint(path), {"halving": self._signature})


def read_halving(path: Path) -> tuple[Halving, tuple[str, str]]:
    """The rungs in a file, and the signature and the criterion that they were run for."""
    table = parse_json(read_text(path, encoding="utf-8"), str(path))
    try:
        if table["format"] != FORMAT:
            raise InvalidFile(f"{path}: written by another version of Sojourn. Give another --out.")
        rungs = [
            Rung(
                entry["fraction"],
                {
                    Candidate(i, r): tuple(math.inf if s is None else s for s in runs)
                    for i, r, runs in entry["runs"]
                },
                entry["gradients"],
                entry["idle"],
                set(entry["without_update"]),
            )
            for entry in table["rungs"]
        ]
        rates = {int(i): tuple(rates) for i, rates in table["rates"].items()}
        halving = Halving(rungs, rates, tuple(table.get("names", ())))
        return halving, (table["signature"], table["criterion"])
    except InvalidFile:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidFile(
            f"{path}: not a record of successive halving ({error}). Delete it to start again."
        ) from error
