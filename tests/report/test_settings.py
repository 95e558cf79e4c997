"""Strategies times settings: who is bold, and in which format."""

import csv
import io
import json

import numpy as np
import pytest

from sojourn.report.comparison import holm

STRATEGIES = ("a_1", "b", "c", "d", "e")
SETTINGS = ("digits", "skewed", "slow", "fast", "small", "large")


def write_run(folder, problem, scores):
    """A run folder whose final accuracies are ``scores[strategy][seed]``."""
    rows = []
    for strategy, finals in scores.items():
        for seed, final in enumerate(finals):
            for k, share in enumerate((0.0, 0.5, 1.0)):
                rows.append(
                    {"strategy": strategy, "seed": seed, "learning_rate": 0.1, "round": 10 * k}
                    | {"clock": "virtual", "time": 10.0 * k, "test_accuracy": share * final}
                    | {"test_loss": 1.0, "train_loss": 1.0, "staleness": 1.0, "gradients": k}
                    | {"updates": k, "diverged_at": None}
                )
    folder.mkdir(parents=True)
    text = "\n".join(map(json.dumps, rows)) + "\n"
    (folder / "history.jsonl").write_text(text, encoding="utf-8")
    (folder / "experiment.toml").write_text(problem, encoding="utf-8")


@pytest.fixture
def runs(tmp_path):
    random = np.random.default_rng(1)
    for k, setting in enumerate(SETTINGS):
        common = random.normal(0.0, 0.05, 8)
        scores = {
            # a_1 and b are alike; the others are clearly worse, each seed alike.
            name: (0.8 + common - (0.1 * max(0, j - 1)) + random.normal(0, 0.005, 8)).tolist()
            for j, name in enumerate(STRATEGIES)
        }
        problem = f'fleet = "three-clusters"\ndata = "digits"\ntime = {10 * (k + 1)}\n'
        write_run(tmp_path / "runs" / setting, problem, scores)
    return [f"runs/{setting}" for setting in SETTINGS]


def test_five_strategies_in_six_settings_become_one_latex_table(commands, tmp_path, runs):
    done = commands.run(tmp_path, "compare", *runs, "--table", "table.tex")
    assert done.code == 0, done.error
    lines = (tmp_path / "table.tex").read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    rows = {line.split(" & ")[0]: line for line in lines[4:-2]}
    assert list(rows) == [r"a\_1", "b", "c", "d", "e"]
    bold = {name: line.count(r"\textbf") for name, line in rows.items()}
    assert bold["c"] == bold["d"] == bold["e"] == 0
    assert bold[r"a\_1"] + bold["b"] >= len(SETTINGS), "the best of every setting is bold"
    assert all(line.count(r"$\pm$") == 6 for line in rows.values())


def test_csv_and_markdown_say_the_same(commands, tmp_path, runs):
    for suffix in ("csv", "md"):
        assert commands.run(tmp_path, "compare", *runs, "--table", f"t.{suffix}").code == 0
    listed = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert len(listed) == len(STRATEGIES) * len(SETTINGS)
    markdown = (tmp_path / "t.md").read_text()
    assert markdown.count("**") == 2 * sum(int(row["not_significantly_worse"]) for row in listed)
    for setting in SETTINGS:
        best = [row for row in listed if row["setting"] == setting and row["best"] == "1"]
        others = [float(row["accuracy"]) for row in listed if row["setting"] == setting]
        assert len(best) == 1
        assert float(best[0]["accuracy"]) == max(others)


def test_times_to_a_target_are_censored(commands, tmp_path, runs):
    table = ("compare", *runs, "--table", "t.md", "--target", "0.75")
    assert commands.run(tmp_path, *table).code == 0
    rows = (tmp_path / "t.md").read_text().splitlines()
    assert "> 20" in rows[-1], "the worst strategy never reaches it"
    assert "0/8" in rows[-1]


def test_two_seeds_that_missed_a_target_are_not_shown_as_worse(commands, tmp_path):
    """With the end of the run as their time ``late`` differed from ``soon`` with p = 0."""
    problem = 'fleet = "three-clusters"\ntime = 20\n'
    write_run(tmp_path / "small", problem, {"soon": [0.9, 0.8], "late": [0.3, 0.74]})
    done = commands.run(tmp_path, "compare", "small", "--table", "t.md", "--target", "0.75")
    assert done.code == 0, done.error
    assert "| late | **> 20 (0/2)** |" in done.out
    assert "by final values where a run missed the target" in done.out


def test_folders_of_different_problems_are_not_paired(commands, tmp_path, runs):
    done = commands.run(tmp_path, "compare", *runs[:2])
    assert done.code == 2
    assert "different problems (time: 10 in digits, 20 in skewed)" in done.error
    assert "--table" in done.error
    assert commands.run(tmp_path, "compare", runs[0]).code == 0
    wrong = commands.run(tmp_path, "compare", *runs[:2], "--table", "t.pdf")
    assert "must end in .tex, .csv or .md" in wrong.error


def test_intervals_are_corrected_as_p_values_are():
    """An interval of all differences together holds 0 wherever the corrected p is above 5 %."""
    from sojourn.report.comparison import _paired

    random = np.random.default_rng(2)
    for _ in range(300):
        values = dict(enumerate(random.normal(0.8, 1.0, 6).tolist()))
        zero = dict.fromkeys(values, 0.0)
        found = _paired(values, zero, 4)
        assert (found.low > 0.0 or found.high < 0.0) == (4 * found.p < 0.05)
    assert holm([0.01, 0.02, 0.5]) == pytest.approx([0.03, 0.04, 0.5])
