"""The rows of a log, whatever it is written in: CSV, TSV, JSON or Parquet."""

import csv
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sojourn._support.csv_table import CONTROL
from sojourn._support.files import printable, replacing
from sojourn.errors import InvalidFile, MissingExtra
from sojourn.fleet.from_logs.encoding import is_parquet, read_log_text
from sojourn.fleet.from_logs.times import SECONDS, UNITS, TimeReader

MISSING = frozenset(
    {
        "",
        "nan",
        "na",
        "n/a",
        "#n/a",
        "null",
        "(null)",
        "none",
        "nil",
        "nat",
        "undefined",
        "\\n",
        "-",
    }
)
"""Fields, in lower case, that say that nothing is known."""
SYNONYMS = {
    "device": (
        *("device", "device_id", "device_name", "client", "client_id", "client_name", "cid"),
        *("node", "node_id", "node_name", "worker", "worker_id", "worker_name", "host", "hostname"),
        *("machine", "machine_id", "agent", "agent_id", "participant", "participant_id"),
    ),
    "start": (
        *(
            "start",
            "start_time",
            "start_at",
            "started",
            "started_at",
            "start_ts",
            "start_timestamp",
        ),
        *("begin", "begin_time", "begun", "began_at", "t_start", "time_start"),
        *("dispatched_at", "sent_at"),
    ),
    "end": (
        *("end", "end_time", "end_at", "ended", "ended_at", "end_ts", "end_timestamp"),
        *("finish", "finish_time", "finished", "finished_at", "stop", "stop_time", "stopped_at"),
        *("completed", "completed_at", "completion_time", "t_end", "time_end", "received_at"),
    ),
    "duration": (
        *("duration", "seconds", "elapsed", "elapsed_time", "took", "runtime", "run_time"),
        *("wall_time", "service_time", "execution_time", "training_time", "train_time"),
    ),
    "running": ("running",),
    "wait": ("wait", "wait_time"),
    "downlink": ("downlink", "download", "download_time", "downlink_time"),
    "uplink": ("uplink", "upload", "upload_time", "uplink_time"),
    "class": (
        *("type", "class", "device_type", "device_class", "device_model", "client_type"),
        *("worker_type", "node_type", "machine_type", "hardware"),
    ),
}
"""What a column of ours may be called in a log."""
OUTCOMES = ("status", "state", "outcome", "result", "success")
"""Columns that may say that a task failed."""
MOST_OUTCOMES = 8
DELIMITERS = ("\t", ";", "|", ",")
LONGEST_TEXT = 200
"""Characters of a bad row that are repeated."""
LONGEST_FIELD = 20
"""Lines of a field in quotation marks."""
SAMPLED = 200
"""Rows from which the meaning of columns is guessed."""
UNDECODED = "\N{REPLACEMENT CHARACTER}"
_UNIT = re.compile(r"(.*?)[ _]*(?:[ _]([a-zµμ]+)|[\[(]([a-zµμ]+)[\])])")


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
    of a unit where the name of a column says it, such as ``duration_ms``.
    """

    path: str
    columns: dict[str, list[str]]
    lines: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    units: dict[str, float] = field(default_factory=dict)
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


def _chosen(
    path: Path,
    table: _Table,
    columns: Mapping[str, str],
    only: Only | None,
    notes: Sequence[str],
) -> Rows:
    places, units = _places(path, table, columns)
    rows = Rows(
        str(path),
        {name: [] for name in places},
        bad=list(table.broken),
        notes=list(notes),
        units=units,
        place=table.place,
        decimal_comma=table.decimal_comma,
    )
    wanted, kept = list(places.values()), None
    if only is not None:
        kept = _column(path, table.header, only.column)
    left_out = 0
    for line, text, fields in table.rows:
        if kept is not None and only is not None and fields[kept].strip() not in only.values:
            left_out += 1
        else:
            rows.add(line, text, [fields[place] for place in wanted])
    if left_out:
        rows.notes.append(f"{left_out:,} rows are not {only} and were not read")
    elif only is None:
        rows.notes += _outcomes(table, places)
    for name, seconds in units.items():
        given = table.header[places[name]]
        if seconds != 1.0:
            rows.notes.append(f"'{given}' is read in {UNITS[seconds][-1]}, as its name says")
    return rows


def _outcomes(table: _Table, places: Mapping[str, int]) -> list[str]:
    """A note where tasks seem to have ended in several ways, and all of them count."""
    for place, name in enumerate(map(_plain_name, table.header)):
        if name in OUTCOMES and place not in places.values():
            found = Counter(fields[place].strip() for _, _, fields in table.rows)
            if 1 < len(found) <= MOST_OUTCOMES:
                total = sum(found.values())
                shares = ", ".join(
                    f"{value or '(empty)'} {n / total:.1%}" for value, n in found.most_common()
                )
                most = found.most_common(1)[0][0]
                return [
                    f"the column '{table.header[place]}' has several values ({printable(shares)}), and all "
                    f"rows count as tasks: --only {table.header[place]}={printable(most)} reads those alone"
                ]
    return []


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
    first = numbered[comments][1]
    delimiter = delimiter or max(DELIMITERS, key=first.count)
    header, at = [name.strip() for name in _fields(first, delimiter)], comments + 1
    if comments:  # column names may be a comment, too
        last = [name.strip() for name in _fields(numbered[comments - 1][1].lstrip("# "), delimiter)]
        if len(last) == len(header) and set(map(_plain_name, last)) & set(SYNONYMS["device"]):
            header, at = last, comments
    table = _Table(header, [], [], decimal_comma=delimiter != ",")
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
    """A JSON object per line, or one document that is a list of objects or holds one."""
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
            records.append((number, line or json.dumps(record, ensure_ascii=False), record))
            header.update(dict.fromkeys(record))
        else:
            broken.append(BadRow(number, why, line or json.dumps(record)[:LONGEST_TEXT]))
    if not records:
        raise InvalidFile(f"{path}: no tasks: there is no line with a JSON object")
    names = list(header)
    rows = [
        (number, line, [_plain(record.get(name)) for name in names])
        for number, line, record in records
    ]
    return _Table(names, rows, broken, place)


def _object(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _document(text: str) -> list[object] | None:
    """The list of a JSON document; ``None`` if every line is a document of its own."""
    begin = text.lstrip()
    if begin[:1] not in ("[", "{") or isinstance(_object(begin.split("\n", 1)[0]), dict):
        return None
    whole = _object(text)
    if isinstance(whole, dict):
        whole = next((value for value in whole.values() if isinstance(value, list)), None)
    return whole if isinstance(whole, list) else None


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else repr(value)


def _parquet_as_csv(path: Path) -> str:
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError as error:
        missing = "pandas" if "pandas" in (error.name or "") else "pyarrow"
        raise MissingExtra(
            f"{missing} (for Parquet; or write the log as CSV)", extra="parquet"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path}: cannot be read as Parquet ({error})") from error
    return str(frame.to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%S.%f%z"))


def _plain_name(name: str) -> str:
    """``startTime``, ``Start Time`` and ``start-time`` as ``start_time``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return "_".join(re.sub(r"[-_.]", " ", apart.lower()).split())


def _without_unit(plain: str) -> tuple[str, float | None]:
    """A name without the unit at its end, and the seconds of that."""
    found = _UNIT.fullmatch(plain)
    unit = SECONDS.get(found[2] or found[3]) if found else None
    return (plain, None) if found is None or unit is None else (found[1], unit)


def _column(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise InvalidFile(f"{path}: there is no column '{name}'; there are {_named(header)}")
    return header.index(name)


def _places(
    path: Path, table: _Table, columns: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, float]]:
    """Which column of the log is which of ours, and the units that their names say."""
    header = table.header
    twice = [name for name, number in Counter(header).items() if number > 1 and name]
    if twice:
        raise InvalidFile(f"{path}: the column '{twice[0][:40]}' stands twice in the first line")
    plain = [_plain_name(name) for name in header]
    bare = [_without_unit(name) for name in plain]
    places: dict[str, int] = {}
    for ours, names in SYNONYMS.items():
        if ours in columns:
            places[ours] = _column(path, header, columns[ours])
            continue
        for known in names:
            if known in plain:
                places[ours] = plain.index(known)
            elif known in (name for name, _ in bare) and ours not in ("device", "class", "running"):
                places[ours] = [name for name, _ in bare].index(known)
            if ours in places:
                break
    timed = {"start", "end"} <= set(places)
    if "device" not in places or not (timed or "duration" in places):
        raise InvalidFile(
            f"{path}: there must be a row per task, and the first line must name a column device and "
            f"either start and end or duration; it names {_named(header)}. Say which is which, such as "
            f"--columns {_suggested(table, places)}"
        )
    for unused in ["duration", "running"] if timed else ["start", "end"]:
        places.pop(unused, None)
    units = {
        ours: unit
        for ours, place in places.items()
        if ours not in ("device", "class", "running") and (unit := bare[place][1]) is not None
    }
    return places, units


def _suggested(table: _Table, known: Mapping[str, int]) -> str:
    """Which column may be which, by what stands in the first rows."""
    sample = [fields for _, _, fields in table.rows[:SAMPLED]]
    reader = TimeReader(decimal_comma=table.decimal_comma)
    timed, named = [], []
    for place in range(len(table.header)):
        values = [
            fields[place].strip()
            for fields in sample
            if fields[place].strip().lower() not in MISSING
        ]
        if values and place not in known.values():
            reader.learn(values)
            if all(_is_time(reader, value) for value in values):
                timed.append(place)
            elif not any(map(_is_number, values)) and len(set(values)) > 1:
                named.append(place)
    guess = {
        name: table.header[place]
        for name, place in known.items()
        if name in ("device", "start", "end")
    }
    for ours, found in (("device", named), ("start", timed), ("end", timed)):
        if ours not in guess and found:
            guess[ours] = table.header[found.pop(0)]
    if set(guess) != {"device", "start", "end"} or any("," in name for name in guess.values()):
        return "device=cid,start=t0,end=t1"
    return shlex.quote(",".join(f"{ours}={guess[ours]}" for ours in ("device", "start", "end")))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_time(reader: TimeReader, text: str) -> bool:
    """Whether a field is a date, or a number as large as an epoch time."""
    try:
        return reader.parse(text) >= 1e8
    except (ValueError, OverflowError):
        return False


def _named(header: Sequence[str]) -> str:
    shown = ", ".join(CONTROL.sub("?", name)[:40] for name in header[:20])
    return f"{shown} and {len(header) - 20} more" if len(header) > 20 else shown


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
