"""Reproducing claims into a folder: data that are not there, and claims run one after another."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproduction.claims import read_claims
from reproduction.run import RECORD, Reproduction
from reproduction.verdict import Finding
from sojourn.cli import app
from sojourn.errors import InvalidFile


def reproduce(*claims: str, out: Path) -> list[Finding]:
    work = Reproduction.prepare(read_claims(claims), scale="quick", out=out, jobs=1)
    return list(work.run(lambda line: None))


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set of the paper is found."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr("sojourn.training.data.sets.DEBIAN_ROOT", tmp_path / "empty")


@pytest.mark.usefixtures("without_data")
def test_a_claim_without_data_says_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ["reproduce", "4", "6", "9", "--out", str(out), "--jobs", "1"]
    ran = CliRunner().invoke(app, given, env={"COLUMNS": "160"})
    assert ran.exit_code == 0, ran.output
    assert "claim 4: reproduces where conclusive" in ran.output
    assert "claim 6: data not found" in ran.output
    assert "claim 9: data not found" in ran.output
    assert "the data set kmnist is not on this machine" in ran.output
    html = (out / "report.html").read_text(encoding="utf-8")
    assert html.count('class="pill data-not-found"') >= 2
    assert not (out / "cells").exists()


def test_a_claim_run_later_leaves_the_others_in_the_record(tmp_path: Path) -> None:
    reproduce("4", out=tmp_path)
    before = json.loads((tmp_path / RECORD).read_text())["claims"]["4"]
    reproduce("1", out=tmp_path)
    record = json.loads((tmp_path / RECORD).read_text())
    assert list(record["claims"]) == ["1", "4"]
    assert record["claims"]["4"] == before
    total = sum(claim["elapsed_seconds"] for claim in record["claims"].values())
    assert record["elapsed_seconds"] == pytest.approx(total, abs=0.06)


def test_preparing_forgets_nothing(tmp_path: Path) -> None:
    reproduce("4", out=tmp_path)
    before = (tmp_path / RECORD).read_text()
    Reproduction.prepare(read_claims(["1"]), scale="quick", out=tmp_path, jobs=1)
    assert json.loads((tmp_path / RECORD).read_text()) == json.loads(before)
    with pytest.raises(InvalidFile, match="--scale quick: give another"):
        Reproduction.prepare(read_claims(["1"]), scale="paper", out=tmp_path, jobs=1)


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('{"scale": "qui')
    with pytest.raises(InvalidFile, match="not a record as Sojourn writes it"):
        reproduce("4", out=tmp_path)
