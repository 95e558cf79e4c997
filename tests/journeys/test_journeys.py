"""What users bring, from their first command to the table of their paper."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.runs.history import History
from sojourn.training import load_weights

TASKS = Path(__file__).parent / "tasks"
JOURNEYS = {
    # What runs are judged by, a learning rate, a target that is reached.
    "text_classifier": ("auc", 0.5, 0.6),
    "regression": ("loss", 0.01, 0.5),
    "language_model": ("perplexity", 0.3, 9.0),
    "tied_weights": ("accuracy", 0.02, 0.2),
}
TAKE_LONG = ("text_classifier", "language_model")


def write(folder, task, rate, *, seeds, strategies, targets):
    text = (
        'fleet = "three-clusters"\ntime = 100\nconcurrency = 30\nkeep-weights = true\n'
        "batched = false\nthreads = 1\n"
        f'problem = "{task}:problem"\nlearning-rate = {rate}\nseeds = {seeds}\n'
        f"strategies = {json.dumps(strategies)}\ntargets = {targets}\n"
    )
    (folder / "e.toml").write_text(text)


@pytest.fixture
def sojourn(tmp_path, monkeypatch):
    """The command, typed in a fresh folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert not re.search(r"\bnan\b", done.stdout)
        return done.stdout

    yield run
    for task in JOURNEYS:
        sys.modules.pop(task, None)


@pytest.mark.parametrize(
    "task",
    [pytest.param(task, marks=[pytest.mark.slow] * (task in TAKE_LONG)) for task in JOURNEYS],
)
def test_a_journey(task, sojourn, tmp_path):
    judged_by, rate, target = JOURNEYS[task]
    shutil.copy(TASKS / f"{task}.py", tmp_path)
    write(tmp_path, task, rate, seeds=1, strategies=["uniform"], targets=[])
    sojourn("train", "e.toml", "--out", "mine")
    write(tmp_path, task, rate, seeds=2, strategies=["uniform", "square-root"], targets=[target])
    printed = sojourn("train", "e.toml", "--out", "mine", "--resume")
    assert judged_by in printed
    sojourn("train", "e.toml", "--out", "whole")
    grown, whole = ((tmp_path / name / "history.jsonl").read_bytes() for name in ("mine", "whole"))
    assert grown == whole

    histories = History.read(tmp_path / "mine" / "history.jsonl")
    assert {(run.strategy, run.seed) for run in histories} == {
        (strategy, seed) for strategy in ("uniform", "square-root") for seed in range(2)
    }
    for run in histories:
        first = float(run.values(run.measure)[0])
        assert run.measure.name == judged_by
        assert run.time[-1] == 100.0
        assert run.measure.reaches(run.final, first)
        assert run.time_to(target) < 100.0
    assert {run.test_loss[0] for run in histories if run.strategy == "uniform"} == {
        run.test_loss[0] for run in histories if run.strategy == "square-root"
    }

    spec = importlib.util.spec_from_file_location(task, tmp_path / f"{task}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    problem = module.problem(30, 0)
    model = problem.trained_model(problem.initial_weights())
    (weights,) = (tmp_path / "mine/weights").glob("uniform_seed-0_*")
    model.load_state_dict(load_weights(weights))
    x, y = problem.test_set
    assert problem.loss(model(x), y).item() == pytest.approx(histories[0].test_loss[-1], rel=1e-5)

    table = sojourn("compare", "mine", "--csv", "table.csv", "--latex", "table.tex")
    assert judged_by in table
    assert (tmp_path / "table.csv").read_text().count("\n") == 3
    assert r"\toprule" in (tmp_path / "table.tex").read_text()
    sojourn("figure", "mine", "--size", "3.3x2.2", "--format", "pdf", "--out", "f.pdf")
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    sojourn("report", "mine", "--no-stills")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    words = page[page.index("</script>") :]
    assert judged_by in words.lower()
    assert "nan%" not in words and "nan %" not in words
