"""Reproducing claims: compute, judge, write what was found, and the page about it."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sojourn.config import Table
from sojourn.errors import InvalidFile
from sojourn.figure import Figure, Table as ReportTable
from sojourn.files import replacing
from sojourn.progress import Progress
from sojourn.provenance import provenance
from sojourn.reproduce import concurrency, per_round_optimum, per_time_optimum, third_term, training
from sojourn.reproduce.cell_runs import CellRunner
from sojourn.reproduce.claims import Claim, Judged
from sojourn.reproduce.estimate import estimated_seconds
from sojourn.reproduce.pool import run_cells
from sojourn.reproduce.settings import Settings, TrainingCell
from sojourn.reproduce.verdict import Finding

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
    """Claims to be reproduced at a scale, into a folder that can be gone on with."""

    claims: tuple[Claim, ...]
    settings: Settings
    runner: CellRunner
    out: Path

    @classmethod
    def prepare(
        cls,
        claims: Iterable[Claim],
        *,
        scale: str,
        out: Path,
        jobs: int,
        data_dir: Path | None = None,
    ) -> "Reproduction":
        """Check that the folder is new, or of the same scale."""
        settings = Settings.read(scale)
        record = read_record(out)
        before = record.get("scale", scale)
        if before != scale:
            raise InvalidFile(
                f"{out} was made with --scale {before}: give another --out for {scale}"
            )
        _write_record(out, {**record, "scale": scale})
        runner = CellRunner(settings, out / "cells", jobs, data_dir)
        return cls(tuple(claims), settings, runner, out)

    def estimate(self) -> float:
        """Seconds that the training of these claims will take, for what is not done yet."""
        wanted: dict[TrainingCell, tuple[str, ...]] = {}
        for claim in self.claims:
            if claim.computes == TRAINING:
                asked = self._training(claim)
                for cell in asked.needed:
                    wanted[cell] = tuple(dict.fromkeys((*wanted.get(cell, ()), *asked.also)))
        return estimated_seconds(self.runner, wanted.items())

    def run(self, say: Say, progress: Progress | None = None) -> Iterator[Finding]:
        """Each claim's finding, written to its folder and the record as soon as it is there."""
        for claim in self.claims:
            started = time.monotonic()
            if claim.computes == TRAINING:
                finding = self._train(claim, say, progress)
            else:
                finding = _compute(claim)
            finding.write(self.out / f"claim-{claim.number}")
            self._record(finding, time.monotonic() - started)
            yield finding

    def _record(self, finding: Finding, elapsed: float) -> None:
        """Note a claim's verdict and time beside those of claims reproduced before."""
        record = read_record(self.out)
        claims = {
            **record.get("claims", {}),
            finding.claim: {
                "title": finding.title,
                "verdict": finding.verdict,
                "tally": finding.tally,
                "elapsed_seconds": round(elapsed, 1),
            },
        }
        values = {
            "scale": self.settings.scale,
            "elapsed_seconds": round(sum(c["elapsed_seconds"] for c in claims.values()), 1),
            "claims": {number: claims[number] for number in sorted(claims, key=int)},
            "provenance": provenance(scale=self.settings.scale, jobs=self.runner.jobs),
        }
        _write_record(self.out, values)

    def _training(self, claim: Claim) -> training.TrainingClaim:
        values = Table(dict(claim.parameters.values), claim.parameters.where)
        return training.read_training(values, self.settings.scale)

    def _train(self, claim: Claim, say: Say, progress: Progress | None) -> Finding:
        asked = self._training(claim)
        results = run_cells(self.runner, asked.needed, asked.also, say=say, progress=progress)
        reduced = self.settings.reduced
        if reduced and asked.left_out:
            reduced += f"; {len(asked.left_out)} cells of this claim are only in --scale paper"
        return Finding(
            claim=claim.number,
            title=claim.title,
            source=claim.source,
            checked=claim.checked,
            scale=self.settings.scale,
            reduced=reduced,
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
        return dict(json.loads(path.read_text(encoding="utf-8")))
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
