"""``sojourn report``, ``reproduce`` and ``demo`` as a user types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from sojourn.reproduce.demo import summary_lines


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set is found by the command."""
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "no-data"))


def test_report_refuses_a_folder_with_nothing_in_it(run: Any) -> None:
    done = run("report", ".")
    assert done.code == 2
    assert "nothing to report" in done.error
    assert "Traceback" not in done.error


def test_the_nine_claims_are_listed(run: Any) -> None:
    done = run("reproduce", "--list")
    numbers = [line.split()[0] for line in done.out.splitlines()[1:]]
    assert numbers == [str(number) for number in range(1, 10)]


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
    assert verdicts == {"1": "reproduces", "4": "reproduces in part", "9": "data not found"}
    page = (tmp_path / "paper" / "report.html").read_text(encoding="utf-8")
    table = page[page.index('class="verdicts"') : page.index('id="claim-1"')]
    assert table.index("#claim-4") < table.index("#claim-9") < table.index("data not found")
    again = run("reproduce", "1", "--out", "paper", "--scale", "paper")
    assert again.code == 2
    assert "was made with --scale quick" in again.error


@pytest.mark.slow
def test_the_demo_ends_with_the_page(tmp_path: Path, run: Any) -> None:
    done = run("demo", "--out", "demo", timeout=280)
    assert done.code == 0, done.error
    lines = done.out.splitlines()
    assert lines[-1] == "open demo/report.html"
    assert [line.split(":")[0] for line in lines[-4:-1]] == [
        "time to 80% accuracy",
        "accuracy averaged over the 100 units",
        "accuracy at the end",
    ]
    assert (tmp_path / "demo" / "report-figures" / "learning-1-accuracy-time.png").exists()


def test_the_demo_says_three_lines() -> None:
    def entry(name: str, time: float | None) -> dict[str, object]:
        value = {"mean": 0.8, "standard_error": 0.01}
        reached = {"mean": time, "standard_error": None, "reached": 2}
        common = {"final_accuracy": value, "mean_accuracy": value}
        return {"name": name, "time_to": {"0.8": reached}, "seeds": [0, 1, 2], **common}

    lines = summary_lines({"strategies": [entry("uniform", None), entry("plan", 41.2)]})
    assert lines == [
        "time to 80% accuracy: uniform reached by 2 of 3 seeds, plan 41",
        "accuracy averaged over the 100 units: uniform 80.0 ± 1.0%, plan 80.0 ± 1.0%",
        "accuracy at the end: uniform 80.0 ± 1.0%, plan 80.0 ± 1.0%",
    ]
