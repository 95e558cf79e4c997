"""From folders to a page: the findings and runs in them, and a simulation beside theory."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sojourn.errors import InvalidFile
from sojourn.network import Network
from sojourn.report import Report, Section
from sojourn.report.fleet import Simulated, classes_by_rate, fleet_section, sums
from sojourn.report.sections import Case, Entry, Overview, Saying, run_section
from sojourn.reproduce import verdict
from sojourn.reproduce.palette import PALETTE
from sojourn.reproduce.verdict import Finding, Outcome, Statement
from sojourn.runfolder import Run, RunFolder
from sojourn.simulation.simulate import simulate
from sojourn.types import FloatArray

SIMULATED_ROUNDS = 200_000
_DEPTH = 3


def report_of(folders: Iterable[str | Path], *, title: str | None = None) -> Report:
    """A report on all that these folders hold: claims with their verdicts first, then runs."""
    findings, runs = collect(folders)
    sections = [finding_section(finding) for finding in findings]
    for index, run in enumerate(runs, start=1):
        sections.append(run_section(run, index))
        if run.networks:
            sections.append(fleet_section(run, index, simulated(run.networks)))
    origins = {f"Claim {finding.claim}": finding.provenance for finding in findings}
    origins |= {run.name: run.summary.get("provenance", {}) for run in runs}
    return Report(
        title or _title(findings, runs),
        tuple(sections),
        overview(findings) if findings else None,
        {name: values for name, values in origins.items() if values},
    )


def simulated(networks: Mapping[str, Network], seed: int = 0) -> Simulated:
    """One simulation of every strategy's network from a stationary start."""
    return Simulated(
        SIMULATED_ROUNDS,
        {name: simulated_staleness(network, seed) for name, network in networks.items()},
    )


def simulated_staleness(network: Network, seed: int = 0) -> FloatArray:
    """Mean staleness of simulated tasks by the service rate of their client, slowest first."""
    rates, where = classes_by_rate(network)
    schedule = simulate(network, rounds=SIMULATED_ROUNDS, start="stationary", seed=seed)
    of_client = np.repeat(where, network.fleet.counts)[schedule.client]
    waited = sums(of_client, schedule.relative_delay, rates.size)
    seen = sums(of_client, np.ones(schedule.rounds), rates.size)
    staleness = np.full(rates.size, math.nan)
    np.divide(waited, seen, out=staleness, where=seen > 0)
    return staleness


def overview(findings: Sequence[Finding]) -> Overview:
    """The verdicts on all claims."""
    many = "s" if len(findings) > 1 else ""
    return Overview(
        title="Verdicts",
        standfirst=f"{len(findings)} claim{many}, each checked by computation. Every verdict below "
        "is derived from results, statement by statement.",
        columns=("Claim", "Verdict", "Statements", "Size"),
        entries=tuple(
            Entry(
                anchor=f"claim-{finding.claim}",
                number=finding.claim,
                title=finding.title,
                source=finding.source,
                verdict=finding.verdict,
                cells=(finding.tally, "reduced" if finding.reduced else "full"),
            )
            for finding in findings
        ),
        note="A claim marked reduced was run smaller than in the paper: it checks the trend, not "
        "the number. What was reduced stands with each claim."
        if any(finding.reduced for finding in findings)
        else "",
    )


def sayings(statements: Sequence[Statement]) -> tuple[Saying, ...]:
    """Statements gathered by what they say, and then by what was found."""
    gathered: dict[tuple[str, str], dict[tuple[str, Outcome], list[str]]] = {}
    for statement in statements:
        cases = gathered.setdefault((statement.says, statement.reading), {})
        cases.setdefault((statement.found, statement.outcome), []).append(statement.about)
    return tuple(
        Saying(
            *said,
            tuple(Case(tuple(filter(None, about)), *found) for found, about in cases.items()),
        )
        for said, cases in gathered.items()
    )


def finding_section(finding: Finding) -> Section:
    """A claim of the paper: what was checked, statement by statement, and its figures."""
    notes = (f"Reduced: {finding.reduced}",) if finding.reduced else ()
    return Section(
        anchor=f"claim-{finding.claim}",
        title=finding.title,
        kicker=f"Claim {finding.claim} · {finding.source}",
        verdict=finding.verdict,
        lead=finding.checked,
        notes=notes,
        heading="The paper says",
        sayings=sayings(finding.statements),
        figures=tuple(replace(figure, palette=PALETTE) for figure in finding.figures),
        tables=finding.tables,
    )


def collect(folders: Iterable[str | Path]) -> tuple[list[Finding], list[Run]]:
    """Every finding and every run in these folders or up to three levels below them.

    Runs under a finding or beside one are part of it and are not listed again.
    """
    findings: list[Finding] = []
    runs: list[Run] = []
    for given in folders:
        folder = Path(given)
        if not folder.is_dir():
            raise InvalidFile(f"{folder}: not a folder. Give folders that a command wrote.")
        before = len(findings) + len(runs)
        _walk(folder, _DEPTH, findings, runs)
        if len(findings) + len(runs) == before:
            raise InvalidFile(
                f"{folder}: nothing to report: no {RunFolder(folder).history_path.name} and no "
                f"{verdict.FILE} in it. Give a folder written by 'sojourn train', "
                "'reproduce', 'demo' or 'deploy'."
            )
    findings.sort(key=lambda finding: (len(finding.claim), finding.claim))
    return findings, runs


def _walk(folder: Path, depth: int, findings: list[Finding], runs: list[Run]) -> None:
    if (folder / verdict.FILE).is_file():
        findings.append(Finding.read(folder))
        return
    run = RunFolder(folder)
    if run.has_histories:
        runs.append(run.read())
        return
    children = sorted(path for path in folder.iterdir() if path.is_dir())
    if any((child / verdict.FILE).is_file() for child in children):
        children = [child for child in children if (child / verdict.FILE).is_file()]
    if depth:
        for child in children:
            _walk(child, depth - 1, findings, runs)


def _title(findings: Sequence[Finding], runs: Sequence[Run]) -> str:
    if findings:
        return "The paper, reproduced"
    return runs[0].name if len(runs) == 1 else "Sojourn report"
