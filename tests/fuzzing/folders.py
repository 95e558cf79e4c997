"""Folders of whole runs, made once by the commands themselves, and ways to spoil what is in them."""

import contextlib
import io
import json
import multiprocessing as mp
import random
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from sojourn._support.ledger import NAME as LEDGER
from tests.fuzzing.values import EXPERIMENT, FLEET, PLAN_ARGUMENTS

TWO = EXPERIMENT.replace("seeds = 1", "seeds = 2") + (
    '\n[[strategy]]\nname = "two"\npolicy = "never-queue"\nconcurrency = 3\nlearning-rate = 0.05\n'
)
TASK = {
    **{"index": 0, "used": True, "task": 0, "client": 1, "ordinal": 0, "dispatched": 0},
    **{"version": 0, "staleness": 0, "probability": 0.2, "clients": 5, "divisor": 1.0},
    **{"scale": 1.0, "time": 1.25, "service_seconds": 1.2},
}
MEMBER = {
    **{"name": "phone", "status": "alive", "waiting": 1, "used": 8, "refused": 0},
    **{"routing": 0.2, "rate": 1.0, "planned": 1.0, "seconds": 1.0, "norm": None, "speed": 0.5},
}
STATUS = {
    **{"phase": "running", "elapsed": 40.0, "updates": 40, "of": 100, "throughput": 1.0},
    **{"staleness": 2.0, "accuracy": 0.5, "loss": 1.0, "counts": {"used": 40}, "held": 0},
    **{"concurrency": 5, "policy": "routed", "clients": [MEMBER] * 5},
    **{"sessions": [[0.0, 1.7e9], [20.0, 1.7e9 + 60.0]], "heartbeat": 1.7e9},
}
VALUES: list[Any] = [
    *(None, True, -1, 0, 1e308, -1e308, float("nan"), float("inf"), 10**30, 10**400),
    *(
        "",
        "x",
        "x" * 5000,
        [],
        {},
        [[]],
        [None],
        {"a": 1},
        "os:system",
        "../../..",
        "/dev/zero",
        "\ud800",
    ),
]
CONTENTS = [b"", b"{}", b"[]", b"null", b"[" * 5000, b"\xff\xfe", b"1" * 5000, b'"', b"\x00" * 64]

Content = bytes | None
"""What a file holds; ``None`` makes it a pipe."""


@cache
def made_folders() -> dict[str, dict[str, bytes]]:
    """The files of a training, of a tuning and of a deployment, by folder and path."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fleet.csv").write_text(FLEET)
        (folder / "experiment.toml").write_text(TWO)
        maker = mp.get_context("fork").Process(target=_make, args=(folder,))
        maker.start()
        maker.join()
        assert maker.exitcode == 0, "a command that makes a folder failed; what it said is above"
        made = {name: _files(folder / name) for name in ("planned", "trained", "tuned")}
    tasks = [
        {**TASK, "client": k % 5, "time": 1.25 + k, "service_seconds": 1.0 + 0.1 * k}
        for k in range(40)
    ]
    lines = "".join(json.dumps(task) + "\n" for task in tasks).encode()
    made["deployed"] = {
        "summary.json": made["trained"]["summary.json"],
        "history.jsonl": _measured(made["trained"]["history.jsonl"]),
        "tasks.jsonl": lines,
        "status.json": json.dumps(STATUS).encode(),
        "events.log": b"1.0\tjoined\tphone\n2.0\trefused\tphone: update refused: x (y)\n",
    }
    return made


def _measured(histories: bytes) -> bytes:
    """The first strategy on real clocks, as a deployment has it; the other is its prediction."""
    lines = [json.loads(line) for line in histories.splitlines()]
    for line in lines:
        line["clock"] = "virtual" if line["strategy"] == "two" else "real"
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _make(folder: Path) -> None:
    """In a process of its own, because torch's threads do not survive the forks that follow."""
    with contextlib.chdir(folder):
        _run(*PLAN_ARGUMENTS, "--out", "planned/plan.toml")
        _run("train", "experiment.toml", "--out", "trained")
        _run("tune", "experiment.toml", "--budget", "10m", "--out", "tuned")


def spoilt(draw: random.Random, name: str) -> tuple[str, Content]:
    """A file of one of the folders, and what it holds now."""
    files = made_folders()[name]
    path = draw.choice(sorted(files))
    content = files[path]
    kind = draw.random()
    if kind < 0.05:
        return f"{name}/{path}", None
    if kind < 0.15:
        return f"{name}/{path}", draw.choice(CONTENTS)
    if kind < 0.3 and content:
        return f"{name}/{path}", content[: draw.randrange(len(content))]
    if path.endswith((".json", ".jsonl")):
        return f"{name}/{path}", _with_another_value(draw, content)
    flipped = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        flipped[draw.randrange(len(flipped))] = draw.randrange(256)
    return f"{name}/{path}", bytes(flipped)


def _with_another_value(draw: random.Random, content: bytes) -> bytes:
    """JSON, or lines of JSON, in which one value is another or missing."""
    text = content.decode()
    lines = text.splitlines() if not text.startswith("{\n") else [text]
    place = draw.randrange(len(lines))
    tree = json.loads(lines[place])
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw.choice(keys)
        if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.25:
            break
        node = node[key]
    if draw.random() < 0.2:
        del node[key]
    else:
        node[key] = draw.choice(VALUES)
    lines[place] = without_limit(tree)
    return "\n".join(lines).encode()


def without_limit(tree: Any) -> str:
    """JSON in which integers may have any number of digits."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    text = json.dumps(tree)
    sys.set_int_max_str_digits(limit)
    return text


def _run(*arguments: str) -> None:
    from sojourn.cli import app

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app([*arguments], standalone_mode=False)


def _files(folder: Path) -> dict[str, bytes]:
    # Without their ledger, as of an earlier version: else every edit would be refused before it is read.
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != LEDGER)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
