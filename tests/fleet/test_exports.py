"""Logs as other systems export them: encodings, separators, dates, units and names of columns."""

import bz2
import gzip
import json
import lzma
import sys
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from sojourn.errors import InvalidFile, InvalidInput, MissingExtra
from sojourn.fleet.from_logs import read_log, rows as rows_module
from sojourn.fleet.from_logs.rows import Only
from sojourn.fleet.from_logs.times import TimeReader, time_zone

KINDS = {"Müller's": "phone", 'Pixel, "Büro"': "phone", "srv;3": "server"}
BEGIN = datetime(2025, 3, 30, tzinfo=UTC).timestamp()


def made():
    """(device, start, end) with times in whole milliseconds, in the order of their ends."""
    random = np.random.default_rng(8)
    found = []
    for rank, device in enumerate(KINDS):
        now = BEGIN
        for took in random.gamma(3.0, 10.0 / 3**rank, 25).tolist():
            end = round(now + took + 0.001, 3)
            found.append((device, now, end))
            now = round(end + 0.01, 3)
    return sorted(found, key=lambda task: task[2])


TASKS = made()


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


def dated(form, zone=UTC, digits=-3):
    def text(time):
        # Milliseconds of a binary fraction are rounded, not cut off.
        moment = datetime.fromtimestamp(0, zone) + timedelta(milliseconds=round(1e3 * time))
        return moment.strftime(form)[: digits if "%f" in form and form.endswith("%f") else None]

    return text


def table(header, time, separator=",", end="\n", more=""):
    lines = [header]
    lines += [separator.join([quoted(d), KINDS[d], time(a), time(b)]) + more for d, a, b in TASKS]
    return end.join(lines) + end


BERLIN = timezone(timedelta(hours=2))
EXPORTS = {
    "Excel, German": (
        "log.csv",
        table(
            "device;type;start;end", dated("%d.%m.%Y %H:%M:%S,%f"), separator=";", end="\r\n"
        ).encode("utf-8-sig"),
    ),
    "Excel, Unicode text": (
        "log.txt",
        table(
            "Device\tType\tStart Time\tEnd Time", dated("%m/%d/%Y %I:%M:%S.%f %p"), "\t", "\r\n"
        ).encode("utf-16"),
    ),
    "Windows, bars and a comment": (
        "log.log",
        (
            "# exported\n"
            + table("device|type|start|end", dated("%Y-%m-%dT%H:%M:%S.%f%z", BERLIN), "|")
        ).encode("cp1252"),
    ),
    "PostgreSQL": (
        "log.csv.gz",
        gzip.compress(
            table(
                "worker_name,device_type,started_at,finished_at", dated("%Y-%m-%d %H:%M:%S.%f+00")
            )
            .replace('"srv;3",server,2025-03-30 00:00:00.000000+00', '"srv;3",server,\\N')
            .encode()
        ),
    ),
    "a database, UTC in words": (
        "log.csv.xz",
        lzma.compress(table("device,type,start,end", dated("%Y-%m-%d %H:%M:%S.%f UTC")).encode()),
    ),
    "Kibana": (
        "log.csv.bz2",
        bz2.compress(table("host;type;start;end", dated("%b %d, %Y @ %H:%M:%S.%f"), ";").encode()),
    ),
    "day and month with slashes": (
        "log.tsv",
        table("node_id\ttype\tbegin\tfinish", dated("%d/%m/%Y %H:%M:%S.%f"), "\t").encode(),
    ),
    "milliseconds, by their name": (
        "log.csv",
        table("device,type,start_ms,end_ms", lambda t: f"{1e3 * (t - BEGIN):.0f}").encode(),
    ),
    "a JSON document": (
        "log.json",
        json.dumps(
            {
                "tasks": [
                    {"clientId": d, "deviceType": KINDS[d], "startTime": int(1e3 * a + 0.5)}
                    | {"endTime": int(1e3 * b + 0.5), "meta": {"v": [1]}}
                    for d, a, b in TASKS
                ]
            },
            indent=1,
        ).encode(),
    ),
    "notes over several lines": (
        "log.csv",
        table(
            "device,type,start,end,notes", dated("%Y%m%dT%H%M%S.%fZ"), more=',"one\ntwo, ""three"""'
        ).encode(),
    ),
}


@pytest.mark.parametrize("name, content", EXPORTS.values(), ids=EXPORTS)
def test_an_export_is_read_as_it_is(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    log = read_log(tmp_path / name)
    missing = name.endswith(".gz")
    assert log.reasons == ({"start is missing": 1} if missing else {})
    for device in KINDS:
        expected = [b - a for d, a, b in TASKS if d == device]
        if missing and device == "srv;3":
            expected = expected[1:]
        assert log[device].finished == pytest.approx(expected, abs=1e-6)
    assert dict(log.classes) == KINDS


SPANS = {
    "duration_ms": lambda span: f"{1e3 * span:.0f}",
    "Elapsed": lambda span: str(timedelta(milliseconds=round(1e3 * span))),
    "took": lambda span: f"{1e3 * span:.0f} ms",
    "runtime (s)": lambda span: f"{span:.3f}".replace(".", ","),
    "duration [min]": lambda span: repr(span / 60),
}


@pytest.mark.parametrize("name", SPANS)
def test_durations_have_the_unit_of_their_column_or_their_own(tmp_path, name):
    lines = [f"{quoted(d)};{SPANS[name](b - a)}" for d, a, b in TASKS]
    (tmp_path / "log.csv").write_text("\n".join([f"client;{name}", *lines]), encoding="utf-8")
    log = read_log(tmp_path / "log.csv")
    assert not log.bad
    for device in KINDS:
        expected = [b - a for d, a, b in TASKS if d == device]
        assert log[device].finished == pytest.approx(expected, abs=1e-6)


def test_names_that_are_not_known_are_suggested_from_what_stands_below(run, tmp_path):
    text = table("Gerät;Typ;Beginn;Ende", dated("%d.%m.%Y %H:%M:%S,%f"), ";")
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    refused = run("fleet", "estimate", "log.csv")
    assert refused.code == 2
    suggested = "device=Gerät,start=Beginn,end=Ende"
    assert f"--columns {suggested}" in refused.error.replace("'", "")
    taken = run("fleet", "estimate", "log.csv", "--columns", suggested, "--class-column", "Typ")
    assert taken.code == 0, taken.error
    assert "phone" in taken.out and "server" in taken.out


def test_the_title_of_a_report_may_stand_above_the_column_names(tmp_path):
    """As consoles export: a title, an empty line, names with units and zones, a total at the end."""
    titles = 'Report: "Job history"\r\nGenerated,by FleetConsole,4.2\r\n\r\n'
    lines = table(
        "Compute Target,VM Size,Started On (UTC),Completed On (UTC)",
        dated("%Y-%m-%d %H:%M:%S.%f"),
        end="\r\n",
    )
    (tmp_path / "log.csv").write_text(f"{titles}{lines}\r\nTotal,,,75\r\n", newline="")
    log = read_log(tmp_path / "log.csv")
    assert log.notes[0] == "the column names stand in line 4"
    assert log.reasons == {"start is missing": 1}
    for device in KINDS:
        expected = [b - a for d, a, b in TASKS if d == device]
        assert log[device].finished == pytest.approx(expected, abs=1e-6)
    assert {log.classes[device] for device in KINDS} == set(KINDS.values())


def nested(device, start, end):
    """A record of a task as services write them."""
    timing = {"started_at": dated("%Y-%m-%dT%H:%M:%S.%fZ")(start), "finished_at": end}
    client = {"id": device, "hw": {"model": KINDS[device]}}
    return {"event": "task.finished", "n": [1], "payload": {"client": client, "timing": timing}}


def test_fields_of_nested_records_are_columns(run, tmp_path):
    records = [nested(d, a, dated("%Y-%m-%dT%H:%M:%S.%fZ")(b)) for d, a, b in TASKS]
    beats = [{"event": "heartbeat", "payload": {"client": {"id": d}}} for d in KINDS] * 10
    lines = "\n".join(map(json.dumps, records + beats))
    (tmp_path / "log.jsonl").write_text(lines, encoding="utf-8")
    refused = run("fleet", "estimate", "log.jsonl")
    assert "30 start is missing" in refused.error
    assert "--only event=task.finished reads the others" in refused.error
    asked = ("--only", "event=task.finished", "--class-column", "payload.client.hw.model")
    taken = run("fleet", "estimate", "log.jsonl", *asked, "--out", "fleet.csv")
    assert taken.code == 0, taken.error
    assert "device is payload.client.id, start is payload.timing.started_at" in taken.out
    assert sorted(line.split(",")[2] for line in (tmp_path / "fleet.csv").read_text().split()) == [
        *("name", "phone", "server")
    ]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wrapped", [True, False])
def test_records_of_a_search_or_one_after_the_other(tmp_path, wrapped, indent):
    """The answer of a search engine, and objects over several lines without a list around them."""
    records = [nested(d, a, dated("%Y-%m-%dT%H:%M:%S.%fZ")(b)) for d, a, b in TASKS]
    hits = {"took": [3], "hits": {"total": 75, "hits": [{"_source": one} for one in records]}}
    written = [hits] if wrapped else records
    text = "\n".join(json.dumps(one, indent=indent) for one in written)
    (tmp_path / "log.json").write_text(text, encoding="utf-8")
    log = read_log(tmp_path / "log.json")
    assert not log.bad
    assert sum(seen.finished.size for seen in log.values()) == len(TASKS)


def test_records_that_have_no_field_in_common_are_refused(tmp_path):
    lines = [json.dumps({f"client {k}": {"start": 1, "end": 2}}) for k in range(600)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    with pytest.raises(InvalidFile, match="1,200 fields with different names"):
        read_log(tmp_path / "log.jsonl")


def test_two_columns_that_end_alike_are_not_guessed(tmp_path):
    times = {"sent": {"started_at": 1.0}, "run": {"started_at": 2.0}, "finished_at": 3.0}
    (tmp_path / "log.jsonl").write_text(json.dumps({"client": "a", **times}))
    with pytest.raises(InvalidFile, match="Say which is which"):
        read_log(tmp_path / "log.jsonl")
    columns = {"start": "run.started_at"}
    assert read_log(tmp_path / "log.jsonl", columns=columns)["a"].finished.tolist() == [1.0]


@pytest.mark.parametrize(
    "header, suggested",
    [
        ("job,Asset Serial,created,launch,done", "device=Asset Serial,start=launch,end=done"),
        ("job,device,created,launch,done", "start=launch,end=done"),
    ],
)
def test_only_what_is_not_known_is_suggested(tmp_path, header, suggested):
    rows = [
        f"{k},{100 + k % 3},{BEGIN + k},{BEGIN + 10 * k + 1},{BEGIN + 10 * k + 2}" for k in range(9)
    ]
    (tmp_path / "log.csv").write_text("\n".join([header, *rows]))
    with pytest.raises(InvalidFile, match=f"perhaps --columns '?{suggested}'?$"):
        read_log(tmp_path / "log.csv")


def test_a_number_with_a_decimal_comma_is_not_taken_for_a_device(tmp_path):
    rows = [f"Kamera {k % 3};{BEGIN + 9 * k};{BEGIN + 9 * k + 5};{k},25" for k in range(9)]
    (tmp_path / "log.csv").write_text("\n".join(["Gerät;launch;done;ul secs", *rows]))
    with pytest.raises(InvalidFile, match=r"columns .device=Gerät,start=launch,end=done.$"):
        read_log(tmp_path / "log.csv")


def test_a_row_per_event_is_no_row_per_task(tmp_path):
    rows = [f"{BEGIN + k},a,task_{'started' if k % 2 else 'finished'}" for k in range(9)]
    (tmp_path / "log.csv").write_text("\n".join(["time,device,event", *rows]))
    with pytest.raises(InvalidFile, match="'event' says start and end in rows of their own"):
        read_log(tmp_path / "log.csv")


def test_links_outside_start_and_end_are_said_and_can_be_left_out(run, tmp_path):
    rows = [f"a,{2 * t},{2 * t + 1},3" for t in range(50)]
    (tmp_path / "log.csv").write_text("\n".join(["device,start,end,uplink", *rows]))
    refused = run("fleet", "estimate", "log.csv")
    assert "start and end must include the times on the links" in refused.error
    assert run("fleet", "estimate", "log.csv", "--columns", "downlink=,uplink=").code == 0


def test_a_device_with_a_wrong_clock_is_left_out_whole(run, tmp_path):
    """Starts by the server's clock, ends by the device's: one is an hour behind, one an hour ahead."""
    behind = {"b": -3600.0, "c": 3600.0}
    rows = [
        f"{d},{BEGIN + 100 * t},{BEGIN + 100 * t + 50 + behind.get(d, 0.0)}"
        for t in range(40)
        for d in "abcdefgh"
    ]
    (tmp_path / "log.csv").write_text("\n".join(["device,start,end", *rows]))
    log = read_log(tmp_path / "log.csv", max_bad=0.3)
    assert sorted(log) == list("adefgh")
    assert len(log.bad) == 80
    assert log.notes[-1].endswith("overlap or end before their start: b, c")
    refused = run("fleet", "estimate", "log.csv")
    assert "--max-bad 25% leaves all of these rows out" in refused.error
    assert "starts and ends may come from different clocks" in refused.error


def test_a_task_that_never_ended_is_named(tmp_path):
    rows = [f"a,{t},{t + 1}" for t in range(10)] + [f"b,{t},{t + 1}" for t in range(500)]
    rows += ["a,10,", "b,500.5,", "b,501.5,501.6"]
    (tmp_path / "log.csv").write_text("\n".join(["device,start,end", *rows]))
    (note,) = read_log(tmp_path / "log.csv").notes
    assert note.startswith("1 task without an end has run more than 10 times as long")
    assert "(a)" in note


def test_names_in_several_spellings_are_said(tmp_path):
    rows = [f"{'Pixel-1' if t % 9 else 'PIXEL-1'},{t},{t + 1}" for t in range(50)]
    (tmp_path / "log.csv").write_text("\n".join(["device,start,end", *rows]))
    (note,) = read_log(tmp_path / "log.csv").notes
    assert note.startswith("1 names are written in several ways, such as 'PIXEL-1' and 'Pixel-1'")


def test_a_day_that_may_be_a_month_is_not_guessed(run, tmp_path):
    rows = [f"a,{d}/4/2025 10:00,{d}/4/2025 11:00" for d in range(1, 9)]
    (tmp_path / "log.csv").write_text("\n".join(["device,start,end", *rows]))
    refused = run("fleet", "estimate", "log.csv")
    assert refused.code == 2
    assert "8 start has the day or the month first, and nothing says which" in refused.error
    assert "--time-format '%d/%m/%Y %H:%M' or '%m/%d/%Y %H:%M' says which" in refused.error
    done = run("fleet", "estimate", "log.csv", "--time-format", "%d/%m/%Y %H:%M")
    assert done.code == 0, done.error


def test_local_times_have_the_zone_that_is_given():
    """In Berlin the clock goes from 2:00 to 3:00 on that day."""
    reader = TimeReader(zone=time_zone("Europe/Berlin"))
    span = reader.parse("2025-03-30 03:30") - reader.parse("2025-03-30 01:30")
    assert (span, reader.without_zone) == (3600.0, 2)
    with pytest.raises(InvalidInput, match="--time-zone 'Mars' is not known"):
        time_zone("Mars")


def test_tasks_that_failed_are_named_and_can_be_left_out(run, tmp_path):
    rows = [f"a,{t},{t + 1},{'failed' if t % 10 == 0 else 'ok'}" for t in range(100)]
    (tmp_path / "log.csv").write_text("\n".join(["device,start,end,status", *rows]))
    log = read_log(tmp_path / "log.csv")
    assert log["a"].finished.size == 100
    assert "--only status=ok" in log.notes[0] and "failed 10.0%" in log.notes[0]
    kept = read_log(tmp_path / "log.csv", only=Only("status", frozenset({"ok"})))
    assert (kept["a"].finished.size, kept.rows) == (90, 90)
    assert kept.notes == ("10 rows are not status=ok and were not read",)
    taken = run("fleet", "estimate", "log.csv", "--only", "status=ok", "--max-bad", "9%")
    assert "estimate log.csv --only status=ok --max-bad 9% --out fleet.csv" in taken.error
    assert "there is no column 'x'" in run("fleet", "estimate", "log.csv", "--only", "x=1").error
    assert "none is status=no" in run("fleet", "estimate", "log.csv", "--only", "status=no").error


@pytest.mark.parametrize(
    "row, hint",
    [("a,{0},{0}", "times with fractions of a second"), ("a,{0},{1}", "a column wait")],
    ids=["coarse", "overlapping"],
)
def test_a_refused_log_says_what_to_do(tmp_path, row, hint):
    lines = [row.format(t, t + 50) for t in range(100)]
    (tmp_path / "log.csv").write_text("\n".join(["device,start,end", *lines]))
    with pytest.raises(InvalidFile, match=hint):
        read_log(tmp_path / "log.csv")


@pytest.mark.parametrize(
    "content, what",
    [(b"PK\x03\x04xl", "a workbook or an archive"), (b"\x1f\x8bno", "cannot be unpacked")],
)
def test_what_is_no_log_is_said(tmp_path, content, what):
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(InvalidFile, match=what):
        read_log(tmp_path / "log.csv")


def test_broken_letters_do_not_change_the_encoding_of_the_others(tmp_path):
    rows = [f"téléphone,{t},{t + 1}".encode() for t in range(50)] + [b"t\xe9l,60,61"]
    (tmp_path / "log.csv").write_bytes(b"\n".join([b"device,start,end", *rows]))
    log = read_log(tmp_path / "log.csv")
    assert list(log) == ["téléphone"]
    assert log.reasons == {"device has control characters or is not UTF-8": 1}


def test_parquet_is_read_as_csv_is(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(TASKS, columns=["device", "start", "end"])
    frame["type"] = frame["device"].map(KINDS)
    frame["payload"] = [[1, 2]] * len(frame)
    frame["host"] = [{"os": {"name": "linux"}}] * len(frame)
    numbers = tmp_path / "numbers.parquet"
    frame.to_parquet(numbers)
    for name in ("start", "end"):
        frame[name] = pandas.to_datetime((1e3 * frame[name]).round(), unit="ms", utc=True)
    frame.loc[len(frame)] = [
        "srv;3",
        frame["end"].max(),
        pandas.NaT,
        "server",
        [1],
        {"os": {"name": "x"}},
    ]
    dates = tmp_path / "dates"  # known by its first bytes
    frame.to_parquet(dates)
    for path in (numbers, dates):
        log = read_log(path)
        assert dict(log.classes) == KINDS
        assert not log.bad
        for device in KINDS:
            expected = [b - a for d, a, b in TASKS if d == device]
            assert log[device].finished == pytest.approx(expected, abs=1e-6)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidFile, match="cannot be read as Parquet"):
        read_log(tmp_path / "broken.parquet")


def test_without_its_libraries_parquet_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtra, match=r"pip install 'sojourn\[parquet\]'"):
        rows_module.read_rows(tmp_path / "log.parquet", {})


@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
def test_a_file_that_would_fill_memory_is_not_unpacked(tmp_path, packed):
    """A thousandth of it on the disk; a log of such a length is 5 to 50 times as long as its file."""
    path = tmp_path / "log.csv"
    path.write_bytes(packed(b"device,start,end\n" + b"a,1,2\n" * 2_000_000))
    with pytest.raises(InvalidFile, match="more than 10,000,000 bytes"):
        read_log(path)


def test_objects_without_a_field_are_no_log(tmp_path):
    (tmp_path / "log.jsonl").write_text("{}\n{}\n")
    with pytest.raises(InvalidFile, match="there must be a row per task"):
        read_log(tmp_path / "log.jsonl")
