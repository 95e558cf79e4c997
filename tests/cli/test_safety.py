"""Files of others, the working folder, the terminal and limits of memory."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sojourn as sj
from sojourn.__main__ import main as sojourn_main
from sojourn._support.files import alone_in
from sojourn.live.watcher import Watcher
from tests.commands import ROOT
from tests.fuzzing.values import EXPERIMENT, FLEET, LOG

MARK = "from pathlib import Path\nPath({path!r}).write_text('ran')\n"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1"}


def typed(folder: Path, *words: str, limit: int | None = None, **environment: str):
    """The command in a process of its own, with this environment and limit of memory."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "sojourn", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        timeout=120,
        preexec_fn=limited,
        check=False,
    )


@pytest.fixture
def strangers_plan(tmp_path):
    """A plan whose objective is code beside it, which leaves a mark when it runs."""
    fleet = sj.built_in_fleet("three-clusters")
    sj.plan(fleet, sj.Throughput(), concurrency=5).write(tmp_path / "plan.toml")
    text = (tmp_path / "plan.toml").read_text()
    assert 'name = "throughput"' in text
    (tmp_path / "plan.toml").write_text(text.replace('name = "throughput"', 'name = "evil:E"'))
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(MARK.format(path=str(mark)))
    return mark


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "plan.toml", "--rounds", "100"),
        ("deploy", "init", "app", "--strategy", "plan.toml"),
    ],
)
def test_code_that_a_plan_names_runs_only_if_trusted(run, strangers_plan, command):
    result = run(*command)
    assert result.code == 2
    assert "evil.py" in result.error and "SHA-256" in result.error and "--trust" in result.error
    assert not strangers_plan.exists() and not strangers_plan.with_name("app").exists()
    run("--trust", *command)
    assert strangers_plan.exists()


def test_code_named_on_the_command_line_runs(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport sojourn as sj\n\n\n"
        '@dataclass(frozen=True)\nclass Mine(sj.NeverQueue):\n    name = "mine:Mine"\n'
    )
    command = ("analyze", "three-clusters", "--concurrency", "3", "--policy", "mine:Mine")
    result = run(*command)
    assert "is not run" not in result.error


def test_control_characters_of_a_run_folder_do_not_reach_the_terminal(run, tmp_path):
    numbers = ("test_loss", "test_accuracy", "train_loss", "staleness")
    rows = [
        {"strategy": name, "seed": seed, "learning_rate": 0.1, "clock": "virtual", "round": k}
        | {
            "time": 1.0 * k,
            "diverged_at": None,
            "gradients": k,
            "updates": k,
            **dict.fromkeys(numbers, 0.5),
        }
        for name in ("plain", "evil\x1b[2J\x1b]0;pwn\x07\x9b1m\u202etxt")
        for seed in range(2)
        for k in range(3)
    ]
    (tmp_path / "run").mkdir()
    for ascii_ in (True, False):
        lines = [json.dumps(row, ensure_ascii=ascii_) for row in rows]
        (tmp_path / "run" / "history.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        result = run("compare", "run")
        assert result.code == 0, result.error
        for text in (result.out, result.error):
            assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}
        assert r"evil\x1b[2J" in result.out
    refused = run("analyze", "\x1b[2Jnone.csv", "--concurrency", "3")
    assert refused.code == 2
    assert "\x1b" not in refused.error


def test_ascii_terminals_get_plain_letters(tmp_path):
    (tmp_path / "fleet.csv").write_text("service_rate,name\n1,名前\n2,b\n", encoding="utf-8")
    words = ("fleet.csv", "--concurrency", "3")
    for command in (("analyze", *words), ("simulate", *words, "--rounds", "200")):
        done = typed(tmp_path, *command, **ASCII)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
        done.stdout.decode("ascii")
    assert rb"+-" in done.stdout


@pytest.mark.parametrize("megabytes", [150, 300, 520])
def test_too_little_memory_is_a_sentence(tmp_path, megabytes):
    done = typed(
        tmp_path,
        *("analyze", "three-clusters", "--concurrency", "3"),
        limit=megabytes * 2**20,
        OPENBLAS_NUM_THREADS="1",
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0 or b"memory" in done.stderr


def test_files_are_read_where_memory_is_little(tmp_path):
    """No more is asked for than the file holds: a billion bytes would not be there."""
    (tmp_path / "fleet.csv").write_text(FLEET)
    done = typed(
        tmp_path,
        *("analyze", "fleet.csv", "--concurrency", "3"),
        limit=800 * 2**20,
        OPENBLAS_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr


THREADS = """
import resource, threading
from pathlib import Path
from sojourn.__main__ import main

def pages():
    return int(Path("/proc/self/statm").read_text().split()[0])

resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30,) * 2)
try:
    main()
except SystemExit:
    pass
before, over = pages(), threading.Event()
for _ in range(3):
    done = threading.Event()
    work = lambda: (bytearray(2000), done.set(), over.wait())
    threading.Thread(target=work, daemon=True).start()
    done.wait()
print((pages() - before) * resource.getpagesize() // 3)
over.set()
"""


FULL = """
import resource, sys
import sojourn.cli
from sojourn.__main__ import main

kept = [None]

def fills():
    last = None
    for size in (2**24, 2**20, 2**16, 2**12, 2**10, *range(500, 0, -8)):
        try:
            while True:  # in a chain of pairs: a list would need room to grow
                last = (last, bytes(size))
        except MemoryError:
            pass
    kept[0] = last
    raise MemoryError

sojourn.cli.main = fills
resource.setrlimit(resource.RLIMIT_AS, (2**30,) * 2)
main()
"""


def test_where_memory_is_full_there_is_some_left_to_say_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"error: there is too little memory")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks /proc for addresses")
def test_a_thread_takes_few_addresses_where_they_are_limited(tmp_path):
    """A heap of its own would take 64 MB, and two of them all that is left of some limits."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS, "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert int(done.stdout.split()[-1]) < 32 * 2**20


def test_a_folder_called_like_a_module_is_not_its_name(run, strangers_plan, tmp_path):
    """Whoever made the folder chose its name, and would have the code in it trusted."""
    folder = tmp_path / "evil:E"
    folder.mkdir()
    for name in ("plan.toml", "evil.py"):
        (tmp_path / name).rename(folder / name)
    result = run("simulate", "evil:E/plan.toml", "--rounds", "100")
    assert result.code == 2 and "is not run" in result.error, result.error
    assert not strangers_plan.exists()


def test_an_installed_module_that_a_plan_names_is_not_imported(strangers_plan, tmp_path):
    """Importing a module runs it: some open a browser, or run what lies in the working folder."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "evil.py").rename(tmp_path / "installed" / "evil.py")
    paths = os.pathsep.join([str(ROOT / "src"), str(tmp_path / "installed")])
    command = ("simulate", "plan.toml", "--rounds", "100")
    refused = typed(tmp_path, *command, PYTHONPATH=paths)
    assert refused.returncode == 2 and b"'evil' (if it is installed)" in refused.stderr
    assert not strangers_plan.exists()
    typed(tmp_path, "--trust", *command, PYTHONPATH=paths)
    assert strangers_plan.exists()


def test_a_module_named_by_the_user_is_not_the_strangers_of_that_name(
    run, strangers_plan, tmp_path
):
    (tmp_path / "stranger").mkdir()
    for name in ("plan.toml", "evil.py"):
        (tmp_path / name).rename(tmp_path / "stranger" / name)
    (tmp_path / "evil.py").write_text("E = None\n")
    command = ("simulate", "stranger/plan.toml", "--rounds", "100", "--policy", "evil:E")
    result = run(*command)
    assert result.code == 2, result.error
    assert not strangers_plan.exists()


def test_a_law_that_a_fleet_names_is_not_imported(run, tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "evil.py").write_text(MARK.format(path=str(mark)))
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "extensions").symlink_to(tmp_path / "elsewhere")
    for law in ("evil:Law", "..elsewhere.evil:Law", "/elsewhere/evil:Law", "elsewhere.evil:Law"):
        (tmp_path / "stranger" / "fleet.csv").write_text(f"service_rate,law\n1,{law}\n2,{law}\n")
        for command in (("analyze",), ("simulate", "--rounds", "100")):
            result = run(*command, "stranger/fleet.csv", "--concurrency", "3")
            assert result.code == 2, (law, command, result.error)
            assert not mark.exists(), (law, command)


def test_settings_of_libraries_in_the_working_folder_are_not_used(run, tmp_path):
    """Numba's name a folder of compiled code, which is unpickled; matplotlib's start LaTeX."""
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: here\n")
    result = run("analyze", "three-clusters", "--concurrency", "3")
    assert result.code == 2 and ".numba_config.yaml" in result.error and "--trust" in result.error
    assert run("--trust", "analyze", "three-clusters", "--concurrency", "3").code == 0
    (tmp_path / ".numba_config.yaml").unlink()
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nsavefig.facecolor: red\n")
    code = (
        "import numpy as np; from pathlib import Path;"
        "from sojourn.figures.matplotlib_figure import save_partition;"
        "save_partition(np.ones((3, 4), dtype=np.int64), Path('drawn.png'), title='t')"
    )
    drawn = []
    for folder in (tmp_path, tmp_path / "empty"):
        folder.mkdir(exist_ok=True)
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            check=True,
            timeout=120,
        )
        drawn.append((folder / "drawn.png").read_bytes())
    assert drawn[0] == drawn[1]


POISONED = (
    *("sojourn", "joblib", "numpy", "scipy", "torch", "sklearn", "plotly", "matplotlib", "typer"),
    *("json", "tomllib", "cloudpickle", "flwr", "numba", "threadpoolctl", "site", "usercustomize"),
)
"""Modules that commands and their child processes import."""
COMMANDS = (
    ("analyze", "fleet.csv", "--concurrency", "3"),
    ("plan", "fleet.csv", "--objective", "throughput", "--concurrency", "5", "--out", "plan.toml"),
    ("simulate", "plan.toml", "--rounds", "100"),
    ("fleet", "estimate", "log.csv", "--out", "estimated.csv"),
    ("new", "made"),
    ("train", "experiment.toml", "--out", "run", "--jobs", "2"),
    ("report", "run", "--out", "page.html"),
    ("compare", "run"),
    ("figure", "run"),
    ("calibrate", "experiment.toml", "--out", "constants.toml"),
    ("tune", "experiment.toml", "--out", "tuned", "--jobs", "2"),
    ("deploy", "init", "app"),
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_command_imports_from_the_working_folder(tmp_path):
    """As installed: ``python -m`` itself puts the working folder first, which is no command's doing."""
    (tmp_path / "fleet.csv").write_text(FLEET)
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    for name in POISONED:
        (tmp_path / f"{name}.py").write_text(MARK.format(path=str(tmp_path / f"mark-{name}")))
    script = Path(sys.executable).with_name("sojourn")
    for command in COMMANDS:
        done = subprocess.run(
            [script, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert "Traceback" not in done.stderr, (command, done.stderr)
        assert done.returncode in (0, 1), (command, done.stderr)
        assert not list(tmp_path.glob("mark-*")), command
    for command in (("explore", "fleet.csv", "--no-open"), ("watch", "run", "--no-open")):
        served = subprocess.Popen(
            [script, *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert served.stdout is not None
        assert "http://127.0.0.1:" in served.stdout.readline()
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=120)
        assert not list(tmp_path.glob("mark-*")), command


def test_a_module_in_the_working_folder_is_not_imported_by_children(tmp_path):
    mark = tmp_path / "mark"
    for name in ("joblib.py", "sojourn_pilot.py"):
        (tmp_path / name).write_text(MARK.format(path=str(mark)))
    code = (
        "from sojourn.cli import _make_output_safe; _make_output_safe();"
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import joblib'])"
    )
    subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
        timeout=120,
    )
    assert not mark.exists()


def test_looking_at_a_strangers_folder_runs_nothing_of_it(run, tmp_path):
    mark = tmp_path / "mark"
    folder = tmp_path / "run"
    (folder / "extensions").mkdir(parents=True)
    (folder / "extensions" / "evil.py").write_text(MARK.format(path=str(mark)))
    (folder / "experiment.toml").write_text(
        'fleet = "three-clusters"\ndata = "digits"\ntime = 10\nconcurrency = 3\nlearning-rate = 0.1\n'
        'seeds = 1\n[[strategy]]\nname = "mine"\nrouting = "uniform"\npolicy = "evil:E"\n'
        'rule = { name = "evil:R" }\n'
    )
    numbers = ("test_loss", "test_accuracy", "train_loss", "staleness")
    rows = [
        {"strategy": "mine", "seed": 0, "learning_rate": 0.1, "clock": "virtual", "round": k}
        | {"time": 5.0 * k, "diverged_at": None, "gradients": k, "updates": k}
        | dict.fromkeys(numbers, 0.5)
        for k in range(3)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = ("report", "run", "--no-stills", "--out", "page.html")
    for command in (page, ("compare", "run"), ("figure", "run", "--format", "svg")):
        result = run(*command)
        assert result.code == 0, result.error
        assert not mark.exists()
    assert "is not run" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert Watcher(folder).look()["title"]  # trusts everything, and still needs nothing of it
    assert not mark.exists()


@pytest.mark.parametrize(
    "command", [("train", "experiment.toml"), ("tune", "experiment.toml"), ("reproduce", "1")]
)
def test_of_two_commands_that_write_to_one_folder_one_says_so(run, tmp_path, command):
    (tmp_path / "fleet.csv").write_text(FLEET)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    (tmp_path / "out").mkdir()
    with alone_in(tmp_path / "out"):
        result = run(*command, "--out", "out")
    assert result.code == 2
    assert "another command is writing to this folder" in result.error
    assert not list((tmp_path / "out").iterdir())


@pytest.fixture
def deployed(tmp_path):
    """The folder of a deployment, as its server leaves it."""
    folder = tmp_path / "deployed"
    folder.mkdir()
    numbers = ("test_loss", "test_accuracy", "train_loss", "staleness")
    rows = [
        {"strategy": "mine", "seed": 0, "learning_rate": 0.1, "clock": "real", "round": k}
        | {"time": 5.0 * k, "diverged_at": None, "gradients": k, "updates": k}
        | dict.fromkeys(numbers, 0.5)
        for k in range(3)
    ]
    tasks = [
        {"client": k % 2, "dispatched": k, "time": 1.0 + k, "service_seconds": 0.5}
        for k in range(6)
    ]
    client = {"name": "phone", "status": "alive", "used": 3, "refused": 0}
    status = {
        "clients": [client, client],
        "counts": {"routed": 6},
        "sessions": [[0.0, 1.7e9]],
    }
    for name, records in (("history.jsonl", rows), ("tasks.jsonl", tasks)):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "events.log").write_text("1.0\tlate\tphone: late\n")
    return folder


def test_a_line_that_a_killed_server_left_half_written_is_left_out(run, deployed):
    page = ("report", "deployed", "--no-stills", "--out", "page.html")
    for name in ("tasks.jsonl", "events.log"):
        path = deployed / name
        path.write_text(path.read_text() + '{"client": 1, "disp')
    for command in (page, ("compare", "deployed")):
        result = run(*command)
        assert result.code == 0, result.error


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tasks.jsonl", '{"client": 0}\n'),
        ("tasks.jsonl", "[" * 100_000 + "\n"),
        ("tasks.jsonl", '{"client": -1, "dispatched": 0, "time": 1, "service_seconds": 1}\n'),
        ("tasks.jsonl", '{"client": 0, "dispatched": 9, "time": 1, "service_seconds": 1}\n'),
        ("tasks.jsonl", '{"client": 0, "dispatched": 0, "time": 1e300, "service_seconds": 1}\n'),
        ("status.json", '{"clients": [{"name": 1}]}'),
        ("status.json", '{"counts": {"lost": "many"}}'),
        ("status.json", "[]"),
        ("events.log", "no seconds\tkind\ttext\n"),
        ("events.log", "1.0\n"),
    ],
)
def test_records_of_a_strangers_deployment_that_are_none_are_refused(run, deployed, name, text):
    (deployed / name).write_text(text)
    result = run("report", "deployed", "--no-stills", "--out", "page.html")
    assert result.code == 2 and name in result.error, result.error
    assert Watcher(deployed).look()["title"]


def test_times_beyond_the_calendar_are_shown_as_seconds(run, deployed):
    status = json.loads((deployed / "status.json").read_text())
    (deployed / "status.json").write_text(json.dumps(status | {"sessions": [[0.0, 1e300], [1.0]]}))
    result = run("report", "deployed", "--no-stills", "--out", "page.html")
    assert result.code == 0, result.error


def test_halves_of_characters_in_names_are_escaped(run, deployed, tmp_path):
    """JSON can hold them, and so can names of files; no text in UTF-8 can."""
    for name in ("history.jsonl", "status.json"):
        path = deployed / name
        path.write_text(path.read_text().replace("mine", "\\ud800").replace("phone", "\\udfff"))
    folder = tmp_path / os.fsdecode(b"run\xff")
    deployed.rename(folder)
    tasks = [
        {"client": f"\ud800{k % 3}", "start": 10.0 * k, "end": 10.0 * k + 1 + k % 3}
        for k in range(30)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    fleet = tmp_path / os.fsdecode(b"fleet\xff.csv")
    fleet.write_text(FLEET)
    throughput = ("--objective", "throughput", "--concurrency", "5")
    for command in (
        ("report", folder.name, "--no-stills", "--out", "page.html"),
        ("compare", folder.name, "--latex", "table.tex"),
        ("fleet", "estimate", "log.jsonl", "--out", "estimated.csv"),
        ("plan", fleet.name, *throughput, "--out", "plan.toml", "--page", "plan.html"),
        ("simulate", fleet.name, "--concurrency", "5", "--rounds", "100", "--out", "simulated"),
    ):
        result = run(*command)
        assert result.code == 0, (command, result.error)
    assert r"\ud800" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert Watcher(folder).look()["title"]


def test_metrics_of_others_do_not_leave_the_folder_of_figures(run, deployed, tmp_path):
    """A file is named after each metric, and whoever made the run named those."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    rows = [json.loads(line) for line in (deployed / "history.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "x/../../../../evil": 0.5, "/evil": 0.4}) for row in rows]
    (deployed / "history.jsonl").write_text("\n".join(lines) + "\n")
    result = run("report", "deployed", "--out", "a/b/page.html", "--jobs", "1")
    assert result.code == 0, result.error
    written = [path for path in tmp_path.rglob("*evil*") if path.is_file()]
    assert written and all(path.parent == inner / "page-figures" for path in written)


def test_an_extension_that_fails_silently_under_a_limit_is_out_of_memory(monkeypatch, capsys):
    """CPython says only that something returned NULL; without a limit that is a defect, and shown."""

    def fails() -> None:
        raise SystemError("<built-in function f> returned NULL without setting an exception")

    monkeypatch.setattr("sojourn.cli.main", fails)
    monkeypatch.setattr("sojourn.__main__._address_space", lambda: 2**30)
    with pytest.raises(SystemExit) as ended:
        sojourn_main()
    assert ended.value.code == 2
    assert "too little memory" in capsys.readouterr().err
    monkeypatch.setattr("sojourn.__main__._address_space", lambda: None)
    with pytest.raises(SystemError):
        sojourn_main()
