"""The claims of the paper as files: what it says, where, and with which numbers it is checked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reproduction.verdict import Compared, Outcome, Statement
from sojourn._support.configuration import Table
from sojourn.errors import UnknownName


@dataclass(frozen=True)
class Says:
    """A statement of the paper in our words, and the reading under which it is checked."""

    text: str
    reading: str = ""


@dataclass(frozen=True)
class Judged:
    """What was found about a statement."""

    found: str
    outcome: Outcome
    compared: tuple[Compared, ...] = ()
    needs: int | None = None


@dataclass(frozen=True, eq=False)
class Claim:
    """One file of ``experiments/paper/claims``.

    ``computes`` names the computation, ``parameters`` is its table of numbers, to be taken once.
    """

    number: str
    title: str
    source: str
    computes: str
    checked: str
    says: Mapping[str, Says]
    parameters: Table

    @classmethod
    def read(cls, path: Path) -> "Claim":
        """Read and check a claim; the parameters are checked by the computation."""
        table = Table.read(path)
        spoken = {}
        for key, entry in table.take("statement", dict, default={}).items():
            inner = Table(entry, f"{path}: [statement.{key}]")
            reading = inner.take("reading", str, default="")
            spoken[key] = Says(inner.take("says", str), reading)
            inner.close()
        claim = cls(
            number=table.take("claim", str),
            title=table.take("title", str),
            source=table.take("source", str),
            computes=table.take("computes", str),
            checked=table.take("checked", str),
            says=spoken,
            parameters=table.table("parameters", default={}),
        )
        table.close()
        return claim

    def statements(self, judged: Mapping[str, Judged]) -> tuple[Statement, ...]:
        """The paper's words beside what was found, for every statement of the claim."""
        return tuple(
            Statement(says.text, judged[key].found, judged[key].outcome, says.reading)
            for key, says in self.says.items()
        )


CLAIMS = Path(__file__).parents[1] / "claims"


def read_claims(numbers: Iterable[str] = ()) -> list[Claim]:
    """The claims with these numbers, all by default, in order; an unknown number is refused."""
    paths = {path.stem.split("-")[0]: path for path in CLAIMS.glob("*-*.toml")}
    offered = sorted(paths, key=int)
    wanted = list(dict.fromkeys(numbers)) or offered
    for number in wanted:
        if number not in paths:
            raise UnknownName("claim", number, offered)
    return [Claim.read(paths[number]) for number in sorted(wanted, key=int)]
