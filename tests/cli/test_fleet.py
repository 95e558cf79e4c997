"""``sojourn fleet estimate`` as a user types it."""

import json
import pickle

import numpy as np

import sojourn as sj


def test_estimate_writes_a_fleet_that_plans(run, tmp_path):
    random = np.random.default_rng(1)
    rows = [
        f"phone {i},{duration!r}"
        for i in range(6)
        for duration in random.exponential(1.0 + 9.0 * (i % 2), 60).tolist()
    ]
    (tmp_path / "log.csv").write_text("device,duration\n" + "\n".join(rows) + "\n")
    result = run("fleet", "estimate", "log.csv", "--out", "fleet.csv")
    assert result.code == 0
    assert "exponential" in result.out and "95 % interval" in result.out
    assert sj.Fleet.from_csv(tmp_path / "fleet.csv").counts.tolist() == [3, 3]
    wrong = run("fleet", "estimate")
    assert wrong.code == 2
    assert "either a log" in wrong.error


def test_a_class_column_is_named_as_the_page_names_it(run, tmp_path):
    rows = [f"d{i % 4},{1 + i % 3},{'ab'[i % 2]}" for i in range(80)]
    (tmp_path / "log.csv").write_text("device,duration,Modell\n" + "\n".join(rows) + "\n")
    result = run("fleet", "estimate", "log.csv", "--columns", "type=Modell", "--json")
    assert result.code == 0, result.error
    assert {row["name"] for row in json.loads(result.out)["classes"]} == {"a", "b"}


def test_the_slowest_device_of_an_uneven_class_is_named(run, tmp_path):
    rows = [f"d{i % 4},{(1 + i % 3) * (9 if i % 4 == 2 else 1)},a" for i in range(240)]
    (tmp_path / "log.csv").write_text("device,duration,type\n" + "\n".join(rows) + "\n")
    result = run("fleet", "estimate", "log.csv")
    assert "by a factor of up to 9 (the slowest is d2); --by-device" in result.out


def test_many_classes_are_not_all_printed(run, tmp_path):
    rows = [f"d{i % 60},{1 + i % 7}" for i in range(240)]
    (tmp_path / "log.csv").write_text("device,duration\n" + "\n".join(rows) + "\n")
    result = run("fleet", "estimate", "log.csv", "--by-device")
    assert sum(line.startswith("d") for line in result.out.splitlines()) == 40
    assert "... and 20 more classes: --out fleet.csv or --json for all" in result.out


def test_what_a_log_tells_of_links_presence_and_drift(run, tmp_path):
    random = np.random.default_rng(3)
    rows, time = [], 0.0
    for k in range(400):
        work = float(random.gamma(4.0, np.exp(k / 400)))
        rows.append(f"phone,{time!r},{time + work + 0.5!r},0.5")
        time += work
    (tmp_path / "log.csv").write_text("device,start,end,uplink\n" + "\n".join(rows) + "\n")
    (tmp_path / "there.csv").write_text("device,from,until\nphone,-9,-6\nphone,-1,\n")
    log = ("fleet", "estimate", "log.csv", "--presence", "there.csv", "--now", "1e4")
    result = run(*log, "--out", "fleet.csv")
    assert result.code == 0, result.error
    assert "longer at the end of the log" in result.out and "uplink" in result.out
    fleet = sj.Fleet.from_csv(tmp_path / "fleet.csv")
    assert fleet.uplink.tolist() == [0.5]
    assert fleet.mean_down.tolist() == [5.0]
    assert '"drift"' in run(*log, "--json").out


def test_read_takes_the_files_of_others(run, tmp_path):
    (tmp_path / "het.json").write_text('{"0": {"delay": 2.0, "bandwidth": 8.0}}')
    read = ("fleet", "read", "het.json", "--format", "appfl", "--out", "fleet.csv")
    result = run(*read, "--step-seconds", "0.5", "--model-bytes", "1048576")
    assert result.code == 0, result.error
    assert "SHA-256" in result.out
    fleet = sj.Fleet.from_csv(tmp_path / "fleet.csv")
    assert (fleet.service_rates.tolist(), fleet.uplink.tolist()) == ([1.0], [1.0])
    assert "needs --step-seconds" in run(*read).error
    trace = {7: {"active": [2.0], "inactive": [20.0], "finish_time": 24.0, "model": "x"}}
    (tmp_path / "trace").write_bytes(pickle.dumps(trace))
    hours = ("fleet", "read", "trace", "--format", "fedscale-hours", "--out", "hours.csv")
    assert "75.0%" in run(*hours).out
    simulated = run(
        *("simulate", "fleet.csv", "--concurrency", "1", "--time", "96", "--hours", "hours.csv"),
        *("--replicates", "2"),
    )
    assert simulated.code == 0, simulated.error
    assert "did you mean 'fedscale'" in run(*read[:4], "fedscal", *read[5:]).error


def test_a_folder_as_the_file_to_write_is_a_sentence(run, tmp_path):
    (tmp_path / "log.csv").write_text("device,start,end\na,0,1\na,1,2\n")
    result = run("fleet", "estimate", "log.csv", "--out", ".")
    assert result.code == 2
    assert "it is a folder" in result.error
