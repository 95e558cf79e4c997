"""Reproducing claims: compute, judge, write what was found, and the page about it."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction import concurrency, per_round_optimum, per_time_optimum, third_term, training
from reproduction.cell_runs import CellRunner
from reproduction.claims import Claim, Judged
from reproduction.estimate import Prices, in_words
from reproduction.sequential import Trials
from reproduction.settings import Settings
from reproduction.verdict import Finding
from sojourn._support.configuration import Table, parse_json
from sojourn._support.files import read_text, replacing
from sojourn._support.progress import Progress
from sojourn._support.provenance import provenance
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Figure, Table as ReportTable

RECORD = "reproduction.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Computation:
    """What a claim without training needs: results, outcomes, figures, tables."""

    compute: Callable[[Table], Any]
    judge: Callable[[Any], dict[str, Judged]]
    figures: Callable[[Any], tuple[Figure, ...]]
    tables: Callable[[Any], tuple[ReportTable, ...]]


COMPUTATIONS = {
    name: Computation(module.compute, module.judge, module.figures, module.tables)
    for name, module in {
        "third-term": third_term,
        "per-round-optimum": per_round_optimum,
        "concurrency": concurrency,
        "per-time-optimum": per_time_optimum,
    }.items()
}
TRAINING = "training"


@dataclass(frozen=True, eq=False)
class Reproduction:
    """Claims to be reproduced at a scale, into a folder that can be gone on with.

    ``budget`` is in seconds of processor time; infinite where all runs are made.
    """

    claims: tuple[Claim, ...]
    settings: Settings
    runner: CellRunner
    out: Path
    budget: float
    trials: Trials

    @classmethod
    def prepare(
        cls,
        claims: Iterable[Claim],
        *,
        scale: str,
        out: Path,
        jobs: int,
        data_dir: Path | None = None,
        budget: float | None = None,
    ) -> "Reproduction":
        """Check that the folder is new, or of the same scale.

        ``budget`` is in seconds with all ``jobs`` running, instead of the scale's own or that with which
        the folder was made before.
        """
        settings = Settings.read(scale)
        record = read_record(out)
        before = record.get("scale", scale)
        if before != scale:
            raise InvalidFile(
                f"{out} was made with --scale {before}: give another --out for {scale}"
            )
        seconds = record.get("processor_seconds", settings.budget)
        seconds = seconds if budget is None else budget * jobs
        _write_record(out, {**record, "scale": scale, "processor_seconds": seconds})
        runner = CellRunner(settings, out / "cells", jobs, data_dir)
        allowed = math.inf if seconds is None else float(seconds)
        trials = Trials(runner, Prices(runner, record.get("prices", {})), allowed)
        return cls(tuple(claims), settings, runner, out, allowed, trials)

    @property
    def trains(self) -> bool:
        """Whether any of the claims is about training."""
        return any(claim.computes == TRAINING for claim in self.claims)

    def estimate(self) -> str:
        """How long training will take, in words; what is timed for that is kept.

        Of an earlier call's runs, which are not made again, no account is taken.
        """
        runs = self.trials.opening(list(self._asked.values()))
        first = self.trials.price(runs)
        _write_record(self.out, {**read_record(self.out), "prices": self.trials.prices.known})
        if not runs:
            return "there is nothing to train: no data set of these claims is here"
        jobs = self.runner.jobs
        number = f"{sum(runs.values()):,} runs take a first look at every statement"
        text = f"{number}: about {in_words(first / jobs)}"
        with_jobs = f" with {jobs} job{'s' if jobs > 1 else ''}"
        if math.isinf(self.budget):
            return f"{text}{with_jobs}"
        return f"{text}; the budget is {in_words(self.budget / jobs)}{with_jobs}"

    def run(
        self,
        say: Say,
        progress: Progress | None = None,
        so_far: Callable[[], None] = lambda: None,
    ) -> Iterator[Finding]:
        """Each claim's finding, written to its folder and the record as soon as it is there.

        At a scale without a budget the findings so far are written after every run, and ``so_far`` is
        called.
        """
        if self.trains:
            self.estimate()
        trained = False
        for claim in self.claims:
            started = time.monotonic()
            if claim.computes == TRAINING:
                if not trained:  # all of them together, since they share cells and the budget
                    self._train(say, progress, so_far)
                    trained = True
                finding = self._judge(claim)
            else:
                finding = _compute(claim)
            self._write(finding, time.monotonic() - started)
            yield finding

    def _write(self, finding: Finding, elapsed: float) -> None:
        finding.write(self.out / f"claim-{finding.claim}")
        self._record(finding, elapsed)

    def _train(self, say: Say, progress: Progress | None, so_far: Callable[[], None]) -> None:
        """Spend the budget on all claims about training, from where an earlier call for these stood."""
        asked = self._asked

        def keep() -> None:
            stand = {"of": list(asked), "spent": self.trials.spent, "runs": self.trials.counts}
            _write_record(self.out, {**read_record(self.out), "trials": stand})
            if self.settings.run_by_run:
                for claim in self.claims:
                    if claim.computes == TRAINING:
                        self._write(self._judge(claim), 0.0)
                so_far()

        before = read_record(self.out).get("trials", {})
        if before.get("of") == list(asked):
            self.trials.go_on(list(asked.values()), before["runs"], before["spent"])
        self.trials.spend(list(asked.values()), say=say, progress=progress, keep=keep)

    def _record(self, finding: Finding, elapsed: float) -> None:
        """Note a claim's verdict beside those of claims reproduced before, and the time of all calls."""
        record = read_record(self.out)
        before = record.get("claims", {})
        elapsed += before.get(finding.claim, {}).get("elapsed_seconds", 0.0)
        claims = {
            **before,
            finding.claim: {
                "title": finding.title,
                "verdict": finding.verdict,
                "tally": finding.tally,
                "elapsed_seconds": round(elapsed, 1),
            },
        }
        values = {
            **record,
            "scale": self.settings.scale,
            "prices": self.trials.prices.known,
            "spent_seconds": None if math.isinf(self.budget) else self.trials.spent,
            "elapsed_seconds": round(sum(c["elapsed_seconds"] for c in claims.values()), 1),
            "claims": {number: claims[number] for number in sorted(claims, key=int)},
            "provenance": provenance(scale=self.settings.scale, jobs=self.runner.jobs),
        }
        _write_record(self.out, values)

    @property
    def _asked(self) -> dict[str, training.TrainingClaim]:
        """The parameters of the claims about training, by number."""
        return {
            claim.number: training.read_training(
                Table(dict(claim.parameters.values), claim.parameters.where)
            )
            for claim in self.claims
            if claim.computes == TRAINING
        }

    def _judge(self, claim: Claim) -> Finding:
        asked = self._asked[claim.number]
        results = self.trials.results(asked)
        return Finding(
            claim=claim.number,
            title=claim.title,
            source=claim.source,
            checked=claim.checked,
            scale=self.settings.scale,
            reduced=self.settings.reduced,
            statements=training.judge(asked, results, self.settings),
            figures=training.figures(claim.number, asked.cells, results, self.settings),
            tables=training.tables(asked.cells, results, self.settings),
            provenance=provenance(
                claim=claim.number, scale=self.settings.scale, cells=[c.name for c in asked.needed]
            ),
        )


def read_record(out: Path) -> dict[str, Any]:
    """What ``reproduction.json`` in ``out`` says; nothing where there is none."""
    path = out / RECORD
    if not path.exists():
        return {}
    try:
        return dict(parse_json(read_text(path, encoding="utf-8"), str(path)))
    except (ValueError, TypeError) as error:
        raise InvalidFile(
            f"{path}: not a record as Sojourn writes it ({error}). Remove it to begin anew."
        ) from error


def _write_record(out: Path, values: dict[str, Any]) -> None:
    with replacing(out / RECORD) as temporary:
        temporary.write_text(json.dumps(values, indent=1), encoding="utf-8")


def _compute(claim: Claim) -> Finding:
    computation = COMPUTATIONS[claim.computes]
    parameters = dict(claim.parameters.values)
    results = computation.compute(claim.parameters)
    return Finding(
        claim=claim.number,
        title=claim.title,
        source=claim.source,
        checked=claim.checked,
        scale="paper",
        statements=claim.statements(computation.judge(results)),
        figures=computation.figures(results),
        tables=computation.tables(results),
        provenance=provenance(claim=claim.number, **{"parameters": parameters}),
    )
