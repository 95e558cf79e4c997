"""Every statement of the paper with its status, from ``statements.toml`` and the results of a reproduction."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reproduction.checks import above
from reproduction.intervals import Interval
from reproduction.verdict import Finding, Statement
from sojourn._support.configuration import Table
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Table as ReportTable

STATEMENTS = Path(__file__).parents[1] / "statements.toml"
GIVEN = ("not run", "not implemented", "not a claim", "differs")
"""The statuses that a row may state by itself."""
CHECKED, CORRECTED, NOT_RUN = "checked", "checked, corrected", "not run"
COLUMNS = ("line", "the paper's words", "where", "status", "size", "pairs (seeds)", "rests on")


@dataclass(frozen=True)
class Derived:
    """A gain that the intervals of another statement judge: at least so many points over a rival."""

    says: str
    over: str
    least: float

    def judge(self, statement: Statement, *, reduced: bool) -> Statement | None:
        """The gain in one case; ``None`` where the other statement has no interval for it.

        Reduced runs check trends, not numbers: they do not decide it.
        """
        for compared in statement.compared:
            if compared.about == self.over and compared.unit == "points":
                break
        else:
            return None
        if compared.estimate is None or compared.low is None or compared.high is None:
            return None
        interval = Interval(compared.estimate, compared.low, compared.high, compared.pairs)
        outcome = "inconclusive" if reduced else above(interval, bound=self.least)
        return replace(statement, outcome=outcome, compared=(compared,))


@dataclass(frozen=True)
class PaperStatement:
    """One row of the file: what the paper says, where, and what a status rests on.

    ``results`` are the figures and numbered results it belongs to. Exactly one of ``claim``, ``tests``
    and ``status`` says where the status comes from; tests may stand beside a status.
    """

    line: int
    quote: str
    where: str
    results: tuple[str, ...] = ()
    claim: str = ""
    says: tuple[str, ...] = ()
    about: str = ""
    derived: Derived | None = None
    reading: str = ""
    tests: tuple[str, ...] = ()
    status: str = ""
    corrected: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A statement of the paper with its status, the size that it rests on and the number of pairs."""

    statement: PaperStatement
    status: str
    size: str
    pairs: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as a table has it."""
        s = self.statement
        where = f"{s.where}; {', '.join(s.results)}" if s.results else s.where
        basis = f"claim {s.claim}" if s.claim else ", ".join(s.tests)
        notes = [s.reading and f"reading: {s.reading}", s.note]
        rests = "; ".join(filter(None, (basis, *notes)))
        return (str(s.line), s.quote, where, self.status, self.size, self.pairs, rests)


def read_statements(path: Path = STATEMENTS) -> list[PaperStatement]:
    """The rows of the file, in the order of the paper's text."""
    table = Table.read(path)
    rows = [_statement(entry) for entry in table.tables("statement")]
    table.close()
    return sorted(rows, key=lambda row: row.line)


def _statement(table: Table) -> PaperStatement:
    derived = None
    if "derived" in table.values:
        inner = table.table("derived")
        derived = Derived(
            inner.take("says", str), inner.take("over", str), inner.take("least", float)
        )
        inner.close()
    row = PaperStatement(
        line=table.take("line", int),
        quote=table.take("quote", str),
        where=table.take("where", str),
        results=tuple(table.take("results", list, default=[])),
        claim=table.take("claim", str, default=""),
        says=tuple(table.take("says", list, default=[])),
        about=table.take("about", str, default=""),
        derived=derived,
        reading=table.take("reading", str, default=""),
        tests=tuple(table.take("tests", list, default=[])),
        status=table.take("status", str, default=""),
        corrected=table.take("corrected", bool, default=False),
        note=table.take("note", str, default=""),
    )
    table.close()
    if row.status and row.status not in GIVEN:
        raise InvalidFile(
            f"{table.where}: 'status' must be one of {', '.join(GIVEN)}; it is '{row.status}'"
        )
    if bool(row.claim) == bool(row.tests or row.status) or bool(row.claim) != bool(row.says):
        raise InvalidFile(f"{table.where}: give 'claim' with 'says', or 'tests', or 'status'")
    return row


def rows(findings: Iterable[Finding], statements: Sequence[PaperStatement]) -> list[Row]:
    """Every statement with its status, as these findings have it.

    Of several findings about a claim the first that judged a statement gives its status.
    """
    by_claim: dict[str, list[Finding]] = {}
    for finding in findings:
        by_claim.setdefault(finding.claim, []).append(finding)
    return [_row(statement, by_claim) for statement in statements]


def statements_table(findings: Iterable[Finding]) -> ReportTable:
    """All statements of the paper as one table."""
    made = rows(findings, read_statements())
    return ReportTable(
        COLUMNS,
        tuple(row.cells for row in made),
        title="Every statement of the paper",
        note="Lines are those of the paper's LaTeX source. 'checked' means by tests, at full size.",
    )


def _row(statement: PaperStatement, findings: Mapping[str, Sequence[Finding]]) -> Row:
    if statement.status:
        return Row(statement, statement.status, "", "")
    if statement.tests:
        return Row(statement, CORRECTED if statement.corrected else CHECKED, "full size", "")
    for finding in findings.get(statement.claim, ()):
        found = _matching(statement, finding)
        if any(one.is_judged for one in found):
            break
    else:
        return Row(statement, NOT_RUN, "", "")
    part = replace(finding, statements=found)
    pairs = sorted({compared.pairs for one in found for compared in one.compared})
    number = "" if not pairs else f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    return Row(statement, part.verdict, part.rests_on, number)


def _matching(statement: PaperStatement, finding: Finding) -> tuple[Statement, ...]:
    """The finding's statements with these words, or else those from which the row is derived."""
    about = [one for one in finding.statements if statement.about in one.about]
    direct = tuple(one for one in about if one.says in statement.says)
    if direct or statement.derived is None:
        return direct
    derived = statement.derived
    judged = (
        derived.judge(one, reduced=bool(finding.reduced))
        for one in about
        if one.says == derived.says
    )
    return tuple(one for one in judged if one is not None)
