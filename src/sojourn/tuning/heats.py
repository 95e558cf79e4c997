"""The race itself: rungs of pilot runs, kept on disk so that none is run twice."""

import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sojourn.config import parse_json
from sojourn.errors import InvalidFile
from sojourn.files import read_text, replacing
from sojourn.history import History
from sojourn.progress import Progress
from sojourn.train.experiment.engines import Engine
from sojourn.train.experiment.strategy import file_name
from sojourn.train.replay.checkpoint import Checkpoint, CheckpointFile, digest
from sojourn.train.replay.state import ReplayState
from sojourn.tuning.learning_rates import MOST_EXTENSIONS, extended
from sojourn.tuning.pilots import Pilot, advance, group_key, horizon_of, schedule_for
from sojourn.tuning.race import (
    RUNGS,
    SPREAD_OF_SCORE,
    Candidate,
    at_edge,
    below,
    beside,
    leaning,
    on_average,
    opening,
    ranking,
    repeated,
    steadiest,
    survivors,
    telling,
)
from sojourn.tuning.setting import Setting

RACE = "race.json"
FORMAT = "sojourn race 3"


@dataclass
class Rung:
    """Who got to a fraction of the horizon, and how: scores on the first pilot seed and further ones.

    ``gradients`` were computed to get there from the rung before; ``idle`` is the score of a run that
    has not moved.
    """

    fraction: float
    runs: dict[Candidate, tuple[float, ...]] = field(default_factory=dict)
    gradients: int = 0
    idle: float = 0.0

    @property
    def scores(self) -> dict[Candidate, float]:
        """The mean of every candidate over its pilot seeds."""
        return {c: on_average(runs) for c, runs in self.runs.items()}

    @property
    def repeated(self) -> tuple[Candidate, ...]:
        """The candidates that were judged on the most pilot seeds."""
        most = max(map(len, self.runs.values()), default=0)
        return tuple(c for c, runs in self.runs.items() if len(runs) == most)

    def add(self, other: "Rung") -> None:
        """Take in candidates that went to the same fraction, or the same on a further seed."""
        for candidate, runs in other.runs.items():
            self.runs[candidate] = self.runs.get(candidate, ()) + runs
        self.gradients += other.gradients


@dataclass
class Race:
    """All rungs so far, the learning rates that were tried of every strategy, and their names."""

    rungs: list[Rung]
    rates: dict[int, tuple[float, ...]]
    gradients: int = 0
    names: tuple[str, ...] = ()

    @property
    def entered(self) -> int:
        """How many candidates began the race."""
        return sum(len(rates) for rates in self.rates.values())

    @property
    def last(self) -> dict[Candidate, float]:
        """The scores of every candidate at the last rung it ran."""
        scores: dict[Candidate, float] = {}
        for rung in self.rungs:
            scores |= rung.scores
        return scores

    def standing(self, rung: int) -> dict[Candidate, float]:
        """The scores by which candidates are ranked at a rung; see `leaning`."""
        return leaning([r.runs for r in self.rungs[: rung + 1]], self.rates)

    def podium(self) -> list[Candidate]:
        """The best candidate of every strategy, those that went furthest first, then by score."""
        found: dict[int, Candidate] = {}
        for place in reversed(range(len(self.rungs))):
            standing, repeated = self.standing(place), set(self.rungs[place].repeated)
            own: dict[int, dict[Candidate, float]] = {}
            for candidate, score in standing.items():
                own.setdefault(candidate.strategy, {})[candidate] = score
            best = [
                steadiest({c: s for c, s in scores.items() if c in repeated} or scores)
                for strategy, scores in own.items()
                if strategy not in found
            ]
            ordered = sorted(
                (c for c in best if c is not None), key=lambda c: (c not in repeated, standing[c])
            )
            found |= {c.strategy: c for c in ordered}
        return list(found.values())


class Heats:
    """Runs a race in ``folder``; what was finished there before is taken up."""

    def __init__(self, setting: Setting, folder: Path, engine: Engine, progress: Progress) -> None:
        self.setting, self.folder, self.engine, self.progress = setting, folder, engine, progress
        self._positions: dict[Candidate, ReplayState] = {}
        self._signature = digest(
            json.dumps(setting.experiment.signature(), sort_keys=True, default=str)
        )
        self.deadline = math.inf

    def run(self) -> Race:
        """All rungs, from where an earlier run left off."""
        race = self._kept() or Race([], {i: tuple(r) for i, r in self.setting.rates.items()})
        alive = self._alive(race)
        for fraction in RUNGS[len(race.rungs) :]:
            self._load(alive, len(race.rungs))
            rung = self._rung(fraction, alive)
            if not race.rungs:
                self._look_beside(rung, race)
            race.rungs.append(rung)
            if fraction == RUNGS[-1]:
                self._look_below(rung, race)
                self._repeat(rung, race)
            race.gradients += rung.gradients
            alive = self._alive(race)
            self._keep(race, alive)
        return race

    def _alive(self, race: Race) -> list[Candidate]:
        if not race.rungs:
            return opening(race.rates)
        if len(race.rungs) == len(RUNGS):
            return []
        done = len(race.rungs) - 1
        scores = telling(race.standing(done), race.rungs[done].idle)
        before = None
        if done and self.setting.criterion.kind == "final":
            before = telling(race.standing(done - 1), race.rungs[done - 1].idle)
        left = survivors(scores, done, race.entered, before, self.setting.baselines)
        if time.monotonic() > self.deadline:
            left = left[:1]
        return left

    def _rung(self, fraction: float, alive: Sequence[Candidate], seed: int | None = None) -> Rung:
        """Take candidates to a fraction of the horizon, or with another ``seed`` all the way there."""
        rung = Rung(fraction)
        begun = {} if seed is not None else self._positions
        work = self._work(fraction, alive, self.setting.pilot_seed if seed is None else seed)
        self.progress.start(f"race, to {fraction:.3g} of the horizon", len(alive))
        arguments = [(pilot, [begun.get(c) for c in pilot.candidates]) for pilot in work]
        for place, done in self.engine.map(advance, arguments):
            pilot = work[place]
            begun.update(zip(pilot.candidates, done.positions, strict=True))
            for candidate, history in zip(pilot.candidates, done.histories, strict=True):
                until = fraction * self._horizon(candidate)
                rung.runs[candidate] = (self._score(history, until),)
                rung.idle = self.setting.criterion.idle(history, until)
            rung.gradients += done.gradients
            self.progress.advance(len(pilot.candidates))
        return rung

    def _look_below(self, rung: Rung, race: Race) -> None:
        """Run smaller learning rates of finalists, dropped before, to the end."""
        smaller = below(race.standing(len(race.rungs) - 1), race.rates)
        if not smaller or time.monotonic() > self.deadline:
            return
        rung.add(self._rung(rung.fraction, smaller))

    def _repeat(self, rung: Rung, race: Race) -> None:
        """Run ever fewer of the finalists on further pilot seeds too."""
        for place, number in enumerate(repeated(race.entered), start=1):
            standing = race.standing(len(race.rungs) - 1)
            best = ranking({c: standing[c] for c in rung.repeated})[:number]
            rung.add(self._rung(rung.fraction, best, self.setting.pilot_seed + place))

    def _score(self, history: History, until: float) -> float:
        return self.setting.criterion.score(history, until, SPREAD_OF_SCORE)

    def _horizon(self, candidate: Candidate) -> float:
        experiment = self.setting.experiment
        if experiment.time is not None:
            return experiment.time
        strategy = experiment.strategies[candidate.strategy]
        return horizon_of(experiment, schedule_for(experiment, strategy, self.setting.pilot_seed))

    def _work(self, fraction: float, alive: Sequence[Candidate], seed: int) -> list[Pilot]:
        """Candidates that share a schedule together, cut into as many pieces as there are workers."""
        groups: dict[Any, list[Candidate]] = {}
        for candidate in alive:
            key = group_key(self.setting.experiment.strategies[candidate.strategy])
            groups.setdefault(key, []).append(candidate)
        width = self.engine.width
        pieces = [group[i::width] for group in groups.values() for i in range(width)]
        return [
            Pilot(self.setting.experiment, self.setting.criterion, tuple(piece), seed, fraction)
            for piece in pieces
            if piece
        ]

    def _look_beside(self, rung: Rung, race: Race) -> None:
        """Try the learning rates next to the best of every strategy, beyond an edge if it lies there."""
        for _ in range(MOST_EXTENSIONS):
            scores = telling(rung.scores, rung.idle)
            for strategy, side in at_edge(scores, race.rates).items():
                race.rates[strategy] = extended(race.rates[strategy], side)
            added = beside(scores, race.rates)
            if not added:
                return
            rung.add(self._rung(rung.fraction, added))

    # On disk

    def _keep(self, race: Race, alive: Sequence[Candidate]) -> None:
        """Pilots of a rung lie beside those of the one before until the race says that it is over.

        So who is killed in between goes on from the rung before, and counts its gradients once.
        """
        rungs = len(race.rungs)
        for candidate in alive:
            self._file(candidate, rungs).write(self._positions[candidate])
        table = {
            "format": FORMAT,
            "signature": self._signature,
            "criterion": self.setting.criterion.describe(),
            "gradients": race.gradients,
            "names": [strategy.name for strategy in self.setting.experiment.strategies],
            "rates": {str(i): list(rates) for i, rates in race.rates.items()},
            "rungs": [
                {
                    "fraction": rung.fraction,
                    "gradients": rung.gradients,
                    "idle": rung.idle,
                    "runs": [
                        [
                            c.strategy,
                            c.learning_rate,
                            [s if math.isfinite(s) else None for s in runs],
                        ]
                        for c, runs in sorted(rung.runs.items())
                    ],
                }
                for rung in race.rungs
            ],
        }
        with replacing(self.folder / RACE) as temporary:
            temporary.write_text(json.dumps(table, indent=1), encoding="utf-8")
        self._positions = {c: self._positions[c] for c in alive}
        shutil.rmtree(self._pilots(rungs - 1), ignore_errors=True)

    def _kept(self) -> Race | None:
        path = self.folder / RACE
        if not path.exists():
            return None
        race = read_race(path)
        if race[1] != (self._signature, self.setting.criterion.describe()):
            raise InvalidFile(
                f"{path}: a race of another experiment or by another criterion. Give another --out."
            )
        return race[0]

    def _load(self, alive: Sequence[Candidate], rungs: int) -> None:
        for candidate in alive:
            if candidate not in self._positions:
                position = self._file(candidate, rungs).read()
                if position is not None:
                    self._positions[candidate] = position

    def _pilots(self, rungs: int) -> Path:
        return self.folder / "pilots" / f"rung-{rungs}"

    def _file(self, candidate: Candidate, rungs: int) -> CheckpointFile:
        name = self.setting.experiment.strategies[candidate.strategy].name
        path = self._pilots(rungs) / f"{file_name(name)}_rate-{candidate.learning_rate!r}.npz"
        return CheckpointFile(Checkpoint(path), {"race": self._signature})


def read_race(path: Path) -> tuple[Race, tuple[str, str]]:
    """The race in a file, and what it was run for: signature and criterion."""
    table = parse_json(read_text(path, encoding="utf-8"), str(path))
    try:
        if table["format"] != FORMAT:
            raise InvalidFile(f"{path}: a race of another version of Sojourn. Give another --out.")
        rungs = [
            Rung(
                entry["fraction"],
                {
                    Candidate(i, r): tuple(math.inf if s is None else s for s in runs)
                    for i, r, runs in entry["runs"]
                },
                entry["gradients"],
                entry["idle"],
            )
            for entry in table["rungs"]
        ]
        rates = {int(i): tuple(rates) for i, rates in table["rates"].items()}
        race = Race(rungs, rates, table["gradients"], tuple(table.get("names", ())))
        return race, (table["signature"], table["criterion"])
    except InvalidFile:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidFile(f"{path}: not a race ({error}). Delete it to start anew.") from error
