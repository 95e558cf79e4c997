"""Edits inside valid files of a run folder: refused with a sentence, noted, or without effect; never used silently.

Files are read by the functions that commands read them with. What counts as an edit is a change of one value inside a
file that stays a valid file of its kind: a number, a text, a missing or doubled entry, an element of an array.
"""

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import sojourn as sj
from sojourn._support.ledger import NAME as LEDGER, Ledger, accept_edits, noted
from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.errors import SojournError
from sojourn.rules import AsyncSGD
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.strategy.file import read_strategy_file
from sojourn.training.replay.checkpoint import Checkpoint, CheckpointFile
from sojourn.training.replay.run import Replay
from sojourn.tuning.runner import HALVING, read_halving
from tests.training.small import ran, small_problem, small_schedule

SAVED = "cells/uniform_seed-0_rate-0.1.jsonl"
RUN, SERVER = "cells/run.checkpoint", "deployment.npz"
IDENTITY = {"problem": "0123"}
RACE = {
    "format": "sojourn successive halving 1",
    "signature": "0123",
    "criterion": "the loss",
    "names": ["one", "two"],
    "rates": {"0": [0.1, 0.2], "1": [0.1]},
    "rungs": [
        {
            "fraction": 0.125,
            "gradients": 100,
            "idle": 2.3,
            "without_update": [1],
            "runs": [[0, 0.1, [1.5]], [0, 0.2, [None]], [1, 0.1, [1.2]]],
        }
    ],
}


def history() -> History:
    random = np.random.default_rng(0)
    columns = {
        name: random.uniform(size=5) for name in ("test_loss", "test_accuracy", "train_loss")
    }
    counts = {name: np.arange(5) for name in ("round", "gradients", "updates")}
    return History(
        strategy="uniform",
        seed=0,
        learning_rate=0.1,
        clock="virtual",
        time=np.arange(5.0),
        staleness=np.zeros(5),
        **columns,
        **counts,
    )


def server() -> Dispatcher:
    made = Dispatcher(
        np.linspace(0.0, 1.0, 300),
        rule=AsyncSGD(),
        routing=[0.2] * 5,
        concurrency=5,
        learning_rate=0.1,
        key=b"secret",
    )
    for client in range(5):
        made.joined(client, now=0.0)
    return made


def make(folder: Path) -> None:
    """A folder with one file of every kind."""
    run = RunFolder(folder)
    (folder / "cells").mkdir(parents=True)
    run.begin({"fleet": "fleet.csv", "seeds": [0]}, fleet=sj.built_in_fleet("three-clusters"))
    run.write_history([history()])
    run.write_summary({"strategies": [{"name": "uniform", "time_to": {"0.5": 1.0}}]})
    with run.ledger.writing(folder / SAVED) as temporary:
        History.write(temporary, [history()])
    with run.ledger.writing(folder / HALVING) as temporary:
        temporary.write_text(json.dumps(RACE))
    with run.ledger.writing(run.tuning_path) as temporary:
        temporary.write_text(json.dumps({"pick": "uniform", "learning_rate": 0.1, "tied": ["a"]}))
    plan = sj.plan(sj.built_in_fleet("three-clusters"), sj.Throughput(), concurrency=5)
    with run.ledger.writing(folder / "strategy.toml") as temporary:
        plan.write(temporary)
    replay = Replay(
        small_schedule(rounds=60), small_problem(), AsyncSGD(), learning_rate=0.1, seed=0
    )
    CheckpointFile(Checkpoint(folder / RUN), IDENTITY, [0.1]).write(ran(replay, until=40))
    deployed = server()
    deployed.start(now=0.0)
    for number in range(5):
        deployed.completed(number, np.full(300, 0.1), now=1.0, client=number, claimed=number)
    write_checkpoint(folder / SERVER, deployed)


def read_run(folder: Path) -> None:
    run = RunFolder(folder)
    run.read()
    run.check_asked()


def read_saved(folder: Path) -> None:
    RunFolder(folder).ledger.check(folder / SAVED)
    History.read(folder / SAVED)


def read_race(folder: Path) -> None:
    Ledger(folder).check(folder / HALVING)
    read_halving(folder / HALVING)


def read_all(folder: Path) -> None:
    for read in (read_run, read_saved, read_race):
        read(folder)


READERS: dict[str, Callable[[Path], object]] = {
    "experiment.toml": read_run,
    "fleet.csv": read_run,
    "history.jsonl": read_run,
    "summary.json": read_run,
    "tune.json": read_run,
    SAVED: read_saved,
    HALVING: read_race,
    "strategy.toml": lambda folder: read_strategy_file(folder / "strategy.toml"),
    LEDGER: read_all,
    RUN: lambda folder: CheckpointFile(Checkpoint(folder / RUN), IDENTITY, [0.1]).read(),
    SERVER: lambda folder: restore_checkpoint(folder / SERVER, server()),
}
VALUES: list[Any] = [
    0,
    1,
    -1,
    0.999,
    1e308,
    10**30,
    True,
    "",
    "x",
    "uniform",
    [],
    {},
    [0.5],
    {"a": 1},
]


def another_value(draw: random.Random, tree: Any) -> Any:
    """``tree`` with one value changed, missing, or there twice."""
    node, path = tree, []
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw.choice(keys)
        path.append((node, key))
        if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.2:
            break
        node = node[key]
    value = node[key]
    kind = draw.random()
    if kind < 0.15:
        del node[key]
    elif kind < 0.25 and isinstance(node, list):
        node.insert(key, value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and kind < 0.7:
        node[key] = draw.choice([value + 1, -value, value * 1.01, value / 2 + 0.1])
    else:
        node[key] = draw.choice(VALUES)
    return tree


def edited(draw: random.Random, name: str, content: bytes, folder: Path) -> bytes:
    """What the file holds after an edit."""
    if name.endswith(".csv"):
        lines = [line.split(",") for line in content.decode().splitlines()]
        row = draw.choice(lines[1:])
        row[draw.randrange(len(row))] = draw.choice(["1", "2.5", "x", "-1", "0"])
        return "\n".join(",".join(row) for row in lines).encode()
    if name.endswith(".toml"):
        return tomli_w.dumps(another_value(draw, tomllib.loads(content.decode()))).encode()
    if name.endswith(".jsonl"):
        lines = [line for line in content.decode().splitlines() if line]
        place = draw.randrange(len(lines))
        kind = draw.random()
        if kind < 0.1:
            del lines[place]
        elif kind < 0.2:
            lines.insert(place, draw.choice(lines))
        else:
            lines[place] = json.dumps(another_value(draw, json.loads(lines[place])))
        return "".join(f"{line}\n" for line in lines).encode()
    if name.endswith(".json"):
        return json.dumps(another_value(draw, json.loads(content))).encode()
    return edited_archive(draw, folder / name)


def edited_archive(draw: random.Random, path: Path) -> bytes:
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    name = draw.choice([*sorted(arrays), *["meta"] * 10])
    if name == "meta":
        text = arrays["meta"].dtype.kind == "U"
        meta = json.loads(str(arrays["meta"]) if text else arrays["meta"].tobytes())
        said = json.dumps(another_value(draw, meta))
        arrays["meta"] = np.array(said) if text else np.frombuffer(said.encode(), dtype=np.uint8)
    elif arrays[name].size and draw.random() < 0.8:
        flat = arrays[name].reshape(-1).copy()
        place = draw.randrange(flat.size)
        flat[place] = flat[place] + 1 if draw.random() < 0.8 else 0
        arrays[name] = flat.reshape(arrays[name].shape)
    elif draw.random() < 0.5:
        del arrays[name]
    else:
        arrays[name] = arrays[name].reshape(-1)[:-1]
    made = path.with_name("edited.npz")
    np.savez(made, **arrays)
    return made.read_bytes()


def same_archive(before: bytes, after: bytes, folder: Path) -> bool:
    """Whether archives hold the same, whatever the times in them."""
    found = []
    for content in (before, after):
        (folder / "same.npz").write_bytes(content)
        with np.load(folder / "same.npz") as archive:
            found.append(
                {key: (archive[key].dtype, archive[key].tobytes()) for key in archive.files}
            )
    return found[0] == found[1]


def check(folder: Path, seed: int, count: int) -> dict[str, int]:
    """Edit one file at a time; how often each outcome was seen."""
    make(folder)
    for read in READERS.values():
        read(folder)
    draw = random.Random(seed)
    seen = {"refused": 0, "noted": 0, "no effect": 0}
    wrong = []
    for number in range(count):
        name = sorted(READERS)[number % len(READERS)]
        path = folder / name
        before = path.read_bytes()
        after = edited(draw, name, before, folder)
        path.write_bytes(after)
        accept_edits(False)
        try:
            READERS[name](folder)
        except SojournError as error:
            assert len(str(error)) > 20, error
            seen["refused"] += 1
        except Exception as error:
            wrong.append(f"{number}: {name}: {type(error).__name__}: {error}")
        else:
            harmless = name == LEDGER or before == after
            if noted():
                seen["noted"] += 1
            elif harmless or (name in (RUN, SERVER) and same_archive(before, after, folder)):
                seen["no effect"] += 1
            else:
                wrong.append(f"{number}: {name}: used silently: {after[:300]!r}")
        path.write_bytes(before)
    accept_edits(False)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
    return seen


def test_sixty_edits_of_valid_files(tmp_path: Path) -> None:
    seen = check(tmp_path, seed=1, count=66)
    assert seen["refused"] > 40
    assert seen["noted"] > 0


@pytest.mark.slow
def test_two_thousand_edits_of_valid_files(tmp_path: Path) -> None:
    seen = check(tmp_path, seed=2, count=2000)
    assert sum(seen.values()) == 2000
