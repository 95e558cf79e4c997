"""The rows of a log, whatever it is written in: CSV, TSV, JSON or Parquet."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sojourn._support.configuration import without_control
from sojourn._support.csv_table import MOST_COLUMNS, write_csv
from sojourn._support.files import MOST_TEXT, printable, read_bytes
from sojourn.errors import InvalidFile, MissingExtra
from sojourn.fleet.from_logs.columns import (
    MISSING,
    SAMPLED,
    SYNONYMS,
    BadRow,
    LogTable,
    column_notes,
    find_columns,
    outcome_notes,
    plain_name,
    tell_tasks,
)

Opened = gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile
COMPRESSED: dict[bytes, Callable[[io.BytesIO], Opened]] = {
    b"\x1f\x8b": lambda data: gzip.GzipFile(fileobj=data),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""How files begin that are compressed."""
PARQUET = b"PAR1"
OTHERS = {
    b"PK\x03\x04": "a workbook or an archive: export its table as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook: export its table as CSV",
    b"SQLite format 3\x00": "a database: export its table as CSV",
    b"ORC": "an ORC file: write it as CSV or Parquet",
    b"ARROW1": "an Arrow file: write it as CSV or Parquet",
    b"Obj\x01": "an Avro file: write it as CSV or JSON lines",
}
"""How files begin that no log is read from, and what they are."""
SMALL, MOST_TIMES = 10_000_000, 200
"""Bytes that a compressed log may have in any case, and how many times as long as its file it may be otherwise:
logs are 5 to 50 times as long, and what is made to fill memory a thousand times."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
WINDOWS = "cp1252"


def is_parquet(path: Path) -> bool:
    """Whether a file says that it is Parquet, by its name or its first bytes."""
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    if not path.is_file():  # a pipe may never be written to
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(PARQUET)) == PARQUET
    except OSError:
        return False


def read_log_text(path: Path) -> tuple[str, list[str]]:
    """The text of a log, and notes on how it was read."""
    data = read_bytes(path)
    for begins, what in OTHERS.items():
        if data.startswith(begins):
            raise InvalidFile(f"{path}: is {what}")
    for begins, opened in COMPRESSED.items():
        if data.startswith(begins):
            data = _unpacked(path, opened(io.BytesIO(data)), len(data))
            break
    if data.startswith(UTF_16):
        return data.decode("utf-16", "replace"), []
    if data[1:400:2].count(0) > 100:
        return data.decode("utf-16-le", "replace"), []
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", "replace")
    # Some bytes of a log in UTF-8 may be broken; a log in which no letter beyond ASCII is UTF-8 is not.
    if text.isascii() or any(ord(letter) > 127 and letter != "\ufffd" for letter in set(text)):
        return text, []
    return data.decode(WINDOWS, "replace"), ["the log is not UTF-8 and is read as Windows-1252"]


def _unpacked(path: Path, file: Opened, packed: int) -> bytes:
    most = min(MOST_TEXT, max(SMALL, MOST_TIMES * packed))
    try:
        with file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InvalidFile(f"{path}: cannot be unpacked ({error})") from error
    if len(data) > most:
        raise InvalidFile(
            f"{path}: too large: more than {most:,} bytes from a file of {packed:,}. If it is a log, unpack it "
            "yourself"
        )
    return data


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
class Only:
    """Rows to read: those whose ``column`` has one of ``values``."""

    column: str
    values: frozenset[str]

    def __str__(self) -> str:
        return f"{self.column}={'|'.join(sorted(self.values))}"


@dataclass(eq=False)
class Rows:
    """The columns of a log by our names, with ``""`` where a field is missing.

    ``place`` is what ``lines`` count: lines, or the records of a JSON document. ``units`` are the
    seconds of a unit where the name of a column says it, such as ``duration_ms``; ``hints`` what to
    do about rows that are refused for a reason.
    """

    columns: dict[str, list[str]]
    lines: list[int]
    texts: list[str]
    bad: list[BadRow]
    notes: list[str]
    units: dict[str, float]
    hints: dict[str, str]
    place: str
    decimal_comma: bool


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
    table.notes[:0] = notes
    return _chosen(table, columns, only)


def _chosen(table: LogTable, columns: Mapping[str, str], only: Only | None) -> Rows:
    """Our columns of the rows that are asked for."""
    places, units = find_columns(table, columns)
    chosen, notes = table.rows, [*table.notes, *column_notes(table, places, units)]
    if only is not None:
        by = table.column(only.column)
        chosen = [row for row in table.rows if row[2][by].strip() in only.values]
    if left_out := len(table.rows) - len(chosen):
        notes.append(f"{left_out:,} rows are not {only} and were not read")
    elif only is None:
        notes += outcome_notes(table, places)
    ours = {name: [_known(row[2][place]) for row in chosen] for name, place in places.items()}
    hints = {}
    for name in ("start", "duration"):
        if "" in ours.get(name, []) and (option := tell_tasks(table, places, name)):
            hints[f"{name} is missing"] = f"rows that are no tasks: {option} reads the others"
    return Rows(
        columns=ours,
        lines=[line for line, _, _ in chosen],
        texts=[text for _, text, _ in chosen],
        bad=list(table.broken),
        notes=notes,
        units=units,
        hints=hints,
        place=table.place,
        decimal_comma=table.decimal_comma,
    )


def _known(given: str) -> str:
    stripped = given.strip()
    return "" if stripped.lower() in MISSING else stripped


def _delimited(path: Path, text: str, delimiter: str | None) -> LogTable:
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
    table = LogTable(path, header, [], [], decimal_comma=delimiter != ",")
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


def _json(path: Path, text: str) -> LogTable:
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
    return LogTable(path, names, rows, broken, place)


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
    rows = ((row.line, row.reason, shown_text(row.text)) for row in bad)
    write_csv(path, ("line", "reason", "text"), rows)


def shown_text(text: str) -> str:
    r"""The text of a row on one line, with control characters escaped.

    >>> print(shown_text("phone\x1b[2J,1,2"))
    phone\x1b[2J,1,2
    """
    short = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
    return printable(short)
