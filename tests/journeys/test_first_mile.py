"""The first mile: a new folder, a log, and mistakes in one's own files."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sojourn as sj
from sojourn.runs.history import History
from sojourn.runs.measure import LOSS
from sojourn.tuning.criteria import Criterion

DOCS = Path(__file__).parents[2] / "docs"


ASKING = """
trap 'printf "%s\\n" $? > orders' EXIT
sojourn() { printf '%s\\n' sojourn "$@" > orders; read -r code < answers; return "$code"; }
"""
"""Shell: commands are passed on, a word per line, and so is the exit code in the end."""


def typed(commands, folder, script):
    """Type a script of the documentation into a shell; commands of ours start without their imports."""
    for name in ("orders", "answers"):
        os.mkfifo(folder / name)
    said = []
    bash = subprocess.Popen(["bash", "-e", "-c", ASKING + script], cwd=folder)
    try:
        while True:
            word, *arguments = (folder / "orders").read_text().splitlines()
            if word != "sojourn":
                break
            done = commands.run(folder, *arguments)
            said.append(done.out)
            assert done.code == 0, (arguments, done.error)
            (folder / "answers").write_text(f"{done.code}\n")
        assert int(word) == 0
    finally:
        bash.kill()
        bash.wait()
    return "".join(said)


def test_a_new_folder_leads_to_a_trained_page(commands, tmp_path):
    """Only what is printed is typed: the command after "Next", then that of the page."""
    made = commands.run(tmp_path, "new", "mine")
    assert made.code == 0, made.error
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        *("experiment.toml", "fleet.csv", "log.csv", "problem.py")
    ]
    assert "not empty" in commands.run(tmp_path, "new", "mine").error
    following = re.search(r"Next: sojourn (.*?)(?:  #|$)", made.out + made.error, re.MULTILINE)
    trained = commands.run(tmp_path, *shlex.split(following[1]))
    assert trained.code == 0, trained.error
    page = re.search(r"its page: sojourn (.*)", trained.out)
    reported = commands.run(tmp_path, *shlex.split(page[1]))
    assert reported.code == 0, reported.error
    path = Path(re.search(r"Page: file://(\S+)", reported.out)[1])
    assert "never queue" in path.read_text(encoding="utf-8")
    run = tmp_path / re.search(r"written to ([^;]+);", trained.out)[1]
    _the_end_is_one_number(run, trained.out, path.read_text(encoding="utf-8"))


def _the_end_is_one_number(run, printed, page):
    """The last rows of the history, the table, the summary, the page and the comparison agree."""
    histories = History.read(run / "history.jsonl")
    summary = json.loads((run / "summary.json").read_text())
    table = printed.partition("\nrate: ")[0].splitlines()  # The verdict begins with names, too.
    for entry in summary["strategies"]:
        rows = [one for one in histories if one.strategy == entry["name"]]
        end = float(np.mean([one.test_accuracy[-1] for one in rows]))
        assert entry["final"]["mean"] == pytest.approx(end)
        (line,) = [line for line in table if line.startswith(entry["name"] + " ")]
        assert f" {end:.1%}".replace("%", "±") in line
        assert f"{end:.1%}".replace("%", " ±") in page


def test_what_a_run_is_ranked_by_and_what_is_said_of_its_end():
    """A noisy end is averaged to rank pilot runs; what is shown is the last row, whatever it is."""
    loss = np.array([2.0, 0.5, 0.171, 0.161, 0.151, 0.141])
    history = History(
        strategy="a",
        seed=0,
        learning_rate=0.1,
        clock="virtual",
        time=np.array([0.0, 50.0, 86.0, 90.0, 95.0, 100.0]),
        test_loss=loss,
        **dict.fromkeys(("round", "gradients", "updates"), np.arange(6)),
        **dict.fromkeys(("test_accuracy", "train_loss", "staleness"), np.full(6, np.nan)),
    )
    criterion = Criterion.of(LOSS)
    assert criterion.value(history) == history.final == 0.141
    assert criterion.score(history, 100.0) > 0.15


@pytest.mark.parametrize("time", [20, pytest.param(120, marks=pytest.mark.slow)])
def test_from_a_log_to_the_recommended_strategy(commands, tmp_path, time):
    """Every command of the page, in its order, as the page has it, and with shorter runs."""
    text = (DOCS / "from-log-to-answer.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:\$ |    )(sojourn .*)$", text, re.MULTILINE)
    assert [line.split()[1] for line in lines] == [
        *("new", "fleet", "plan", "tune", "report", "simulate", "deploy", "deploy")
    ]
    shorter = f"sed -i 's/^time = 120 /time = {time} /' mine/experiment.toml"
    script = "\n".join([lines[0], shorter, *lines[1:]]).replace(" --open", "")
    assert "written: mine/fleet.csv" in typed(commands, tmp_path, script)
    experiment = (tmp_path / "tuned" / "experiment.toml").read_text(encoding="utf-8")
    assert re.search(rf"^time = {time}(?:\.0)?$", experiment, re.MULTILINE)
    strategy = (tmp_path / "tuned" / "strategy.toml").read_text(encoding="utf-8")
    assert "learning_rate" in strategy or "learning-rate" in strategy
    assert "desktop" in strategy, "it is for the fleet of the log"
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "my-app-run" / "weights.safetensors").is_file()


@pytest.mark.parametrize("time", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_five_strategies_in_six_settings_become_one_table(commands, tmp_path, time):
    """The example of the page of `compare`, as the page has it, and with shorter runs."""
    text = (DOCS / "commands" / "compare.md").read_text(encoding="utf-8")
    (experiment,) = re.findall(r":caption: settings.toml\n\n(.*?)^```", text, re.M | re.S)
    (script,) = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    assert "time = 100\n" in experiment
    (tmp_path / "settings.toml").write_text(experiment.replace("time = 100", f"time = {time}"))
    typed(commands, tmp_path, script)
    lines = (tmp_path / "table.tex").read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    rows = lines[4:-2]
    assert len(rows) == 5
    assert all(row.count(r"$\pm$") == 6 for row in rows)
    bold = [[r"\textbf" in cell for cell in row.split(" & ")[1:]] for row in rows]
    assert all(any(column) for column in zip(*bold, strict=True)), "the best of every setting"


def test_from_the_log_that_ships_to_a_plan(commands, tmp_path):
    commands.run(tmp_path, "new", "mine")
    folder = tmp_path / "mine"
    estimated = commands.run(folder, "fleet", "estimate", "log.csv", "--out", "fleet.csv")
    assert estimated.code == 0, estimated.error
    assert "left out, without a finished task: phone-07" in estimated.out
    fleet = sj.Fleet.from_csv(folder / "fleet.csv")
    assert set(fleet.names) == {"phone", "tablet", "laptop", "desktop"}
    assert fleet.counts.sum() == 12
    planned = commands.run(folder, "plan", "fleet.csv", "--out", "plan.toml", "--json")
    assert planned.code == 0, planned.error
    assert json.loads(planned.out)


OWN_SAMPLES = """
import torch
from sojourn.training import Problem


class Own:
    def __init__(self, client):
        self.client = client

    def __len__(self):
        return 20

    def __getitem__(self, k):
        label = k % 2
        if self.client == 1 and k > 1:
            WRONG
        return torch.full((3,), float(k)), label


def problem(clients, seed):
    own = [Own(client) for client in range(clients)]
    return Problem(torch.nn.Linear(3, 2), own, Own(0), batch_size=19)
"""


@pytest.mark.parametrize(
    "code, sentence",
    [
        (
            "def problem(clients, seed):\n    return helper()\n\n\ndef helper():\n    return 1 / 0\n",
            "problem.py, line 6, in helper: ZeroDivisionError",
        ),
        ("value = undefined\n", "problem.py, line 1, in <module>: NameError"),
        ("import not_installed_anywhere\n", "not_installed_anywhere"),
        ("def problem(clients, seed:\n", "problem.py, line 1: '(' was never closed"),
        (
            "import torch\n\n\ndef problem(clients, seed):\n    return torch.argsrot(1)\n",
            "your code, problem.py, line 5, in problem: AttributeError: module 'torch'",
        ),
        (
            "def problem(clients, seed):\n    return open('data/x.csv')\n",
            "line 2, in problem: FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'. It is "
            "looked for in the working folder, ",
        ),
        ("def get_problem(clients, seed):\n    pass\n", "in problem.py; there are get_problem"),
        (OWN_SAMPLES.replace("WRONG", "raise OSError('no image')"), "no image; sample "),
        (
            OWN_SAMPLES.replace("WRONG", "label = 2"),
            "Target 2 is out of bounds. Labels of a cross-entropy are 0 to the number of outputs",
        ),
    ],
)
def test_errors_in_ones_own_code_show_its_frames_alone(commands, tmp_path, code, sentence):
    commands.run(tmp_path, "new", "mine")
    (tmp_path / "mine" / "problem.py").write_text(code)
    failed = commands.run(tmp_path, "train", "mine/experiment.toml", "--out", "run")
    assert failed.code == 2
    assert sentence in failed.error
    assert "Traceback" not in failed.error
    assert "sojourn/training" not in failed.error
    assert "site-packages" not in failed.error


def test_where_a_key_belongs_is_said(commands, tmp_path):
    commands.run(tmp_path, "new", "mine")
    path = tmp_path / "mine" / "experiment.toml"
    path.write_text(path.read_text() + 'server = "adam"\n')
    failed = commands.run(tmp_path, "train", "mine/experiment.toml")
    assert failed.code == 2
    assert "'server' belongs inside 'rule'" in failed.error


@pytest.mark.parametrize(
    "before, after, sentence",
    [
        ("problem:problem", "problem.py:problem", "named without .py: write problem:problem"),
        ("targets = [0.8]", "targets = [80]", "such as 0.8 for 80 %; 80 is not"),
        ("time = 120", "time = 0.001", "finish 1,000 tasks in 265"),
    ],
)
def test_a_mistake_in_an_experiment_says_what_to_write(commands, tmp_path, before, after, sentence):
    commands.run(tmp_path, "new", "mine")
    path = tmp_path / "mine" / "experiment.toml"
    path.write_text(path.read_text().replace(before, after))
    failed = commands.run(tmp_path, "train", "mine/experiment.toml")
    assert failed.code == 2
    assert sentence in failed.error
    folder = commands.run(tmp_path, "train", "mine")
    assert "mine is a folder, not an experiment's file: give mine/experiment.toml" in folder.error


@pytest.mark.parametrize("command", ["train", "tune", "calibrate"])
def test_cheap_mistakes_are_said_before_torch_is_imported(tmp_path, command):
    (tmp_path / "bad.toml").write_text('fleet = "none.csv"\n')
    (tmp_path / "rule.toml").write_text(
        'fleet = "twenty"\n[[strategy]]\nname = "a"\nrule = { name = "async-sdg" }\n'
    )
    code = (
        "import sys\nsys.argv = ['sojourn', *sys.argv[1:]]\n"
        "from sojourn.cli import main\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules)\n"
    )
    wrong = {
        "bad.toml": "cannot be read",
        "missing.toml": "cannot be read",
        "rule.toml": "[[strategy]] number 1: unknown rule 'async-sdg': did you mean 'async-sgd'?",
    }
    for file, sentence in wrong.items():
        done = subprocess.run(
            [sys.executable, "-c", code, command, file],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 2
        assert sentence in done.stderr
        assert done.stdout.strip() == "False"
