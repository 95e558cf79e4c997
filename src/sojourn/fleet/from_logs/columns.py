"""Which column of a log is which of ours: by its name, by what it holds, or by what is given."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from sojourn._support.csv_table import CONTROL
from sojourn._support.files import printable
from sojourn.errors import InvalidFile
from sojourn.fleet.from_logs.times import SECONDS, UNITS, TimeReader, finite_number

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
        *("device_no", "device_number", "client_no", "client_number", "instance", "instance_id"),
        *("compute_target", "compute_name"),
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
            "started_on",
        ),
        *("begin", "begin_time", "begun", "began_at", "t_start", "time_start"),
        *("dispatched_at", "sent_at"),
    ),
    "end": (
        *("end", "end_time", "end_at", "ended", "ended_at", "end_ts", "end_timestamp"),
        *("finish", "finish_time", "finished", "finished_at", "stop", "stop_time", "stopped_at"),
        *("completed", "completed_at", "completion_time", "t_end", "time_end", "received_at"),
        *("ended_on", "finished_on", "completed_on"),
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
        *("worker_type", "node_type", "machine_type", "instance_type", "hardware"),
        *("hardware_type", "hw_type", "vm_size"),
    ),
}
"""What a column of ours may be called in a log."""
OUTCOMES = ("status", "state", "outcome", "result", "success")
"""Columns that may say that a task failed."""
MOST_OUTCOMES = 8
WITHOUT_UNIT = ("device", "class", "running")
"""Columns of ours that have no unit."""
SAMPLED = 200
"""Rows from which the meaning of columns is guessed."""
DEVICE_WORDS = frozenset(
    {
        "device",
        "client",
        "node",
        "worker",
        "host",
        "machine",
        "id",
        "name",
        "no",
        "serial",
        "target",
    }
)
STARTS = ("start", "begin", "began", "begun", "launch", "dispatch", "sent", "assign")
ENDS = ("end", "finish", "complet", "stop", "done", "receiv", "success", "succeed")
SPANS = ("duration", "took", "elapsed", "latency", "time", "runtime", "seconds")
EVENTS = frozenset({"event", "action", "phase", "kind", "message", "state"})
"""Words in the names of columns, and beginnings of words in names or fields, that hint at a meaning."""
EXAMPLE = "device=cid,start=t0,end=t1"
_UNIT = re.compile(r"(.*?)[ _]*(?:[ _]([a-zµμ]+)|[\[(]([a-zµμ]+)[\])])")
_IN_UTC = re.compile(r"_(?:utc|\(utc\)|\[utc\])$")


def plain_name(name: str) -> str:
    """``startTime``, ``Start Time`` and ``start-time`` as ``start_time``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return _IN_UTC.sub("", "_".join(re.sub(r"[-_.]", " ", apart.lower()).split()))


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: its line, why, and its text."""

    line: int
    reason: str
    text: str


@dataclass(eq=False)
class LogTable:
    """All columns of a log, before it is known which are ours.

    ``rows`` are the line, the text and the fields of each; ``place`` is what lines are: lines, or the
    records of a document. ``broken`` rows cannot be split into fields.
    """

    path: Path
    header: list[str]
    rows: list[tuple[int, str, list[str]]]
    broken: list[BadRow]
    place: str = "line"
    decimal_comma: bool = False
    notes: list[str] = field(default_factory=list)

    def values(self, place: int, most: int | None = None) -> list[str]:
        """The fields of a column, of at most so many rows."""
        return [fields[place].strip() for _, _, fields in self.rows[:most]]

    def column(self, name: str) -> int:
        """The place of a column by its own name."""
        if name not in self.header:
            listed = _listed(self.header)
            raise InvalidFile(f"{self.path}: there is no column '{name}'; there are {listed}")
        return self.header.index(name)


def find_columns(
    table: LogTable, given: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, float]]:
    """The place of each of our columns, and the seconds of the units that their names say.

    ``given`` maps our names to the log's, or to nothing for a column that is not to be read. A column
    of a nested record, such as ``payload.client.id``, is also known by its end, ``client.id``, unless
    several columns end so.
    """
    path, header = table.path, table.header
    twice = [name for name, number in Counter(header).items() if number > 1 and name]
    if twice:
        raise InvalidFile(f"{path}: two columns are called '{twice[0][:40]}'")
    places: dict[str, int] = {}
    for ours in SYNONYMS:
        if given.get(ours) == "":
            continue
        place = table.column(given[ours]) if ours in given else _known(header, ours)
        if place is not None:
            places[ours] = place
    timed = {"start", "end"} <= set(places)
    if "device" not in places or not (timed or "duration" in places):
        raise InvalidFile(
            f"{path}: there must be a row per task, with the columns device and either start and end or "
            f"duration. The columns are {_listed(header)}. {_needed(table, places)}"
        )
    for unused in ["duration", "running"] if timed else ["start", "end"]:
        places.pop(unused, None)
    units = {
        ours: unit
        for ours, place in places.items()
        if ours not in WITHOUT_UNIT
        and (unit := _without_unit(plain_name(header[place]))[1]) is not None
    }
    return places, units


def column_notes(
    table: LogTable, places: Mapping[str, int], units: Mapping[str, float]
) -> Iterator[str]:
    """How columns were understood, where another reading is possible."""
    header = table.header
    nested = [
        f"{ours} is {header[place]}" for ours, place in places.items() if "." in header[place]
    ]
    if nested:
        yield printable(", ".join(nested))
    for ours, seconds in units.items():
        if seconds != 1.0:
            yield f"'{header[places[ours]]}' is read in {UNITS[seconds][-1]}, as its name says"


def outcome_notes(table: LogTable, places: Mapping[str, int]) -> Iterator[str]:
    """A note where tasks seem to have ended in several ways, and all of them count."""
    for place, name in enumerate(table.header):
        if plain_name(name.rpartition(".")[2]) in OUTCOMES and place not in places.values():
            found = Counter(table.values(place))
            if 1 < len(found) <= MOST_OUTCOMES:
                total = sum(found.values())
                shares = ", ".join(
                    f"{value or '(empty)'} {n / total:.1%}" for value, n in found.most_common()
                )
                most = found.most_common(1)[0][0]
                yield (
                    f"the column '{name}' has several values ({printable(shares)}), and all rows "
                    f"count as tasks: --only {_quoted(f'{name}={most}')} reads those alone"
                )
                return


def tell_tasks(table: LogTable, places: Mapping[str, int], ours: str) -> str | None:
    """The option that leaves out rows without ``ours``, where a column says which rows are no tasks."""
    header = table.header
    given = [value.lower() not in MISSING for value in table.values(places[ours])]
    events = [bool(EVENTS & set(plain_name(name).split("_"))) for name in header]
    for place in sorted(range(len(header)), key=lambda place: not events[place]):
        values = table.values(place)
        if place in places.values() or not 1 < len(set(values)) <= MOST_OUTCOMES:
            continue
        tasks = {value for value, has in zip(values, given, strict=True) if has}
        others = {value for value, has in zip(values, given, strict=True) if not has} - tasks
        if len(tasks) == 1 and others:
            return f"--only {_quoted(f'{header[place]}={tasks.pop()}')}"
    return None


def _quoted(text: str) -> str:
    return shlex.quote(printable(text))


def _known(header: Sequence[str], ours: str) -> int | None:
    """The column with a usual name: the whole name counts first, then the ends of a nested one."""
    deepest = max((name.count(".") for name in header), default=0)
    for cut in range(deepest + 1):
        names = [
            plain_name(name.split(".", cut)[cut]) if name.count(".") >= cut else ""
            for name in header
        ]
        bare = names if ours in WITHOUT_UNIT else [_without_unit(name)[0] for name in names]
        for known in SYNONYMS[ours]:
            # "event.type" is no type of devices, but "client.type" is.
            if cut and ours == "class" and "_" not in known:
                continue
            found = [k for k, name in enumerate(names) if name == known]
            found = found or [k for k, name in enumerate(bare) if name == known]
            if len(found) == 1 or (found and not cut):
                return found[0]
            if found:
                return None
    return None


def _without_unit(plain: str) -> tuple[str, float | None]:
    """A name without the unit at its end, and the seconds of that."""
    found = _UNIT.fullmatch(plain)
    unit = SECONDS.get(found[2] or found[3]) if found else None
    return (plain, None) if found is None or unit is None else (found[1], unit)


def _needed(table: LogTable, known: Mapping[str, int]) -> str:
    """What to do about a log whose columns are not known: the options to type, where they can be guessed."""
    header = table.header
    values = {
        place: [value for value in table.values(place, SAMPLED) if value.lower() not in MISSING]
        for place in range(len(header))
        if place not in known.values()
    }
    reader = TimeReader(decimal_comma=table.decimal_comma)
    is_number = partial(_is_number, decimal_comma=table.decimal_comma)
    timed = {}
    for place, fields in values.items():
        reader.learn(fields)
        times = [_time(reader, field) for field in fields]
        if times and None not in times:
            timed[place] = float(np.median([time for time in times if time is not None]))
    guess = {ours: place for ours, place in known.items() if ours in ("device", "start", "end")}
    if "device" not in guess:
        rows = len(table.rows[:SAMPLED])
        untimed = {p: f for p, f in values.items() if p not in timed}
        guess |= _device(header, untimed, rows, is_number)
    if "duration" in known:
        guess = {"device": guess["device"]} if "device" in guess else {}
        complete = bool(guess)
    else:
        guess |= _start_and_end(header, timed, guess)
        complete = set(guess) == {"device", "start", "end"}
        event = None if complete else _event_column(header, values)
        if event is not None:
            return (
                f"The column '{header[event]}' says start and end in rows of their own: write a row per "
                "task first, with its start and its end"
            )
        if not complete and "device" in guess:
            spans = [
                p
                for p in values
                if set(plain_name(header[p]).split("_")) & set(SPANS) and values[p]
            ]
            spans = [p for p in spans if all(map(is_number, values[p])) and p != guess["device"]]
            if len(spans) == 1:
                guess, complete = {"device": guess["device"], "duration": spans[0]}, True
    asked = {ours: header[place] for ours, place in guess.items() if ours not in known}
    if not complete or any("," in name or "=" in name for name in asked.values()):
        return f"Say which is which, such as --columns {EXAMPLE}"
    listed = ",".join(
        f"{ours}={asked[ours]}" for ours in ("device", "start", "end", "duration") if ours in asked
    )
    return f"Say which is which, perhaps --columns {_quoted(listed)}"


def _device(
    header: Sequence[str],
    values: Mapping[int, Sequence[str]],
    rows: int,
    is_number: Callable[[str], bool],
) -> dict[str, int]:
    """The column that may name devices: its fields come again and again, in the largest variety."""
    found = []
    for place, fields in values.items():
        worded = bool(set(plain_name(header[place]).split("_")) & DEVICE_WORDS)
        number = len(set(fields))
        if 1 < number < rows and (worded or not any(map(is_number, fields))):
            found.append((worded, number, -place))
    return {"device": -max(found)[2]} if found else {}


def _start_and_end(
    header: Sequence[str], timed: Mapping[int, float], known: Mapping[str, int]
) -> dict[str, int]:
    """The columns of times that may be starts and ends: by a word in their names, else by their order."""
    found = {}
    left = dict(timed)
    for ours, words in (("start", STARTS), ("end", ENDS)):
        named = [
            place
            for place in left
            if any(word.startswith(words) for word in plain_name(header[place]).split("_"))
        ]
        if ours not in known and named:
            found[ours] = named[0]
            left.pop(named[0])
    in_order = sorted(left, key=lambda place: (left[place], place))
    for ours, at in (("start", 0), ("end", -1)):
        if ours not in known and ours not in found and in_order:
            found[ours] = in_order.pop(at)
    return found


def _event_column(header: Sequence[str], values: Mapping[int, Sequence[str]]) -> int | None:
    """The column that says in some rows that a task starts, and in others that one ends."""
    for place, fields in values.items():
        if EVENTS & set(plain_name(header[place]).split("_")):
            words = {word for field in set(fields) for word in re.split(r"\W|_", field.lower())}
            if any(word.startswith(STARTS) for word in words) and any(
                word.startswith(ENDS) for word in words
            ):
                return place
    return None


def _is_number(text: str, decimal_comma: bool) -> bool:
    try:
        finite_number(text, decimal_comma)
    except ValueError:
        return False
    return True


def _time(reader: TimeReader, text: str) -> float | None:
    """A date, or a number as large as an epoch time, in its own unit."""
    try:
        value = reader.parse(text)
    except (ValueError, OverflowError):
        return None
    return value if value >= 1e8 else None


def _listed(header: Sequence[str]) -> str:
    shown = ", ".join(CONTROL.sub("?", name)[:40] for name in header[:20])
    return f"{shown} and {len(header) - 20} more" if len(header) > 20 else shown
