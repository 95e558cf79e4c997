"""Command lines and files, most of them bad, drawn from a seed."""

import random
from typing import Any

from tests.fuzzing.folders import VALUES, made_folders, spoilt, without_limit
from tests.fuzzing.spoiling import Case, bad_csv, bad_toml, paths
from tests.fuzzing.surroundings import KINDS
from tests.fuzzing.values import (
    CONSTANTS,
    EXPERIMENT,
    FLEET,
    LAWS,
    LOG,
    NUMBERS,
    PLAN_ARGUMENTS,
    ROUTING,
    TRACE,
)


def cases(seed: int, count: int) -> list[Case]:
    """``count`` inputs, most of them bad."""
    draw = random.Random(seed)
    kinds = [_analyze, _simulate, _plan, _fleet_file, _routing_file, _constants_file, _trace_file]
    kinds += [_plan_file, _out, _law, _names, _log_file, _spoilt_folder, _spoilt_folder, _read]
    kinds += [_experiment, _experiment, _calibrate, _deploy, _tune, _train, _watch, _explore]
    kinds += KINDS
    return [kinds[i % len(kinds)](draw) for i in range(count)]


def _analyze(draw: random.Random) -> Case:
    arguments = ["analyze", draw.choice(["fleet.csv", "three-clusters", paths(draw)])]
    arguments += ["--concurrency", draw.choice(["5", *NUMBERS])]
    if draw.random() < 0.6:
        option = draw.choice(
            ["--routing", "--constants", "--learning-rate", "--rounds", "--policy", "--server-rate"]
        )
        value = draw.choice([paths(draw), draw.choice(NUMBERS), "1,2,3", "default", "nan,1,1,1"])
        arguments += ["--constants", "default", option, value]
    return Case(arguments)


def _simulate(draw: random.Random) -> Case:
    arguments = [
        "simulate",
        draw.choice(["fleet.csv", "plan.toml", "three-clusters", paths(draw)]),
    ]
    arguments += ["--concurrency", draw.choice(["5", "5", "5", *NUMBERS]), "--rounds", "200"]
    for option in draw.sample(
        [
            "--rounds",
            "--time",
            "--work",
            "--warm-up",
            "--replicates",
            "--seed",
            "--policy",
            "--start",
            "--server-rate",
            "--link-law",
            "--server-law",
            "--timeline",
        ],
        draw.randint(1, 2),
    ):
        arguments += [option, draw.choice([*NUMBERS, "idle", "os:system", "spread"])]
        if option == "--time":
            arguments = _without(arguments, "--rounds")
    return Case(arguments)


def _plan(draw: random.Random) -> Case:
    arguments = ["plan", draw.choice(["fleet.csv", "fleet.csv", paths(draw)])]
    for option in draw.sample(
        [
            *("--squared-gradient-norm", "--time", "--rounds", "--concurrency", "--learning-rate"),
            *("--routing", "--constants", "--group", "--objective", "--rho", "--server-rate"),
            *("--server-power", "--clients", "--figure"),
        ],
        draw.randint(1, 3),
    ):
        arguments += [option, draw.choice([*NUMBERS, paths(draw), "per-time", "balanced"])]
    return Case(arguments)


def _fleet_file(draw: random.Random) -> Case:
    return Case(["analyze", "fleet.csv", "--concurrency", "5"], {"fleet.csv": bad_csv(draw, FLEET)})


def _routing_file(draw: random.Random) -> Case:
    arguments = ["analyze", "fleet.csv", "--concurrency", "5", "--routing", "routing.csv"]
    return Case(arguments, {"routing.csv": bad_csv(draw, ROUTING)})


def _trace_file(draw: random.Random) -> Case:
    arguments = ["simulate", "fleet.csv", "--concurrency", "5", "--rounds", "200", "--trace"]
    if draw.random() < 0.3:
        return Case([*arguments, paths(draw)])
    return Case([*arguments, "trace.csv"], {"trace.csv": bad_csv(draw, TRACE)})


def _constants_file(draw: random.Random) -> Case:
    arguments = ["analyze", "fleet.csv", "--concurrency", "5", "--constants", "constants.toml"]
    return Case(arguments, {"constants.toml": bad_toml(draw, CONSTANTS)})


def _plan_file(draw: random.Random) -> Case:
    text = made_folders()["planned"]["plan.toml"].decode()
    command = draw.choice([["simulate", "plan.toml", "--rounds", "200"], ["train", "follow.toml"]])
    follow = EXPERIMENT.replace('"uniform"', '"plan.toml"')
    return Case(command, {"plan.toml": bad_toml(draw, text), "follow.toml": follow.encode()})


def _log_file(draw: random.Random) -> Case:
    if draw.random() < 0.3:
        return Case(["fleet", "estimate", paths(draw)])
    arguments = ["fleet", "estimate", "log.csv"]
    if draw.random() < 0.5:
        arguments += ["--now", draw.choice(NUMBERS)]
        return Case(arguments)
    return Case(arguments, {"log.csv": bad_csv(draw, LOG)})


def _out(draw: random.Random) -> Case:
    target = draw.choice(
        [
            *(
                "fleet.csv/x",
                "/dev/full",
                "/proc/x",
                "z" * 300,
                "z/" * 2500 + "z",
                "folder.csv",
                ".",
            ),
            *("fifo.csv", "/dev/null/x", "locked/x"),
        ]
    )
    base = draw.choice(
        [
            ["simulate", "fleet.csv", "--concurrency", "5", "--rounds", "200"],
            list(PLAN_ARGUMENTS),
            ["train", "experiment.toml"],
            ["calibrate", "experiment.toml"],
            ["demo"],
            ["tune", "experiment.toml", "--budget", "1s"],
            ["fleet", "estimate", "log.csv"],
            ["reproduce", "1"],
        ]
    )
    if base[0] in ("demo", "reproduce"):  # minutes of work, where the folder can be written
        target = draw.choice(["fleet.csv/x", "/proc/x", "z" * 300, "/dev/null/x"])
    return Case([*base, "--out", target])


def _law(draw: random.Random) -> Case:
    law, parameter = draw.choice(LAWS).split()
    value = draw.choice([*NUMBERS, "1e6", "0.005", "1e-300"])
    arguments = ["simulate", "fleet.csv", "--concurrency", "5", "--rounds", "200", "--law", law]
    return Case([*arguments, "--law-parameter", f"{parameter}={value}"])


def _names(draw: random.Random) -> Case:
    command = draw.choice(
        [
            *("analyze", "simulate", "plan", "train", "calibrate", "report", "deploy", "reproduce"),
            *("tune", "compare", "figure", "fleet"),
        ]
    )
    words = [
        draw.choice([paths(draw), *NUMBERS, "--out", "--json", "--nothing", "-1", "fleet.csv"])
    ]
    words += [draw.choice([paths(draw), *NUMBERS]) for _ in range(draw.randint(0, 2))]
    if command == "deploy":
        words.insert(0, draw.choice(["init", "local", "nothing"]))
    if command == "fleet":
        words.insert(0, draw.choice(["estimate", "nothing"]))
    return Case([command, *words])


def _experiment(draw: random.Random) -> Case:
    files = {"experiment.toml": bad_toml(draw, EXPERIMENT)}
    return Case(["train", "experiment.toml", "--out", "run"], files)


def _calibrate(draw: random.Random) -> Case:
    arguments = ["calibrate", "experiment.toml", "--seed", draw.choice(NUMBERS)]
    return Case(arguments, {"experiment.toml": bad_toml(draw, EXPERIMENT)})


def _tune(draw: random.Random) -> Case:
    arguments = ["tune", "experiment.toml", "--out", "run", "--budget", "1s"]
    if draw.random() < 0.5:
        return Case(arguments, {"experiment.toml": bad_toml(draw, EXPERIMENT)})
    option = draw.choice(
        ["--budget", "--time", "--rounds", "--target", "--criterion", "--jobs", "--engine"]
    )
    values = [*NUMBERS, "1e400s", "-1s", "9999999h", "s", "target", "dask", "nothing"]
    return Case([*arguments, option, draw.choice(values)])


def _train(draw: random.Random) -> Case:
    option = draw.choice(
        ["--jobs", "--engine", "--scheduler", "--data-dir", "--partition-figure", "--resume"]
    )
    values = [*NUMBERS, paths(draw), "dask", "nothing", "tcp://127.0.0.1:1"]
    words = [option] if option == "--resume" else [option, draw.choice(values)]
    return Case(["train", "experiment.toml", "--out", "run", *words])


def _spoilt_folder(draw: random.Random) -> Case:
    """Somebody else's folder, or what a bad disk left of one."""
    name = draw.choice(["trained", "trained", "tuned", "tuned", "deployed"])
    commands = [
        ["report", name, "--no-stills", "--out", "page.html"],
        ["compare", name, "--csv", "table.csv", "--latex", "table.tex"],
        ["figure", name, "--format", "svg", "--out", "figure.svg"],
    ]
    commands += {
        "trained": [["train", "trained/experiment.toml", "--out", "trained", "--resume"]],
        "tuned": [
            ["tune", "tuned/experiment.toml", "--out", "tuned", "--budget", "1s"],
            ["simulate", "tuned/strategy.toml", "--rounds", "200"],
        ],
        "deployed": [["fleet", "estimate", "--from-run", "deployed"]] * 2,
    }[name]
    path, content = spoilt(draw, name)
    return Case(draw.choice(commands), {path: content}, (name,))


def _read(draw: random.Random) -> Case:
    """Commands that read folders, which are good, and options, which are not."""
    figure = ["figure", "trained", "--format", "svg", "--out", "figure.svg"]
    compare = ["compare", "trained"]
    base, options = draw.choice(
        [
            (figure, ["--what", "--axis", "--size", "--format", "--out", "--title"]),
            (compare, ["--against", "--target", "--csv", "--latex"]),
            (["report", "trained", "--no-stills"], ["--out", "--title", "--jobs"]),
            (["fleet", "estimate", "log.csv"], ["--now", "--from-run", "--out"]),
        ]
    )
    values = [
        *NUMBERS,
        paths(draw),
        "1x1",
        "1e9x1e9",
        "50x50",
        "two",
        "$x^{$",
        "/dev/full",
    ]
    words = [*base, draw.choice(options), draw.choice(values)]
    if draw.random() < 0.3:
        words[1] = paths(draw)
    return Case(words, {}, ("trained",))


def _deploy(draw: random.Random) -> Case:
    if draw.random() < 0.3:
        return Case(
            ["deploy", "init", draw.choice(["fleet.csv/x", "/proc/x", "z" * 300, "/dev/full"])]
        )
    text = (
        "[tool.flwr.app.config]\nclients = 3\nupdates = 5\nconcurrency = 6\nlearning-rate = 0.1\n"
    )
    files = {"app/pyproject.toml": bad_toml(draw, text), "app/federated/task.py": b""}
    arguments = ["deploy", "local", "app", "--pause", "no"]  # never starts anything
    return Case([*arguments, "--out", "deployed"], files)


def _watch(draw: random.Random) -> Case:
    """The page of a folder that may be anything is asked how it looks, before and after."""
    if draw.random() < 0.2:
        words = [paths(draw), "--port", draw.choice(NUMBERS)]
        return Case(["watch", *words[: draw.choice([1, 3])], "--no-open"])
    name = draw.choice(["trained", "tuned", "deployed", "deployed"])
    path, content = spoilt(draw, name)
    return Case(["watch", name, "--no-open"], {path: content}, (name,))


def _explore(draw: random.Random) -> Case:
    """What its page may ask, with values that it never sends."""
    if draw.random() < 0.2:
        words = [paths(draw), "--port", draw.choice(NUMBERS)]
        return Case(["explore", *words[: draw.choice([1, 3])], "--no-open"])
    settings: dict[str, Any] = {
        **{"rates": [0.5, 1.0], "counts": [2, 3], "concurrency": 5, "dispatch": "routed"},
        **{"exponent": 0.5, "learning_rate": 0.02, "debias": 1.0, "goal": "noise-rate"},
        **{
            "squared_gradient_norm": 0.5,
            "partition": "homogeneous",
            "horizon": 10.0,
            "width": 800.0,
        },
    }
    name = draw.choice(["view", "view", "advice", "compare", "save", "stop", "tries", "nothing"])
    if name == "save":
        settings["file"] = draw.choice(["plan.toml", "fleet.csv"])
    if name != "view":
        del settings["width"]
    settings["dispatch"] = draw.choice(["routed", "planned", "never-queue"])
    key = draw.choice(sorted(settings))
    if key in ("rates", "counts") and draw.random() < 0.7:
        settings[key][draw.randrange(2)] = draw.choice([*VALUES, 10**9, 10**15, 1e-300, 1e300])
    else:
        settings[key] = draw.choice([*VALUES, 10**6, 10**9, 1e-300, 1e300])
    asked = {"settings": [settings] * draw.choice([1, 2, 13])} if name == "compare" else settings
    if name == "stop":
        asked = {"number": draw.choice(VALUES)}
    question = without_limit(asked)
    return Case(["explore", "fleet.csv", "--no-open"], {f"ask/{name}": question.encode()})


def _without(arguments: list[str], option: str) -> list[str]:
    place = arguments.index(option) if option in arguments else None
    return arguments if place is None else arguments[:place] + arguments[place + 2 :]
