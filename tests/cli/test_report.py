"""``sojourn report``, ``reproduce`` and ``demo`` as a user types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from sojourn.cli.tune import cost_of_queueing
from sojourn.figures.palette import GREY
from sojourn.fleet import built_in_fleet
from sojourn.report.verdict import run_verdict
from sojourn.runs.folder import RunFolder


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set is found by the command."""
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "no-data"))


def test_report_refuses_a_folder_with_nothing_in_it(run: Any) -> None:
    done = run("report", ".")
    assert done.code == 2
    assert "nothing to report" in done.error
    assert run("report", "nowhere").error.endswith("nowhere: there is no such folder\n")
    assert "Traceback" not in done.error


def test_the_ten_claims_are_listed(run: Any) -> None:
    done = run("reproduce", "--list")
    numbers = [line.split()[0] for line in done.out.splitlines()[1:]]
    assert numbers == [str(number) for number in range(1, 11)]


def test_an_unknown_claim_is_refused(run: Any) -> None:
    done = run("reproduce", "12")
    assert done.code == 2
    assert "unknown claim '12'" in done.error


@pytest.mark.usefixtures("without_data")
def test_theory_and_missing_data_end_to_end(tmp_path: Path, run: Any) -> None:
    done = run("reproduce", "1", "4", "9", "--out", "paper")
    assert done.code == 0, done.error
    record = json.loads((tmp_path / "paper" / "reproduction.json").read_text())
    verdicts = {number: entry["verdict"] for number, entry in record["claims"].items()}
    assert verdicts == {
        "1": "reproduces",
        "4": "reproduces where conclusive",
        "9": "data not found",
    }
    page = (tmp_path / "paper" / "report.html").read_text(encoding="utf-8")
    table = page[page.index('class="verdicts"') : page.index('id="claim-1"')]
    assert table.index("#claim-4") < table.index("#claim-9") < table.index("data not found")
    again = run("reproduce", "1", "--out", "paper", "--scale", "paper")
    assert again.code == 2
    assert "was made with --scale quick" in again.error


@pytest.mark.slow
def test_the_demo_ends_with_the_page(tmp_path: Path, run: Any) -> None:
    done = run("demo", "--out", "demo")
    assert done.code == 0, done.error
    lines = done.out.splitlines()
    assert lines[-1] == f"Page: {(tmp_path / 'demo' / 'report.html').as_uri()}"
    answer = json.loads((tmp_path / "demo" / "digits" / "tune.json").read_text())
    verdict = run_verdict(RunFolder(tmp_path / "demo" / "digits").read())
    assert verdict.title in lines
    assert answer["sentence"] == f"{verdict.title}. {verdict.because}"
    assert answer["confirmed"][0]["name"] == answer["pick"]
    baselines = [row for row in answer["confirmed"] if row["baseline"]]
    ties = set(answer["tied"])
    for row in baselines:
        if row["name"] not in ties and row["score"]["mean"] is not None:
            assert answer["confirmed"][0]["score"]["mean"] < row["score"]["mean"]
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert answer["pick"] in page


def test_the_demo_says_what_queueing_costs() -> None:
    text = cost_of_queueing(built_in_fleet("three-clusters"))
    assert "Never queueing makes 11.1 updates per time unit, 48 times as many as" in text
    assert "its noise is 3.5 times lower" in text


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder of two strategies with three seeds."""
    rows = []
    for strategy, gain in (("uniform", 0.0), ("plan", 0.1)):
        for seed in range(3):
            for k in range(4):
                loss = 1.0 / (1 + k)
                row = {
                    "strategy": strategy,
                    "seed": seed,
                    "learning_rate": 0.1,
                    "clock": "virtual",
                    "round": k,
                    "time": 2.0 * k,
                    "test_loss": loss,
                    "test_accuracy": 0.2 * k + gain + 0.01 * seed * (1 + gain),
                    "train_loss": loss,
                    "staleness": 1.0,
                    "gradients": k,
                    "updates": k,
                    "diverged_at": None,
                }
                rows.append(json.dumps(row))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "history.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path / "mine"


@pytest.mark.usefixtures("trained")
def test_compare_prints_and_writes_tables(run: Any, tmp_path: Path) -> None:
    options = ("--against", "uniform", "--target", "0.65", "--csv", "t.csv", "--latex", "t.tex")
    done = run("compare", "mine", *options)
    assert done.code == 0, done.error
    line = next(line for line in done.out.splitlines() if line.startswith("plan"))
    assert "71.1 ± 0.6%" in line
    assert "+10.1" in line
    assert "to 65%" in done.out
    assert "> 6" in next(line for line in done.out.splitlines() if line.startswith("uniform"))
    assert (tmp_path / "t.csv").read_text().startswith("strategy,")
    assert r"\begin{tabular}" in (tmp_path / "t.tex").read_text()
    assert "unknown strategy 'plans'" in run("compare", "mine", "--against", "plans").error
    assert "no history.jsonl" in run("compare", ".").error


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("form", ["pdf", "svg", "png"])
def test_one_figure_of_the_size_asked_for(run: Any, tmp_path: Path, form: str) -> None:
    done = run("figure", "mine", "--what", "accuracy", "--size", "3.3x2.2", "--format", form)
    assert done.code == 0, done.error
    data = (tmp_path / f"mine-accuracy.{form}").read_bytes()
    if form == "pdf":
        assert b"/MediaBox [ 0 0 237.6 158.4 ]" in data
    elif form == "svg":
        assert b'width="237.6pt" height="158.4pt"' in data
    else:
        assert data.startswith(b"\x89PNG")


@pytest.mark.usefixtures("trained")
def test_strategies_that_are_not_highlighted_are_grey(run: Any, tmp_path: Path) -> None:
    for options in ((), ("--highlight", "plan")):
        assert run("figure", "mine", "--out", "f.svg", *options).code == 0
        assert (GREY.light in (tmp_path / "f.svg").read_text()) == bool(options)


@pytest.mark.usefixtures("trained")
def test_figures_that_cannot_be(run: Any) -> None:
    for options, message in (
        (("--what", "auc"), "unknown quantity 'auc'"),
        (("--size", "large"), "--size must be WIDTHxHEIGHT"),
        (("--format", "gif"), "unknown format 'gif'"),
        (("--axis", "updates"), "unknown axis 'updates'"),
        (("--highlight", "plans"), "unknown strategy 'plans'"),
    ):
        done = run("figure", "mine", *options)
        assert done.code == 2
        assert message in done.error
