"""The page of a reproduction: claims with their verdicts first, then runs that belong to none."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from jinja2 import BaseLoader, FileSystemLoader

from reproduction import verdict
from reproduction.figures import figure_sections, left_over
from reproduction.palette import PALETTE
from reproduction.statements import statements_table
from reproduction.training import read_finding
from reproduction.verdict import Finding, Outcome, Statement
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Figure
from sojourn.report import Report, Section
from sojourn.report.runs import report_of, run_sections
from sojourn.runs.folder import Run, RunFolder

_DEPTH = 3


@dataclass(frozen=True)
class Case:
    """What was found, and of which of the saying's cases."""

    about: tuple[str, ...]
    found: str
    outcome: str


@dataclass(frozen=True)
class Saying:
    """A sentence of the paper and the cases it was judged in; cases with one finding are together."""

    says: str
    reading: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class ClaimSection(Section):
    """A claim of the paper: the verdict on it, and what was judged."""

    verdict: str = ""
    sayings: tuple[Saying, ...] = ()


@dataclass(frozen=True, eq=False)
class ClaimsReport(Report):
    """A report that begins with the verdicts on all claims."""

    findings: tuple[Finding, ...] = ()
    template: ClassVar[str] = "claims.html"
    loader: ClassVar[BaseLoader | None] = FileSystemLoader(Path(__file__).parent)

    @property
    def standfirst(self) -> str:
        """What the page is."""
        many = "s" if len(self.findings) > 1 else ""
        return (
            f"{len(self.findings)} claim{many}, each checked by computation. Every verdict below is "
            "derived from results, statement by statement."
        )

    @property
    def stills(self) -> list[Figure]:
        """Training figures against the axis on which the paper shows them; the page has the other, too."""
        return [
            replace(figure, views=tuple(v for v in figure.views if v.axis == figure.views[0].axis))
            for figure in self.figures
        ]

    @property
    def counts(self) -> dict[str, int]:
        """How often there is which verdict."""
        return Counter(finding.verdict for finding in self.findings)


def reproduction_report(folders: Iterable[str | Path], *, title: str | None = None) -> Report:
    """A report on all that these folders hold; one on runs alone where they hold no claim."""
    paths = [Path(folder) for folder in folders]
    findings, runs = collect(paths)
    if not findings:
        return report_of(paths, title=title)
    sections: list[Section] = [finding_section(finding) for finding in findings]
    sections += figure_sections(findings)
    sections.append(
        Section(
            anchor="statements",
            title="Every statement of the paper",
            lead="What the paper says, line by line, and what its status rests on.",
            tables=(statements_table(findings),),
        )
    )
    for index, run in enumerate(runs, start=1):
        sections += run_sections(run, index)
    origins = {f"Claim {finding.claim}": finding.provenance for finding in findings}
    origins |= {run.name: run.summary.get("provenance", {}) for run in runs}
    return ClaimsReport(
        title or "The paper, reproduced",
        tuple(sections),
        origins={name: values for name, values in origins.items() if values},
        findings=tuple(findings),
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


def finding_section(finding: Finding) -> ClaimSection:
    """A claim of the paper: what was checked, statement by statement, and figures beyond the paper's."""
    return ClaimSection(
        anchor=f"claim-{finding.claim}",
        title=finding.title,
        kicker=f"Claim {finding.claim} · {finding.source}",
        verdict=finding.verdict,
        lead=finding.checked,
        notes=(f"Reduced: {finding.reduced}",) if finding.reduced else (),
        sayings=sayings(finding.statements),
        figures=tuple(replace(figure, palette=PALETTE) for figure in left_over(finding)),
        tables=finding.tables,
    )


def collect(folders: Iterable[Path]) -> tuple[list[Finding], list[Run]]:
    """Every finding and every run in these folders or up to three levels below them.

    Runs under a finding or beside one are part of it and are not listed again.
    """
    findings: list[Finding] = []
    runs: list[Run] = []
    for folder in folders:
        if not folder.is_dir():
            raise InvalidFile(f"{folder}: not a folder. Give folders that a command wrote.")
        _walk(folder, _DEPTH, findings, runs)
    findings.sort(key=lambda finding: (len(finding.claim), finding.claim))
    return findings, runs


def _walk(folder: Path, depth: int, findings: list[Finding], runs: list[Run]) -> None:
    if (folder / verdict.FILE).is_file():
        findings.append(read_finding(folder))
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
