"""From folders to a page: the findings and runs in them, and a simulation beside theory."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.config import Table
from sojourn.errors import InvalidFile, SojournError
from sojourn.estimate import Estimate
from sojourn.inputs import read_fleet
from sojourn.jackson import analyze
from sojourn.network import Fleet, Network
from sojourn.report import Report, Section
from sojourn.report.fleet import Predicted, Simulated, classes_by_rate, fleet_section, sums
from sojourn.report.sections import Case, Entry, Overview, Saying, race_section, run_section
from sojourn.report.timeline import timeline_section
from sojourn.report.tuned import tuned_verdict
from sojourn.report.verdict import verdict_of
from sojourn.reproduce import verdict
from sojourn.reproduce.palette import PALETTE
from sojourn.reproduce.verdict import Finding, Outcome, Statement
from sojourn.runfolder import Run, RunFolder
from sojourn.simulation.beginnings import beginnings
from sojourn.simulation.simulate import simulate
from sojourn.simulation.surroundings import Surroundings
from sojourn.timeline import Timeline
from sojourn.train.experiment.strategy import Strategy, read_strategies
from sojourn.types import FloatArray

SIMULATED_ROUNDS = 200_000
PREDICTIONS = 8
FIRST_SEED = 10_000
"""Of the predictions, so that they are not the run's own."""
_DEPTH = 3


def report_of(folders: Iterable[str | Path], *, title: str | None = None) -> Report:
    """A report on all that these folders hold: claims with their verdicts first, then runs."""
    findings, runs = collect(folders)
    sections = [finding_section(finding) for finding in findings]
    for index, run in enumerate(runs, start=1):
        sections += run_sections(run, index)
    origins = {f"Claim {finding.claim}": finding.provenance for finding in findings}
    origins |= {run.name: run.summary.get("provenance", {}) for run in runs}
    return Report(
        title or _title(findings, runs),
        tuple(sections),
        overview(findings) if findings else None,
        {name: values for name, values in origins.items() if values},
    )


def run_sections(run: Run, index: int) -> list[Section]:
    """What there is to show of a run: verdict and curves, the race, timelines, fleet and theory."""
    asked = strategies_of(run)
    sections = [run_section(run, index, plan_notes(asked))]
    if run.tuning:
        sections.append(race_section(run, index))
    if asked:
        drawn = timelines(asked, read_fleet(str(run.experiment["fleet"]), run.path))
        sections.append(timeline_section(index, run.name, drawn))
    if run.networks or asked:
        theory = {name: analyze(network) for name, network in run.networks.items()}
        sections.append(fleet_section(run, index, theory, simulated(run, asked)))
    return sections


def strategies_of(run: Run) -> dict[str, Strategy]:
    """The strategies of a run in virtual time as they were asked for; none where they cannot be told."""
    if run.path is None or any(history.clock == "real" for history in run.histories):
        return {}
    table = Table(run.experiment, run.name)
    try:
        fleet = read_fleet(table.take("fleet", str), run.path)
        common = {
            "start": table.take("start", (str, list), default="spread"),
            "paired": table.take("paired", bool, default=False),
            "around": Surroundings.take(table, fleet, run.path),
        }
        found = read_strategies(table, fleet, run.path, common)
    except SojournError:
        return {}
    seen = {history.strategy for history in run.histories}
    return {strategy.name: strategy for strategy in found if strategy.name in seen}


def plan_notes(asked: Mapping[str, Strategy]) -> list[str]:
    """Where a strategy departs from the plan that it is named after."""
    notes = []
    for name, strategy in asked.items():
        if strategy.plan_text is None:
            continue
        planned = tomllib.loads(strategy.plan_text)
        for what, own in (
            ("concurrency", float(strategy.network.concurrency)),
            ("learning-rate", strategy.learning_rates[0]),
        ):
            meant = planned.get(what)
            if len(strategy.learning_rates) == 1 and meant is not None and meant != own:
                notes.append(
                    f"{name} was run with {what.replace('-', ' ')} {own:g}, not with its plan's "
                    f"{meant:g}."
                )
    return notes


def timelines(asked: Mapping[str, Strategy], fleet: Fleet, seed: int = 0) -> dict[str, Timeline]:
    """The beginning of every strategy's schedule, over one time for all.

    As long as the fastest strategy needs for some tasks of every client. Strategies that send tasks
    alike, and differ only in what the server does with them, share one.
    """
    alike: dict[str, list[str]] = {}
    for name, s in asked.items():
        routed = s.network.to_table() if s.scenario.policy.routes else s.network.concurrency
        alike.setdefault(repr((routed, s.scenario.to_table())), []).append(name)
    classes = [(fleet.label(k), int(fleet.counts[k])) for k in range(fleet.classes)]
    first = {"; ".join(names): asked[names[0]] for names in alike.values()}
    runs = {names: (s.network, s.scenario) for names, s in first.items()}
    return beginnings(runs, classes=classes, seed=seed)


def simulated(run: Run, asked: Mapping[str, Strategy], seed: int = 0) -> Simulated:
    """Simulations: from a stationary start for theory's sake, and as the run itself was run."""
    shares = {name: s.scenario.policy.shares(s.network) for name, s in asked.items()}
    return Simulated(
        SIMULATED_ROUNDS,
        {name: simulated_staleness(network, seed) for name, network in run.networks.items()},
        predicted={name: predicted(run, strategy) for name, strategy in asked.items()},
        shares={name: own for name, own in shares.items() if own is not None},
        fleet=read_fleet(str(run.experiment["fleet"]), run.path) if asked else None,
    )


def predicted(run: Run, strategy: Strategy) -> Predicted:
    """Throughput and staleness of completed tasks, simulated with the start and length of the run."""
    runs = [history for history in run.histories if history.strategy == strategy.name]
    rounds = max(int(history.round[-1]) for history in runs if history.rows)
    length: dict[str, Any] = {"rounds": max(1, rounds)}
    if run.horizon is not None:
        length = {"time": run.horizon}
    schedules = [
        simulate(strategy.network, strategy.scenario, seed=seed, **length)
        for seed in range(FIRST_SEED, FIRST_SEED + PREDICTIONS)
    ]
    some = [schedule for schedule in schedules if schedule.rounds]
    return Predicted(
        Estimate.from_samples([schedule.throughput() for schedule in some]),
        Estimate.from_samples([float(schedule.relative_delay.mean()) for schedule in some]),
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
    if len(runs) > 1:
        return "Sojourn report"
    run = runs[0]
    verdict_on = tuned_verdict(run) if run.tuning else verdict_of(run.histories, run.targets)
    return verdict_on.headline
