"""Clients that come, go, drift and talk over links; other frameworks' files; tables of rules."""

import json
import pickle
import random
from collections.abc import Callable
from typing import Any

from tests.fuzzing.folders import VALUES, without_limit
from tests.fuzzing.spoiling import Case, bad_csv, bad_toml, paths
from tests.fuzzing.values import EXPERIMENT, NUMBERS

HOURS = "device,from,until,period\n1,0.0,8.0,24.0\n2,4.0,20.0,24.0\n"
DRIFT = "time,speed,class\n0.0,1.0,slow\n5.0,0.5,slow\n9.0,2.0,fast\n"
WIDE = (
    "service_rate,count,name,mean_up,mean_down,downlink,uplink,power_compute,power_idle,weight,law\n"
    "0.5,2,slow,10.0,2.0,5.0,2.0,1.0,0.1,1.0,exponential\n"
    "1.0,3,fast,20.0,1.0,9.0,4.0,2.0,0.2,2.0,erlang\n"
)
PROFILES = {"0": {"delay": 1.0, "bandwidth": 20.0}, "1": {"delay": 2.0, "bandwidth": 10.0}}
CAPACITY = {
    1: {"computation": 50.0, "communication": 2000.0},
    2: {"computation": 9.0, "communication": 90.0},
}
BEHAVIOUR = {1: {"active": [2, 10], "inactive": [5, 24], "finish_time": 24}}
STRATEGIES = """
hours = "hours.csv"
drift = "drift.csv"
offline = "wait"
server-rate = 5.0
client-weights = "size"
stop-at = 0.9

[strategy.policy]
name = "routed"

[strategy.rule]
name = "fedbuff"
buffer-size = 3
local-steps = 2
local-learning-rate = 0.1
proximal = 0.1

[strategy.rule.server]
name = "adam"
beta1 = 0.9
epsilon = 1e-8
clip = 10.0
weight-decay = 0.1
average = 0.2
schedule = "cosine"
"""


def _calendar(draw: random.Random) -> Case:
    name, text = draw.choice([("hours", HOURS), ("drift", DRIFT)])
    words = ["simulate", "fleet.csv", "--concurrency", "5", "--rounds", "200", f"--{name}"]
    if draw.random() < 0.2:
        return Case([*words, paths(draw)])
    offline = ["--offline", draw.choice(["wait", "lose", "lose", "x"])]
    return Case([*words, f"{name}.csv", *offline], {f"{name}.csv": bad_csv(draw, text)})


def _columns(draw: random.Random) -> Case:
    """A fleet with every column, one cell of which is wrong."""
    command = draw.choice(
        [
            ["analyze", "wide.csv", "--concurrency", "5", "--server-rate", "9"],
            ["simulate", "wide.csv", "--concurrency", "5", "--rounds", "200"],
            ["simulate", "wide.csv", "--concurrency", "5", "--rounds", "200", "--model-bytes"],
            ["plan", "wide.csv", "--objective", "energy", "--constants", "default"],
            ["plan", "wide.csv", "--concurrency", "5", "--objective", "throughput"],
        ]
    )
    if command[-1] == "--model-bytes":
        command = [*command, draw.choice(NUMBERS)]
    return Case(command, {"wide.csv": bad_csv(draw, WIDE)})


def _other_frameworks(draw: random.Random) -> Case:
    kind = draw.choice(["appfl", "fedscale", "fedscale-hours"])
    words = ["fleet", "read", "devices", "--format", kind, "--out", "out.csv"]
    words += ["--step-seconds", "0.1"] if kind == "appfl" else []
    words += ["--samples", "10"] if kind == "fedscale" else []
    if draw.random() < 0.3:
        option = draw.choice(
            ["--samples", "--step-seconds", "--steps", "--model-bytes", "--format"]
        )
        words += [option, draw.choice(NUMBERS)]
    tree: Any = {"appfl": PROFILES, "fedscale": CAPACITY, "fedscale-hours": BEHAVIOUR}[kind]
    tree = {device: dict(values) for device, values in tree.items()}
    device = draw.choice(sorted(tree))
    values = tree[device]
    values[draw.choice(sorted(values))] = draw.choice(VALUES)
    content = without_limit(tree).encode() if kind == "appfl" else pickle.dumps(tree)
    if draw.random() < 0.3:
        spoilt = bytearray(content)
        for _ in range(draw.randint(1, 5)):
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
        content = bytes(spoilt[: draw.randint(1, len(spoilt))])
    return Case(words, {"devices": content})


def _rule_tables(draw: random.Random) -> Case:
    """One line of an experiment with tables of rules and policies, spoilt."""
    head, table, strategy = EXPERIMENT.partition("[[strategy]]")
    own, rest = STRATEGIES.split("\n\n", 1)
    keep = [line for line in own.strip().splitlines() if draw.random() < 0.3]
    strategy = strategy.replace('rule = "async-sgd"\n', "")
    text = head + "\n".join(keep) + "\n" + table + strategy + rest
    files = {
        "experiment.toml": bad_toml(draw, text),
        "hours.csv": HOURS.encode(),
        "drift.csv": DRIFT.encode(),
    }
    return Case(["train", "experiment.toml", "--out", "run"], files)


def _json_values(draw: random.Random) -> Case:
    """Profiles that are anything but profiles."""
    value = draw.choice([*VALUES, PROFILES, [PROFILES]])
    text = without_limit({"0": value}) if draw.random() < 0.5 else json.dumps([1] * 10)
    words = ["fleet", "read", "devices", "--format", "appfl", "--out", "out.csv"]
    return Case(
        [*words, "--step-seconds", draw.choice(["1", *NUMBERS])], {"devices": text.encode()}
    )


KINDS: list[Callable[[random.Random], Case]] = [
    *(_calendar, _columns, _other_frameworks, _rule_tables, _json_values),
]
