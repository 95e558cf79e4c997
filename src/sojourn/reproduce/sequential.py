"""Seeds are added, cheapest statements first, until a claim is told or its budget is spent."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sojourn.errors import DataNotFound
from sojourn.history import History
from sojourn.progress import Progress
from sojourn.reproduce.cell_runs import CellRunner
from sojourn.reproduce.estimate import Prices
from sojourn.reproduce.pool import histories, make_runs, summarize_runs
from sojourn.reproduce.rates import choose_rates
from sojourn.reproduce.settings import TrainingCell
from sojourn.reproduce.training import Case, Missing, TrainingClaim, cases, exponential, long_enough
from sojourn.train.experiment.build import dataset

Run = tuple[TrainingCell, str]
Say = Callable[[str], None]
OUT_OF_BUDGET = Missing("Not run within the budget.", "cannot be told here")


@dataclass
class Trials:
    """The runs made so far of all claims, and the seconds of processor time that are left.

    What is made next depends on results and on prices alone, which are kept: a reproduction that
    was killed and is run again makes the same runs and comes to the same verdicts.
    """

    runner: CellRunner
    prices: Prices
    left: float
    made: dict[Run, int] = field(default_factory=dict)
    _absent: dict[str, Missing | None] = field(default_factory=dict)

    def results(
        self,
        claim: TrainingClaim,
        share: float,
        *,
        say: Say = lambda line: None,
        progress: Progress | None = None,
    ) -> dict[TrainingCell, list[History] | Missing]:
        """The runs of every cell of a claim, for which ``share`` seconds may be spent, or why none."""
        limit = self.left - share if math.isfinite(share) else -math.inf
        for data in dict.fromkeys(cell.data for cell in claim.needed):
            reason = self.absent(data)
            if reason is not None:
                say(f"  {data}: {reason.reason}")
        wanted = self._first(claim, limit)
        while wanted:
            make_runs(self.runner, wanted, say=say, progress=progress)
            self.made |= wanted
            wanted = self._next(claim, limit)
        summarize_runs(self.runner, {r: n for r, n in self.made.items() if r[0] in claim.needed})
        return self._found(claim)

    def opening(self, claim: TrainingClaim) -> dict[Run, int]:
        """The runs after which every statement of a claim has been looked at once, data being here."""
        return {
            run: pairs
            for cell in self._present(claim)
            for run, pairs in self._opening(cell, claim).items()
        }

    def price(self, runs: Mapping[Run, int]) -> float:
        """Seconds of the runs that are not made, and of what has to be done before them."""
        missing = {run: pairs - self.made.get(run, 0) for run, pairs in runs.items()}
        seconds = sum(pairs * self.prices.run(*run) for run, pairs in missing.items())
        problems: dict[TrainingCell, int] = {}
        for (cell, _), pairs in missing.items():
            problems[exponential(cell)] = max(pairs, problems.get(exponential(cell), 0))
        seconds += sum(n * self.prices.cost(cell.data).problem for cell, n in problems.items())
        new = {cell for cell, _ in runs if not any(cell == known for known, _ in self.made)}
        return seconds + sum(self.prices.choice_of_rates(cell) for cell in new)

    def absent(self, data: str) -> Missing | None:
        """Why a data set is not here; ``None`` if it is."""
        if data not in self._absent:
            try:
                dataset(data, self.runner.data_folder)
                self.prices.cost(data)  # while it is read
                self._absent[data] = None
            except DataNotFound as error:
                self._absent[data] = Missing(str(error))
        return self._absent[data]

    def _present(self, claim: TrainingClaim) -> list[TrainingCell]:
        return [cell for cell in claim.needed if self.absent(cell.data) is None]

    def _opening(self, cell: TrainingCell, claim: TrainingClaim) -> dict[Run, int]:
        """The first look at a cell."""
        settings = self.runner.settings
        own = settings.settings[cell.setting].strategies
        also = claim.also if cell in claim.cells else ()
        first = settings.sizes[cell.data].looks.pairs[0]
        return {(cell, name): first for name in (*own, *also)}

    def _first(self, claim: TrainingClaim, limit: float) -> dict[Run, int]:
        """First looks at cells, cheapest first, as far as they can be paid."""
        offers = []
        for cell in self._present(claim):
            runs = {r: n for r, n in self._opening(cell, claim).items() if self.made.get(r, 0) < n}
            price = self.price(runs)
            offers.append((price, cell.name, cell, runs))
        wanted: dict[Run, int] = {}
        for price, _, cell, runs in sorted(offers, key=lambda offer: offer[:2]):
            if not runs or self.left - price < limit:
                continue
            if self.runner.settings.settings[cell.setting].tried_rates:
                choose_rates(self.runner, cell)
            self.left -= price
            wanted |= runs
        return wanted

    def _next(self, claim: TrainingClaim, limit: float) -> dict[Run, int]:
        """The next look at every statement that is open, cheapest first, as far as can be paid.

        What it costs to tell is estimated from the pairs that it would need.
        """
        offers = []
        for place, case in enumerate(cases(claim, self._found(claim), self.runner.settings)):
            runs = self._further(case)
            if runs:
                offers.append((self._price_to_tell(case, runs), place, runs))
        wanted: dict[Run, int] = {}
        for _, _, runs in sorted(offers, key=lambda offer: offer[:2]):
            new = {run: n for run, n in runs.items() if wanted.get(run, 0) < n}
            price = self.price(new)
            if new and self.left - price >= limit:
                self.left -= price
                wanted |= new
        return wanted

    def _further(self, case: Case) -> dict[Run, int]:
        """The runs that the next look at an open statement lacks; none if it is told or was the last."""
        settings = self.runner.settings
        looks = settings.sizes[case.cell.data].looks
        open_still = case.judged.outcome == "cannot be told here" and case.judged.compared
        if not open_still or not long_enough(case.cell, settings):
            return {}
        runs = case.comparison.runs(case.cell, settings)
        pairs = looks.after(min(self.made.get(run, 0) for run in runs))
        return {} if pairs is None else {r: pairs for r in runs if self.made.get(r, 0) < pairs}

    def _price_to_tell(self, case: Case, runs: Mapping[Run, int]) -> float:
        each = sum(self.prices.run(*run) for run in runs)
        return each * case.judged.needs if case.judged.needs else math.inf

    def _found(self, claim: TrainingClaim) -> dict[TrainingCell, list[History] | Missing]:
        found: dict[TrainingCell, list[History] | Missing] = {}
        for cell in claim.needed:
            runs = histories(self.runner, cell, self.made)
            found[cell] = self.absent(cell.data) or runs or OUT_OF_BUDGET
        return found
