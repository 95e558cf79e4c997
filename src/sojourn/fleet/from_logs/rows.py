"""The rows of a log, whatever it is written in: CSV, TSV, JSON or Parquet."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sojourn._support.configuration import without_control
from sojourn._support.csv_table import MOST_COLUMNS
from sojourn._support.files import printable, replacing
from sojourn.errors import InvalidFile, MissingExtra
from sojourn.fleet.from_logs.columns import (
    MISSING,
    SAMPLED,
    SYNONYMS,
    column as place_of,
    column_notes,
    find_columns,
    outcome_notes,
    plain_name,
    tell_tasks,
)
from sojourn.fleet.from_logs.encoding import is_parquet, read_log_text

DELIMITERS = ("\t", ";", "|", ",")
LONGEST_TEXT = 200
"""Characters of a bad row that are repeated."""
LONGEST_FIELD = 20
"""Lines of a field in quotation marks."""
DEEPEST = 8
"""Levels of a nested record whose fields are columns."""
MOST_ABOVE = 30
"""Lines above the column names."""
_BETWEEN = re.compile(r"[\s,]*")
UNDECODED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: its line, why, and its text."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class Only:
    """Rows to read: those whose ``column`` has one of ``values``."""

    column: str
    values: frozenset[str]

    def __str__(self) -> str:
        return f"{self.column}={'|'.join(sorted(self.values))}"


@dataclass(eq=False)
class Rows:
    """The columns of a log by our names, with ``""`` where a field is missing.

    ``place`` is what ``lines`` count: lines, or the records of a JSON document. ``units`` are the seconds
    of a unit where the name of a column says it, such as ``duration_ms``; ``hints`` what to do about rows
    that are refused for a reason.
    """

    path: str
    columns: dict[str, list[str]]
    lines: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    units: dict[str, float] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    place: str = "line"
    decimal_comma: bool = False

    def add(self, line: int, text: str, fields: Sequence[str]) -> None:
        """Take in a row; its fields are in the order of the columns."""
        self.lines.append(line)
        self.texts.append(text)
        for column, given in zip(self.columns.values(), fields, strict=True):
            stripped = given.strip()
            column.append("" if stripped.lower() in MISSING else stripped)

    def refuse(self, line: int, reason: str, text: str) -> None:
        """Count a row that cannot even be split into fields."""
        self.bad.append(BadRow(line, reason, text))


def read_rows(path: Path, columns: Mapping[str, str], only: Only | None = None) -> Rows:
    """The rows of a log; ``columns`` maps our names to the log's where they cannot be guessed."""
    notes: list[str] = []
    if is_parquet(path):
        table = _delimited(path, _parquet_as_csv(path), ",")
        table.place = "record"
        table.rows = [(k, text, fields) for k, (_, text, fields) in enumerate(table.rows, 1)]
    else:
        text, notes = read_log_text(path)
        suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
        if suffixes & {".jsonl", ".ndjson", ".json"} or text.lstrip()[:1] in ("{", "["):
            table = _json(path, text)
        else:
            table = _delimited(path, text, "\t" if suffixes & {".tsv", ".tab"} else None)
    return _chosen(path, table, columns, only, notes)


@dataclass(eq=False)
class _Table:
    """All columns of a log, before it is known which are ours."""

    header: list[str]
    rows: list[tuple[int, str, list[str]]]
    broken: list[BadRow]
    place: str = "line"
    decimal_comma: bool = False
    notes: list[str] = field(default_factory=list)


def _chosen(
    path: Path,
    table: _Table,
    columns: Mapping[str, str],
    only: Only | None,
    notes: Sequence[str],
) -> Rows:
    cells = [fields for _, _, fields in table.rows]
    places, units = find_columns(
        path, table.header, cells, columns, decimal_comma=table.decimal_comma
    )
    rows = Rows(
        str(path),
        {name: [] for name in places},
        bad=list(table.broken),
        notes=[*notes, *table.notes, *column_notes(table.header, places, units)],
        units=units,
        place=table.place,
        decimal_comma=table.decimal_comma,
    )
    wanted, kept = list(places.values()), None
    if only is not None:
        kept = place_of(path, table.header, only.column)
    left_out = 0
    for line, text, fields in table.rows:
        if kept is not None and only is not None and fields[kept].strip() not in only.values:
            left_out += 1
        else:
            rows.add(line, text, [fields[place] for place in wanted])
    if left_out:
        rows.notes.append(f"{left_out:,} rows are not {only} and were not read")
    elif only is None:
        rows.notes += outcome_notes(table.header, cells, places)
    for name in ("start", "duration"):
        if "" in rows.columns.get(name, []) and (
            option := tell_tasks(table.header, cells, places, name)
        ):
            rows.hints[f"{name} is missing"] = f"rows that are no tasks: {option} reads the others"
    return rows


def _delimited(path: Path, text: str, delimiter: str | None) -> _Table:
    """CSV, line by line: a quotation mark that is never closed spoils its own line only."""
    numbered = [
        (number, line.rstrip("\r"))
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip("\r\t ,;|")
    ]
    comments = 0
    while comments < len(numbered) and numbered[comments][1].startswith("#"):
        comments += 1
    if not numbered[comments:]:
        raise InvalidFile(f"{path}: empty. The first line must name the columns")
    lines = [line for _, line in numbered[comments : comments + SAMPLED]]
    above, delimiter = _above(lines, delimiter)
    at = comments + above
    header = [name.strip() for name in _fields(numbered[at][1], delimiter)]
    at += 1
    if comments and not above:  # column names may be a comment, too
        last = [name.strip() for name in _fields(numbered[comments - 1][1].lstrip("# "), delimiter)]
        if len(last) == len(header) and set(map(plain_name, last)) & set(SYNONYMS["device"]):
            header, at = last, comments
    table = _Table(header, [], [], decimal_comma=delimiter != ",")
    if above:
        table.notes.append(f"the column names stand in line {numbered[at - 1][0]}")
    while at < len(numbered):
        number, line = numbered[at]
        fields, used = _fields(line, delimiter), 1
        if not fields:
            fields, used = _over_lines(
                [line for _, line in numbered[at : at + LONGEST_FIELD]], delimiter, len(header)
            )
        if len(fields) != len(header):
            table.broken.append(BadRow(number, f"number of fields is not {len(header)}", line))
            used = 1
        else:
            table.rows.append((number, line, fields))
        at += used
    return table


def _above(lines: Sequence[str], delimiter: str | None) -> tuple[int, str]:
    """How many lines stand above the column names, such as the title of a report, and the delimiter.

    The first line names the columns, unless it has another number of fields than most lines: then the
    first one does that has as many, if none of its fields is empty or has a digit in its first place.
    """
    first = delimiter or max(DELIMITERS, key=lines[0].count)
    usual = delimiter or max(DELIMITERS, key=lambda one: sum(one in line for line in lines))
    for chosen in dict.fromkeys((first, usual)):
        numbers = [len(_fields(line, chosen)) for line in lines]
        number, times = Counter(numbers).most_common(1)[0]
        if numbers[0] == number > 1:
            return 0, chosen
        if number > 2 and times > len(lines) / 2:
            for above in range(1, min(MOST_ABOVE, len(lines))):
                names = [name.strip() for name in _fields(lines[above], chosen)]
                if len(names) == number:
                    if all(name and not name[0].isdigit() for name in names):
                        return above, chosen
                    break
    return 0, first


def _over_lines(lines: Sequence[str], delimiter: str, number: int) -> tuple[list[str], int]:
    """The fields of a row of which one goes on over several lines, and how many lines these are."""
    marks = 0
    for used, line in enumerate(lines, 1):
        marks += line.count('"')
        if marks % 2 == 0:
            try:
                found = next(
                    csv.reader(["\n".join(lines[:used])], delimiter=delimiter, strict=True)
                )
            except (csv.Error, StopIteration):
                break
            return (found, used) if len(found) == number else ([], 1)
    return [], 1


def _fields(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return []


def _json(path: Path, text: str) -> _Table:
    """A JSON object per line or one after the other, or one document with a list of objects in it."""
    records: list[tuple[int, str, dict[str, object]]] = []
    broken: list[BadRow] = []
    place, why = "line", "line is not a JSON object"
    listed = _document(text)
    if listed is None:
        entries = [
            (number, line, _object(line))
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    else:
        place, why = "record", "record is not a JSON object"
        entries = [(number, "", one) for number, one in enumerate(listed, 1)]
    header: dict[str, None] = {}
    for number, line, record in entries:
        if isinstance(record, dict):
            flat = dict(_flat(record))
            records.append((number, line or json.dumps(record, ensure_ascii=False), flat))
            header.update(dict.fromkeys(flat))
        else:
            broken.append(BadRow(number, why, line or json.dumps(record)[:LONGEST_TEXT]))
    if not records:
        raise InvalidFile(f"{path}: no tasks: there is no line with a JSON object")
    if len(header) > MOST_COLUMNS:
        raise InvalidFile(
            f"{path}: its records have {len(header):,} fields with different names, where at most "
            f"{MOST_COLUMNS:,} are read"
        )
    names = list(header)
    rows = [
        (number, line, [_plain(record.get(name)) for name in names])
        for number, line, record in records
    ]
    return _Table(names, rows, broken, place)


def _flat(
    record: Mapping[str, object], above: str = "", depth: int = 1
) -> Iterator[tuple[str, object]]:
    """The fields of a record; those of records in it have names with dots."""
    for name, value in record.items():
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _flat(value, f"{above}{name}.", depth + 1)
        else:
            yield f"{above}{name}", value


def _object(line: str) -> object:
    try:
        return without_control(json.loads(line)) if "\\" in line else json.loads(line)
    except (ValueError, RecursionError):
        return None


def _document(text: str) -> list[object] | None:
    """The records of a JSON document; ``None`` if every line is a document of its own."""
    begin = text.strip()
    first, _, more = begin.partition("\n")
    if begin[:1] not in ("[", "{") or (more and isinstance(_object(first), dict)):
        return None
    documents = _one_after_the_other(begin)
    if len(documents) > 1:
        return documents
    return max(_lists(documents[0]), key=len, default=None) if documents else None


def _one_after_the_other(text: str) -> list[object]:
    """The JSON values of a text, up to the first place that is none."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(value)
        between = _BETWEEN.match(text, end)
        at = between.end() if between else end
    return found


def _lists(value: object, depth: int = 0) -> Iterator[list[object]]:
    """The lists of objects in a JSON value, those in records of records too."""
    if isinstance(value, list):
        if any(isinstance(one, dict) for one in value):
            yield value
    elif isinstance(value, dict) and depth < DEEPEST:
        for inner in value.values():
            yield from _lists(inner, depth + 1)


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else repr(value)


def _parquet_as_csv(path: Path) -> str:
    try:
        from pyarrow import parquet, types

        table = parquet.read_table(path)
        for _ in range(DEEPEST):
            if any(types.is_struct(column.type) for column in table.schema):
                table = table.flatten()
        frame = table.to_pandas()
    except ImportError as error:
        missing = "pandas" if "pandas" in (error.name or "") else "pyarrow"
        raise MissingExtra(
            f"{missing} (for Parquet; or write the log as CSV)", extra="parquet"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path}: cannot be read as Parquet ({error})") from error
    return str(frame.to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%S.%f%z"))


def write_bad_rows(bad: Sequence[BadRow], path: Path) -> None:
    """Write the line, reason and text of every bad row as CSV."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["line", "reason", "text"])
        writer.writerows((row.line, row.reason, shown_text(row.text)) for row in bad)


def shown_text(text: str) -> str:
    r"""The text of a row on one line, with control characters escaped.

    >>> print(shown_text("phone\x1b[2J,1,2"))
    phone\x1b[2J,1,2
    """
    short = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
    return printable(short)
