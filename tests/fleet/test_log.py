"""Waits, links, presences, drift and tasks under way in logs."""

import json

import numpy as np
import pytest

from sojourn.errors import InvalidFile
from sojourn.fleet.calendars import Hours, read_hours, write_hours
from sojourn.fleet.from_logs import estimate_fleet, read_log, read_presence, read_tasks
from sojourn.fleet.laws import Law


def written(path, text):
    path.write_text(text)
    return path


def test_waits_and_links_are_not_work(tmp_path):
    text = (
        "device,start,end,wait,downlink,uplink\n"
        "a,0,10,1,2,3\n"  # works from 3 to 7
        "a,5,20,2,1,\n"  # sent meanwhile; works from 8 to 20
        "b,0,6,,,1\n"
        "b,10,,1,0.5,\n"  # works from 11.5, until now
    )
    seen = read_log(written(tmp_path / "log.csv", text), now=30.0)
    assert seen["a"].finished.tolist() == [4.0, 12.0]
    assert seen["a"].begun.tolist() == [3.0, 8.0]
    assert (seen["a"].downlink.tolist(), seen["a"].uplink.tolist()) == ([2.0, 1.0], [3.0])
    assert (seen["b"].finished.tolist(), seen["b"].running.tolist()) == ([5.0], [18.5])
    by_duration = "device,duration,running,wait\na,5,,2\na,4,yes,1\n"
    seen = read_log(written(tmp_path / "log.csv", by_duration))
    assert (seen["a"].finished.tolist(), seen["a"].running.tolist()) == ([3.0], [3.0])


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("device,start,end,wait\na,0,10,-1\n", "1 wait is negative .first: line 2: a,0,10,-1"),
        ("device,start,end,wait,uplink\na,0,3,2,1\n", "leave no time for work .first: line 2"),
        (
            "device,start,end,wait\na,0,5,0\na,1,9,3\n",
            "1 task overlaps another of its device .first: line 3",
        ),
        ("device,start,end,uplink\na,0,5,x\n", "uplink is not a number .first: line 2: a,0,5,x"),
    ],
)
def test_mistakes_in_parts_are_told(tmp_path, text, complaint):
    with pytest.raises(InvalidFile, match=complaint):
        read_log(written(tmp_path / "log.csv", text))


def test_away_is_not_work(tmp_path):
    there = written(tmp_path / "presence.csv", "device,from,until\na,0,8\na,20,\nb,5,30\n")
    presence = read_presence(there, now=40.0)
    log = written(tmp_path / "log.csv", "device,start,end\na,6,22\na,30,\nb,6,7\nc,1,4\n")
    seen = read_log(log, now=40.0, presence=presence)
    assert seen["a"].finished.tolist() == [4.0]
    assert seen["a"].running.tolist() == [10.0]
    assert seen["c"].finished.tolist() == [3.0]
    with pytest.raises(InvalidFile, match="away all the time"):
        read_log(written(tmp_path / "l.csv", "device,start,end\na,9,15\n"), presence=presence)
    with pytest.raises(InvalidFile, match="goes with the columns start and end"):
        read_log(written(tmp_path / "l.csv", "device,duration\na,9\n"), presence=presence)
    for text, complaint in (
        ("a,0,8\na,7,9\n", "line 3: a comes before it has gone, at 8"),
        ("a,8,8\n", "line 2: from must be before until"),
        ("", "no presences"),
    ):
        with pytest.raises(InvalidFile, match=complaint):
            read_presence(written(tmp_path / "p.csv", f"device,from,until\n{text}"))


def test_comings_and_goings_are_estimated(tmp_path):
    """Devices there for 10 on average and away for 5, tasks of 2 that wait for them."""
    random = np.random.default_rng(4)
    tasks, stays = ["device,start,end,uplink"], ["device,from,until"]
    for device in range(40):
        time, there = 0.0, []
        while time < 2000.0:
            until = time + random.exponential(10.0)
            there.append((time, until))
            time = until + random.exponential(5.0)
        stays += [f"d{device},{a!r},{b!r}" for a, b in there]
        time, k = 0.0, 0
        while k < len(there) - 1:
            begun, work = time, random.exponential(2.0)
            time = max(time, there[k][0])
            while k < len(there) and time + work > there[k][1]:
                work -= there[k][1] - time
                k += 1
                time = there[k][0] if k < len(there) else time
            if k < len(there):
                time += work
                tasks.append(f"d{device},{begun!r},{time + 1.5!r},1.5")
    log = written(tmp_path / "log.csv", "\n".join(tasks) + "\n")
    presence = read_presence(written(tmp_path / "there.csv", "\n".join(stays) + "\n"))
    fleet, (found,) = estimate_fleet(read_log(log, presence=presence), presence=presence)
    assert found.rate_low < 0.5 < found.rate_high
    assert found.fit.law == Law("exponential")
    assert fleet.mean_up[0] == pytest.approx(10.0, rel=0.06)  # about 5300 each: four errors
    assert fleet.mean_down[0] == pytest.approx(5.0, rel=0.06)
    assert fleet.uplink[0] == 1.5
    assert found.drift is None


@pytest.mark.slow
def test_drift_is_told_and_not_otherwise():
    from sojourn.fleet.from_logs import Durations

    random = np.random.default_rng(5)
    time = np.linspace(0.0, 100.0, 150)

    def seen(growth):
        return {
            f"d{i}": Durations(
                random.gamma(2.0, 1.0, 150) * np.exp(growth * time / 100.0), np.zeros(0), time
            )
            for i in range(4)
        }

    flagged = [
        one.drift is not None for _ in range(100) for one in estimate_fleet(seen(0.0))[1]
    ]  # 0.006 % each by chance
    assert not any(flagged)
    _, (found,) = estimate_fleet(seen(0.7))
    assert found.drift == pytest.approx(np.expm1(0.7), rel=0.25)
    _, (faster,) = estimate_fleet(seen(-0.7))
    assert faster.drift == pytest.approx(np.expm1(-0.7), rel=0.25)


def test_one_device_of_a_class_that_drifts_is_named():
    from sojourn.fleet.from_logs import Durations
    from sojourn.fleet.from_logs.estimate import slowing

    random = np.random.default_rng(3)
    time = np.arange(60.0)

    def seen(change):
        speed = {7: np.where(time < 30.0, 1.0, change)}
        return {
            f"d{i}": Durations(random.gamma(4.0, 1.0, 60) * speed.get(i, 1.0), np.zeros(0), time)
            for i in range(40)
        }

    _, found = estimate_fleet(seen(4.0), classes=1)
    assert found[0].drift is None
    assert list(found[0].drifting) == ["d7"]
    assert found[0].drifting["d7"] > 1.0
    level = [any(slowing([own], tests=40) for own in seen(1.0).values()) for _ in range(100)]
    assert sum(level) <= 10, "5 of 100 by chance, and four standard errors are the least"


@pytest.mark.parametrize(
    ("names", "devices"),
    [
        (["cam-17", "phone 2"], ["cam-17", "phone 2"]),
        (["client 0", "client 1"], ["0", "1"]),
        (["1", "client 1"], ["0", "1"]),
        (["cam", "cam"], ["0", "1"]),
    ],
)
def test_clients_of_a_deployment_have_the_names_of_its_fleet(tmp_path, names, devices):
    records = [{"client": i % 2, "service_seconds": 2.0 + i} for i in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    clients = [{"name": name, "number": k, "running": 9.0 * k} for k, name in enumerate(names)]
    (tmp_path / "status.json").write_text(json.dumps({"clients": clients}))
    seen = read_tasks(tmp_path / "tasks.jsonl", tmp_path / "status.json")
    assert list(seen) == devices
    assert [own.running.tolist() for own in seen.values()] == [[], [9.0]]


def test_tasks_under_way_in_a_deployment_count(tmp_path):
    records = [{"client": i % 2, "service_seconds": 2.0, "time": 2.0 * i + 2} for i in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    assert read_tasks(tmp_path / "tasks.jsonl", tmp_path / "status.json")["0"].running.size == 0
    status = {"phase": "running", "clients": [{"running": 7.5}, {"running": 0.0}, {"running": 3}]}
    (tmp_path / "status.json").write_text(json.dumps(status))
    seen = read_tasks(tmp_path / "tasks.jsonl", tmp_path / "status.json")
    assert seen["0"].running.tolist() == [7.5]
    assert seen["1"].running.size == 0
    assert seen["1"].begun.tolist() == [2.0, 6.0]
    (tmp_path / "status.json").write_text('{"clients": [{"running": "x"}]}')
    with pytest.raises(InvalidFile, match=r"clients\[0\].running must be a number"):
        read_tasks(tmp_path / "tasks.jsonl", tmp_path / "status.json")


def test_hours_with_a_period(tmp_path):
    hours = Hours([[(0, 8), (20, 23)], [(9, 17)]], period=24)
    write_hours(hours, tmp_path / "hours.csv")
    assert read_hours(tmp_path / "hours.csv") == hours
    two = written(tmp_path / "two.csv", "device,from,until,period\na,0,8,24\nb,0,8,25\n")
    with pytest.raises(InvalidFile, match="line 3: the period must be the same on every line"):
        read_hours(two)
