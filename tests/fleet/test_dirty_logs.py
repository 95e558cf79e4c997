"""Logs as they are: formats, zones, units, and every bad row accounted for."""

import csv
import json

import numpy as np
import pytest

import sojourn as sj
from sojourn.errors import InvalidFile
from sojourn.fleet.from_logs import estimate_fleet, read_log, read_presence
from tests.fleet.dirty_logs import KINDS, RATES, write_log


def inside(log):
    """Whether the true rate of each type lies in its 95 % interval."""
    fleet, classes = estimate_fleet(log, classes=log.classes)
    assert set(fleet.names) == set(RATES)
    return [one.rate_low <= RATES[fleet.label(k)] <= one.rate_high for k, one in enumerate(classes)]


@pytest.mark.parametrize("dirt", [0.01, 0.08])
def test_every_bad_row_is_accounted_for_by_line_and_reason(tmp_path, dirt):
    written = write_log(tmp_path / "log.csv", np.random.default_rng(1), rows=20_000, dirt=dirt)
    log = read_log(written.path, max_bad=0.1)
    assert {row.line: row.reason for row in log.bad} == written.reasons
    assert log.reasons == written.counts
    assert len(log.reasons) == len(KINDS) + 1  # a stray quote is a wrong number of fields
    assert log.rows == written.rows
    assert sum(seen.finished.size for seen in log.values()) == log.rows - len(log.bad)


@pytest.mark.slow
@pytest.mark.parametrize("rows, logs, devices", [(100_000, 8, 20), (1_500, 24, 3)])
def test_rates_lie_in_their_intervals_as_often_as_on_the_clean_log(tmp_path, rows, logs, devices):
    """The same tasks, clean and with 1 and 8 % of dirt: five intervals of 95 % in each log.

    Shares are compared up to three standard deviations, those of a dirty log with the clean one's by the
    intervals in which they differ.
    """
    held = {}
    for dirt in (0.0, 0.01, 0.08):
        held[dirt] = []
        for seed in range(logs):
            random = np.random.default_rng(seed)
            written = write_log(tmp_path / "log.csv", random, rows=rows, dirt=dirt, devices=devices)
            log = read_log(written.path, max_bad=0.2)
            assert {row.line: row.reason for row in log.bad} == written.reasons
            held[dirt] += inside(log)
    number = 5 * logs
    clean = np.array(held[0.0])
    assert clean.mean() >= 0.95 - 3.0 * np.sqrt(0.95 * 0.05 / number)
    for dirt in (0.01, 0.08):
        dirty = np.array(held[dirt])
        lost, won = (clean & ~dirty).sum(), (dirty & ~clean).sum()
        assert lost - won <= 3.0 * np.sqrt(lost + won)
        assert dirty.mean() >= 0.95 - 3.0 * np.sqrt(0.95 * 0.05 / number)


def test_a_log_that_is_mostly_dirt_is_refused_with_one_whole_summary(run, tmp_path):
    written = write_log(tmp_path / "log.csv", np.random.default_rng(4), rows=5000, dirt=0.3)
    result = run("fleet", "estimate", "log.csv", "--out", "fleet.csv")
    assert result.code == 2
    assert f"{len(written.reasons):,} of {written.rows:,} rows cannot be used" in result.error
    for reason, number in written.counts.items():
        assert f"{number:,} {reason}" in result.error
    assert not (tmp_path / "fleet.csv").exists()
    with (tmp_path / "fleet.bad-rows.csv").open(encoding="utf-8", newline="") as file:
        listed = {int(row["line"]): row["reason"] for row in csv.DictReader(file)}
    assert listed == written.reasons
    assert run("fleet", "estimate", "log.csv", "--max-bad", "40%").code == 0


def test_the_command_names_classes_and_what_it_left_out(run, tmp_path):
    random = np.random.default_rng(5)
    written = write_log(tmp_path / "log.csv", random, rows=3000, dirt=0.02)
    with written.path.open("a", encoding="utf-8") as file:
        file.write("desktop,idle one,2023-11-14T22:13:20+00:00,,0.5\n")
    result = run("fleet", "estimate", "log.csv", "--out", "fleet.csv")
    assert result.code == 0, result.error
    assert sj.Fleet.from_csv(tmp_path / "fleet.csv").names == tuple(RATES)
    assert "left out, without a finished task: idle one" in result.out
    assert "rows (" in result.out and "listed in fleet.bad-rows.csv" in result.out
    five = run("fleet", "estimate", "log.csv", "--classes", "4", "--json")
    assert len(json.loads(five.out)["classes"]) == 4
    assert (
        "exclude each other"
        in run("fleet", "estimate", "log.csv", "--classes", "2", "--by-device").error
    )


TASKS = [("a", 10.0, 12.5), ("a", 13.0, 14.0), ("b", 10.0, 11.0)]


@pytest.mark.parametrize("unit, name", [(1.0, None), (1e3, "milliseconds"), (1e6, "microseconds")])
def test_epoch_times_of_any_unit_are_seconds(tmp_path, unit, name):
    rows = "".join(
        f"{d},{(1.7e9 + a) * unit:.0f},{(1.7e9 + b) * unit:.0f},{0.5 * unit}\n" for d, a, b in TASKS
    )
    (tmp_path / "log.csv").write_text(f"client,start_time,end_time,uplink\n{rows}")
    log = read_log(tmp_path / "log.csv", max_bad=0.5)
    expected = [1.5, 0.5] if unit == 1.0 else [2.0, 0.5]  # whole seconds lose the half
    assert log["a"].finished == pytest.approx(expected, abs=0.51 if unit == 1.0 else 1e-6)
    assert [name in note for note in log.notes] == ([True] if name else [])


def test_zones_count(tmp_path):
    (tmp_path / "log.tsv").write_text(
        "device\tstart\tend\na\t2024-05-01T12:00:00+02:00\t2024-05-01T10:00:30Z\n"
    )
    assert read_log(tmp_path / "log.tsv")["a"].finished.tolist() == [30.0]
    (tmp_path / "naive.csv").write_text("device,start,end\na,2024-05-01 12:00,2024-05-01 12:01\n")
    log = read_log(tmp_path / "naive.csv")
    assert log["a"].finished.tolist() == [60.0]
    assert "2 times have no time zone" in log.notes[0]


def test_json_lines_and_names_of_ones_own(tmp_path):
    records = [{"cid": d, "t0": a, "t1": b, "n": {"x": 1}} for d, a, b in TASKS]
    lines = [*map(json.dumps, records), "{broken", '["list"]', '{"cid": "a", "t0": 15, "t1": null}']
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    with pytest.raises(InvalidFile, match=r"are cid, t0, t1, n\.x\. Say which is which"):
        read_log(tmp_path / "log.jsonl")
    names = {"device": "cid", "start": "t0", "end": "t1"}
    log = read_log(tmp_path / "log.jsonl", columns=names, now=20.0, max_bad=0.5)
    assert log.reasons == {"line is not a JSON object": 2}
    assert log["a"].finished.tolist() == [2.5, 1.0]
    assert log["a"].running.tolist() == [5.0]
    with pytest.raises(InvalidFile, match="there is no column 'x'"):
        read_log(tmp_path / "log.jsonl", columns={**names, "start": "x"})


def test_one_wrong_end_does_not_cost_the_tasks_that_it_covers(tmp_path):
    rows = [f"a,{t},{t + 1}" for t in range(100)]
    rows[3] = "a,3,90"
    (tmp_path / "log.csv").write_text("device,start,end\n" + "\n".join(rows) + "\n")
    log = read_log(tmp_path / "log.csv")
    assert [(row.line, row.reason) for row in log.bad] == [
        (5, "task overlaps another of its device")
    ]


def test_impossible_durations_are_left_out_and_heavy_tails_are_not(tmp_path):
    durations = np.random.default_rng(6).pareto(1.2, 50_000) + 1.0
    rows = [f"a,{value!r}" for value in [*durations.tolist(), 1e20]]
    (tmp_path / "log.csv").write_text("device,duration\n" + "\n".join(rows) + "\n")
    log = read_log(tmp_path / "log.csv")
    assert [(row.line, row.reason) for row in log.bad] == [(50_002, "duration is impossibly long")]


def test_a_device_still_there_is_there_until_the_end_of_the_log(run, tmp_path):
    """An empty ``until`` reaches to the end of the log, not of the file of presences."""
    tasks = "".join(f"a,{t},{t + 1}\nb,{t},{t + 1}\n" for t in range(0, 1000, 2))
    (tmp_path / "log.csv").write_text(f"device,start,end\n{tasks}")
    (tmp_path / "there.csv").write_text("device,from,until\na,0,\nb,-5,-4\nb,-2,-1\nb,0,\n")
    log = read_log(tmp_path / "log.csv", presence=read_presence(tmp_path / "there.csv"))
    assert log["a"].finished.size == 500
    presence = read_presence(tmp_path / "there.csv")
    _, classes = estimate_fleet(log, grouped=False, presence=presence)
    by_name = {one.devices[0]: one for one in classes}
    assert by_name["b"].mean_up == pytest.approx((1 + 1 + 999) / 2)
    assert by_name["a"].mean_down is None
    result = run(
        *("fleet", "estimate", "log.csv", "--presence", "there.csv", "--by-device"),
        *("--out", "fleet.csv"),
    )
    assert "always" in result.out
    fleet = sj.Fleet.from_csv(tmp_path / "fleet.csv")
    assert (fleet.mean_up > 0).all(), "nobody is written as never there"
    assert sorted(fleet.mean_down.tolist()) == pytest.approx([0.0, 1.5])


def test_links_have_laws(tmp_path):
    random = np.random.default_rng(7)
    rows = [f"a,{t},{t + 9},{random.lognormal(0.0, 0.5)!r}" for t in range(0, 4000, 10)]
    (tmp_path / "log.csv").write_text("device,start,end,downlink\n" + "\n".join(rows) + "\n")
    fleet, (found,) = estimate_fleet(read_log(tmp_path / "log.csv"))
    assert found.downlink.law.name == "lognormal"
    assert fleet.extra["downlink_law"] == (str(found.downlink.law),)
    assert fleet.downlink[0] == pytest.approx(np.exp(0.125), rel=0.1)


def test_a_deployments_folder_is_a_log(run, tmp_path):
    records = [{"client": i % 2, "service_seconds": 1.0 + i % 3} for i in range(30)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tasks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    result = run("fleet", "estimate", "--from-run", "run")
    assert result.code == 0, result.error
    assert "95 % interval" in result.out
