"""Bad inputs for every command and file, drawn from a seed, and a process to try them in.

The process imports once and runs many inputs; it may use little memory, and is killed and started
again if an input keeps it busy without a word.
"""

import contextlib
import io
import multiprocessing as mp
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

SILENCE_SECONDS = 20.0
"""Twice what a machine with nothing else to do is allowed."""
MOST_BYTES = 12 * 2**30

NUMBERS = [
    *("0", "-1", "nan", "inf", "-inf", "1e308", "1e-308", "-1e308", "1e18", "1000000000", "0.5"),
    *("9223372036854775808", "1099511627776", "4294967296", "1" * 5000, "", "0x10", "one", "1e30"),
]
TOML = [
    *("0", "-1", "nan", "inf", "1e308", "1e-308", "1000000000", "1000000000000", "1e18", "true"),
    *(
        "9223372036854775808",
        "1" * 5000,
        "[" * 5000 + "]" * 5000,
        '""',
        '"x"',
        "[]",
        "{}",
        "2020-01-01",
    ),
    *(
        "1000000000000000000",
        '"' + "x" * 5000 + '"',
        "[1, 'a', []]",
        "{a = {b = {c = 1}}}",
        "'",
        "=",
    ),
    *(
        '"os:system"',
        '"no.such:thing"',
        '"mlp(1000000000)"',
        '"../.."',
        '"/dev/zero"',
        '"fifo.csv"',
    ),
]
CELLS = [
    "",
    "nan",
    "inf",
    "-1",
    "0",
    "1e308",
    "1e-308",
    "x",
    "1e400",
    '"',
    "\x00",
    "1;2",
    "9" * 400,
]
LAWS = [
    *("lognormal sigma", "gamma shape", "weibull shape", "pareto shape", "erlang stages"),
    *("hyperexponential scv", "exponential rate", "nolaw x", "trace x", "os:system x"),
]
FLEET = "service_rate,count,name\n0.5,2,slow\n1.0,3,fast\n"
ROUTING = "routing\n0.2\n0.2\n"
TRACE = "duration,class\n1.0,slow\n2.0,slow\n1.5,fast\n"
CONSTANTS = (
    "[constants]\ninitial-gap = 2.3\nsmoothness = 10.0\ngradient-noise = 1.0\nheterogeneity = 1.0\n"
)
EXPERIMENT = """fleet = "fleet.csv"
rounds = 12
data = "digits"
partition = "homogeneous"
model = "mlp(4)"
batch-size = 8
start = "spread"
seeds = 1
evaluate-every = 6
targets = [0.5]
threads = 1
batched = false
checkpoint-seconds = 30.0

[[strategy]]
name = "one"
routing = "uniform"
concurrency = 3
learning-rate = 0.1
rule = "async-sgd"
"""
PLAN_ARGUMENTS = ("plan", "fleet.csv", "--objective", "throughput", "--concurrency", "5")


@dataclass
class Case:
    """A command line, and the files that are other than usual."""

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 60 else f"{word[:40]}..." for word in self.arguments)
        files = {name: text[:300] for name, text in self.files.items()}
        return f"sojourn {words}" + (f" with {files}" if files else "")


def cases(seed: int, count: int, *, training: bool = True) -> list[Case]:
    """``count`` inputs, most of them bad."""
    draw = random.Random(seed)
    kinds = [_analyze, _simulate, _plan, _fleet_file, _routing_file, _constants_file, _trace_file]
    kinds += [_plan_file, _out, _law, _names]
    if training:
        kinds += [_experiment, _experiment, _calibrate, _report, _deploy]
    return [kinds[i % len(kinds)](draw) for i in range(count)]


def _paths(draw: random.Random) -> str:
    return draw.choice(
        [
            *("missing.csv", "fifo.csv", "fifo.toml", "/dev/zero", "/dev/null", ".", "folder.csv"),
            *(
                "x" * 300 + ".csv",
                "y" * 5000,
                "a/" * 2500 + "b.csv",
                "fleet.csv/x.csv",
                "binary.csv",
            ),
            *(
                "binary.toml",
                "empty.csv",
                "empty.toml",
                "/proc/self/mem",
                "/root/../proc/1/mem",
                "",
            ),
        ]
    )


def _analyze(draw: random.Random) -> Case:
    arguments = ["analyze", draw.choice(["fleet.csv", "three-clusters", _paths(draw)])]
    arguments += ["--concurrency", draw.choice(["5", *NUMBERS])]
    if draw.random() < 0.6:
        option = draw.choice(["--routing", "--constants", "--learning-rate", "--rounds"])
        value = draw.choice([_paths(draw), draw.choice(NUMBERS), "1,2,3", "default", "nan,1,1,1"])
        arguments += ["--constants", "default", option, value]
    return Case(arguments)


def _simulate(draw: random.Random) -> Case:
    arguments = [
        "simulate",
        draw.choice(["fleet.csv", "plan.toml", "three-clusters", _paths(draw)]),
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
        ],
        draw.randint(1, 2),
    ):
        arguments += [option, draw.choice([*NUMBERS, "idle", "os:system", "spread"])]
        if option == "--time":
            arguments = _without(arguments, "--rounds")
    return Case(arguments)


def _plan(draw: random.Random) -> Case:
    arguments = ["plan", draw.choice(["fleet.csv", "fleet.csv", _paths(draw)])]
    for option in draw.sample(
        [
            *("--gradient-norm", "--time", "--rounds", "--concurrency", "--learning-rate"),
            *("--routing", "--constants", "--group", "--objective"),
        ],
        draw.randint(1, 3),
    ):
        arguments += [option, draw.choice([*NUMBERS, _paths(draw), "per-time", "balanced"])]
    return Case(arguments)


def _fleet_file(draw: random.Random) -> Case:
    return Case(
        ["analyze", "fleet.csv", "--concurrency", "5"], {"fleet.csv": _bad_csv(draw, FLEET)}
    )


def _routing_file(draw: random.Random) -> Case:
    arguments = ["analyze", "fleet.csv", "--concurrency", "5", "--routing", "routing.csv"]
    return Case(arguments, {"routing.csv": _bad_csv(draw, ROUTING)})


def _trace_file(draw: random.Random) -> Case:
    arguments = ["simulate", "fleet.csv", "--concurrency", "5", "--rounds", "200", "--trace"]
    if draw.random() < 0.3:
        return Case([*arguments, _paths(draw)])
    return Case([*arguments, "trace.csv"], {"trace.csv": _bad_csv(draw, TRACE)})


def _constants_file(draw: random.Random) -> Case:
    arguments = ["analyze", "fleet.csv", "--concurrency", "5", "--constants", "constants.toml"]
    return Case(arguments, {"constants.toml": _bad_toml(draw, CONSTANTS)})


def _plan_file(draw: random.Random) -> Case:
    return Case(
        ["simulate", "plan.toml", "--rounds", "200"], {"plan.toml": b"?%d" % draw.randrange(10**9)}
    )


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
        ["analyze", "simulate", "plan", "train", "calibrate", "report", "deploy", "reproduce"]
    )
    words = [
        draw.choice([_paths(draw), *NUMBERS, "--out", "--json", "--nothing", "-1", "fleet.csv"])
    ]
    words += [draw.choice([_paths(draw), *NUMBERS]) for _ in range(draw.randint(0, 2))]
    if command == "deploy":
        words.insert(0, draw.choice(["init", "local", "nothing"]))
    return Case([command, *words])


def _experiment(draw: random.Random) -> Case:
    files = {"experiment.toml": _bad_toml(draw, EXPERIMENT)}
    return Case(["train", "experiment.toml", "--out", "run"], files)


def _calibrate(draw: random.Random) -> Case:
    arguments = ["calibrate", "experiment.toml", "--seed", draw.choice(NUMBERS)]
    return Case(arguments, {"experiment.toml": _bad_toml(draw, EXPERIMENT)})


def _report(draw: random.Random) -> Case:
    name = draw.choice(["history.jsonl", "summary.json", "experiment.toml"])
    content = draw.choice(
        [b"", b"{}", b"[]", b"null", b"[" * 5000, b"\xff\xfe", b'{"strategies": 3}', b"1" * 5000]
    )
    files = {"done/history.jsonl": b"{}\n", f"done/{name}": content}
    return Case(["report", "done", "--no-stills", "--out", "page.html"], files)


def _deploy(draw: random.Random) -> Case:
    if draw.random() < 0.3:
        return Case(
            ["deploy", "init", draw.choice(["fleet.csv/x", "/proc/x", "z" * 300, "/dev/full"])]
        )
    text = (
        "[tool.flwr.app.config]\nclients = 3\nupdates = 5\nconcurrency = 6\nlearning-rate = 0.1\n"
    )
    files = {"app/pyproject.toml": _bad_toml(draw, text), "app/federated/task.py": b""}
    arguments = ["deploy", "local", "app", "--pause", "no"]  # never starts anything
    return Case([*arguments, "--out", "deployed"], files)


def _without(arguments: list[str], option: str) -> list[str]:
    place = arguments.index(option) if option in arguments else None
    return arguments if place is None else arguments[:place] + arguments[place + 2 :]


def _bad_csv(draw: random.Random, text: str) -> bytes:
    kind = draw.random()
    if kind < 0.1:
        return draw.choice([b"", b"\x00" * 100, b"\xff\xfe\x00", b"a" * 200_000, b"\n" * 1000])
    lines = [line.split(",") for line in text.splitlines()]
    row = draw.choice(lines)
    row[draw.randrange(len(row))] = draw.choice(CELLS)
    if kind > 0.85:
        row.append("extra")
    return "\n".join(",".join(row) for row in lines).encode()


def _bad_toml(draw: random.Random, text: str) -> bytes:
    kind = draw.random()
    if kind < 0.08:
        return draw.choice(
            [b"", b"\x00" * 100, b"\xff\xfe", b"a" * 200_000, b"[[[", b"x = 1\n" * 3]
        )
    lines = text.splitlines()
    places = [i for i, line in enumerate(lines) if "=" in line]
    place = draw.choice(places)
    key = lines[place].partition("=")[0]
    if kind < 0.16:
        del lines[place]
    elif kind < 0.24:
        lines.insert(place, f"unknown-{draw.randrange(9)} = 1")
    else:
        lines[place] = f"{key}= {draw.choice(TOML)}"
    return ("\n".join(lines) + "\n").encode()


@dataclass(frozen=True)
class Outcome:
    """How it ended: ``code`` is ``None`` for what should not happen, which ``error`` then tells."""

    code: int | None
    error: str
    left_over: tuple[str, ...] = ()


class Tryer:
    """Runs cases in a process of its own, each in a fresh folder."""

    def __init__(self) -> None:
        self._context = mp.get_context("fork")
        self._process: mp.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> "Tryer":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, case: Case) -> Outcome:
        """Try it; no word for so long counts as a failure."""
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            _furnish(folder, case)
            said = folder / ".said"
            self._pipe.send((case.arguments, str(folder)))
            if not self._pipe.poll(SILENCE_SECONDS):
                spoke = said.exists() and said.stat().st_size > 0
                self._stop()
                return Outcome(0 if spoke else None, "silent for too long")
            try:
                code, error = self._pipe.recv()
            except EOFError:
                self._stop()
                return Outcome(None, "the process died")
            left = tuple(str(p.relative_to(folder)) for p in folder.rglob(".*") if p != said)
            return Outcome(code, error, left)
        finally:
            _unlock(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        self._pipe = ours

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _furnish(folder: Path, case: Case) -> None:
    (folder / "fleet.csv").write_text(FLEET)
    (folder / "routing.csv").write_text(ROUTING)
    (folder / "trace.csv").write_text(TRACE)
    (folder / "constants.toml").write_text(CONSTANTS)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 8)
    (folder / "binary.toml").write_bytes(bytes(range(256)) * 8)
    (folder / "empty.csv").touch()
    (folder / "empty.toml").touch()
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "fifo.csv")
    os.mkfifo(folder / "fifo.toml")
    plan = PLAN.encode()
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name == "plan.toml":
            content = _bad_toml(random.Random(int(content[1:])), PLAN)
        (folder / name).write_bytes(content)
    if not (folder / "plan.toml").exists():
        (folder / "plan.toml").write_bytes(plan)
    (folder / "locked").mkdir(mode=0o500)


def _unlock(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "locked").chmod(0o700)


def make_plan() -> str:
    """The text of a good plan file."""
    from sojourn.network import Fleet
    from sojourn.optimize import Throughput
    from sojourn.planning import plan

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        plan(Fleet([0.5, 1.0], counts=[2, 3]), Throughput(), concurrency=5).write(path)
        return path.read_text(encoding="utf-8")


PLAN = ""


def prepare() -> None:
    """What the processes share."""
    global PLAN
    PLAN = PLAN or make_plan()


def _serve(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    from sojourn.cli import main

    while True:
        arguments, folder = pipe.recv()
        os.chdir(folder)
        sys.argv = ["sojourn", *arguments]
        code: int | None = 0
        error = ""
        with (
            Path(folder, ".said").open("w", encoding="utf-8") as said,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(said),
        ):
            try:
                main()
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else 0
            except BaseException:
                code, error = None, traceback.format_exc(limit=-6)
        error = error or Path(folder, ".said").read_text(encoding="utf-8")[-2000:]
        os.chdir("/")
        pipe.send((code, error))
