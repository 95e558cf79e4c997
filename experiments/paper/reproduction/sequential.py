"""Seeds are added, cheapest statements first, until all is told or the budget is spent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from reproduction.cell_runs import CellRunner
from reproduction.estimate import Prices, Run, Wave
from reproduction.pool import histories, make_runs, summarize_runs
from reproduction.rates import choose_rates
from reproduction.settings import TrainingCell
from reproduction.training import (
    OUT_OF_BUDGET,
    Case,
    Missing,
    TrainingClaim,
    cases,
    too_small,
)
from sojourn._support.progress import Progress
from sojourn.errors import DataNotFound
from sojourn.runs.history import History
from sojourn.training.experiment.build import dataset

Say = Callable[[str], None]
MAY_TELL, SHOWN_BESIDE, OUT_OF_REACH = range(3)
"""What runs are offered for, in the order in which they are paid."""


@dataclass(frozen=True)
class Offer:
    """Runs after which a statement is looked at again, and by how much more pairs it would need."""

    purpose: int
    runs: Mapping[Run, int]
    times: float = 1.0


@dataclass
class Trials:
    """The runs made so far of all claims, and the seconds of processor time that are left.

    What is made next depends on what was made, on results, on prices and on what is left. All of these are
    kept: a reproduction that was killed and is run again makes the same runs and comes to the same
    verdicts, and one that is given a larger budget makes further runs only.
    """

    runner: CellRunner
    prices: Prices
    left: float
    made: dict[Run, int] = field(default_factory=dict)
    spent: float = 0.0
    _absent: dict[str, Missing | None] = field(default_factory=dict)
    _read: dict[TrainingCell, tuple[dict[str, int], list[History]]] = field(default_factory=dict)

    def spend(
        self,
        claims: Sequence[TrainingClaim],
        *,
        say: Say = lambda line: None,
        progress: Progress | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """Make runs of all claims together, in waves, until nothing more can be told or paid.

        ``keep`` is called after every wave. At a scale without a budget a wave is one run for every job.
        """
        for data in dict.fromkeys(cell.data for claim in claims for cell in claim.needed):
            reason = self.absent(data)
            if reason is not None:
                say(f"  {data}: {reason.reason}")
        self.made = {run: n for run, n in self.made.items() if self.absent(run[0].data) is None}
        if self.made:  # by an earlier call: made again if they have gone missing since
            make_runs(self.runner, self.made, say=say, progress=progress)
        while wanted := self._wave(claims):
            make_runs(self.runner, wanted, made=self.made, say=say, progress=progress)
            self.made |= wanted
            keep()
        summarize_runs(self.runner, self.made)

    def go_on(
        self,
        claims: Sequence[TrainingClaim],
        counts: Mapping[str, Mapping[str, int]],
        spent: float,
    ) -> None:
        """Begin where an earlier call stood, which had made so many runs and ``spent`` so much on them."""
        cells = {cell.name: cell for claim in claims for cell in claim.needed}
        self.made = {
            (cells[where], strategy): pairs
            for where, made in counts.items()
            for strategy, pairs in made.items()
        }
        self.spent, self.left = spent, self.left - spent

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many runs of every strategy were made, by the name of its cell."""
        counts: dict[str, dict[str, int]] = {}
        for (cell, strategy), pairs in self.made.items():
            counts.setdefault(cell.name, {})[strategy] = pairs
        return counts

    def results(self, claim: TrainingClaim) -> dict[TrainingCell, list[History] | Missing]:
        """The runs of every cell of a claim, or why there are none."""
        found: dict[TrainingCell, list[History] | Missing] = {}
        for cell in claim.needed:
            found[cell] = self.absent(cell.data) or self._histories(cell) or OUT_OF_BUDGET
        return found

    def opening(self, claims: Sequence[TrainingClaim]) -> dict[Run, int]:
        """The runs after which every statement has been looked at once, data being here."""
        settings = self.runner.settings
        return {
            run: settings.looks(cell).pairs[0]
            for claim in claims
            for comparison, cell in claim.statements
            if self.absent(cell.data) is None
            for run in comparison.runs(cell, settings)
        }

    def price(self, runs: Mapping[Run, int]) -> float:
        """Seconds of the runs that are not made, and of what has to be done before them."""
        return Wave(self.prices, self.made).price(runs)

    def absent(self, data: str) -> Missing | None:
        """Why a data set is not here; ``None`` if it is."""
        if data not in self._absent:
            try:
                dataset(self.runner.settings.sizes[data].of(data), self.runner.data_folder)
                self.prices.cost(data)  # while it is read
                self._absent[data] = None
            except DataNotFound as error:
                self._absent[data] = Missing(str(error))
        return self._absent[data]

    def _wave(self, claims: Sequence[TrainingClaim]) -> dict[Run, int]:
        """The runs to be made next: cheapest statements first, runs that several share paid once.

        At most half of what is left is spent at a time, if one offer does not cost more, so that
        what is found decides about the rest.
        """
        open_still = [offer for claim in claims for offer in self._offers(claim)]
        wave = Wave(self.prices, self.made)
        if self.runner.settings.run_by_run:
            open_still = self._single_runs(open_still)
        while open_still:
            first = min(offer.purpose for offer in open_still)
            priced = [(wave.price(o.runs), o) for o in open_still if o.purpose == first]
            price, offer = min(priced, key=lambda entry: entry[0] * entry[1].times)
            open_still = [o for o in open_still if o is not offer]
            if wave.spent + price > self.left:
                continue
            if wave.runs and (wave.spent + price > self.left / 2 or first > wave.purpose):
                break
            wave.purpose = first
            wave.add(offer.runs)
        for cell in dict.fromkeys(cell for cell, _ in wave.runs):
            if self.runner.settings.settings[cell.setting].tried_rates:
                choose_rates(self.runner, cell)
        self.spent, self.left = self.spent + wave.spent, self.left - wave.spent
        return wave.runs

    def _single_runs(self, offers: Sequence[Offer]) -> list[Offer]:
        """Of what is wanted most, the cheapest run for every job; a later seed counts as many times.

        So there is a seed or two of what is cheap before the first of what takes a day.
        """
        first = min((offer.purpose for offer in offers), default=MAY_TELL)
        wanted = {one for offer in offers if offer.purpose == first for one in offer.runs.items()}
        wave = Wave(self.prices, self.made)
        dear = {one: wave.price(dict([one])) * one[1] for one in wanted}
        chosen = sorted(dear, key=lambda one: (dear[one], one[0][0].name, one[0][1]))[
            : self.runner.jobs
        ]
        return [Offer(first, dict(chosen))] if chosen else []

    def _offers(self, claim: TrainingClaim) -> Iterator[Offer]:
        """The next look at every statement of a claim that is open, and what is shown beside."""
        settings = self.runner.settings
        for case in cases(claim, self.results(claim), settings):
            runs = self._further(case)
            if not runs:
                continue
            before_first = min(runs.values()) <= settings.looks(case.cell).pairs[0]
            if not case.judged.compared or (settings.run_by_run and before_first):
                yield Offer(MAY_TELL, runs)
            elif case.judged.needs:
                yield Offer(MAY_TELL, runs, max(1.0, case.judged.needs / max(runs.values())))
            else:
                yield Offer(OUT_OF_REACH, runs)
        for cell in claim.cells:
            if any(cell == known for known, _ in self.made):
                first = settings.looks(cell).pairs[0]
                names = (*settings.settings[cell.setting].strategies, *claim.also)
                have = {n: self.made.get((cell, n), 0) for n in names}
                runs = {(cell, n): self._next(h, first) for n, h in have.items() if h < first}
                if runs:
                    yield Offer(SHOWN_BESIDE, runs)

    def _further(self, case: Case) -> dict[Run, int]:
        """The runs that the next look at an open statement lacks; none if it is told or was the last."""
        settings = self.runner.settings
        if case.judged.outcome != "inconclusive":
            return {}
        if case.judged.compared and too_small(case.comparison, case.cell, settings):
            return {}
        runs = case.comparison.runs(case.cell, settings)
        have = min(self.made.get(run, 0) for run in runs)
        pairs = settings.looks(case.cell).after(have)
        if pairs is None:
            return {}
        made = {run: self.made.get(run, 0) for run in runs}
        return {run: self._next(n, pairs) for run, n in made.items() if n < pairs}

    def _next(self, have: int, pairs: int) -> int:
        """How many runs of a strategy are made next on the way to so many pairs."""
        return have + 1 if self.runner.settings.run_by_run else pairs

    def _histories(self, cell: TrainingCell) -> list[History]:
        """The runs of a cell, read again only where some were added."""
        made = {name: pairs for (where, name), pairs in self.made.items() if where == cell}
        if cell not in self._read or self._read[cell][0] != made:
            self._read[cell] = made, histories(self.runner, cell, self.made)
        return self._read[cell][1]
