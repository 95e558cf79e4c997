"""What was edited by hand in a run folder is named, and used only if asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn._support.ledger import NAME, Ledger, accept_edits, noted
from sojourn.errors import InvalidFile
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History


def history(accuracy: float = 0.5, seed: int = 0) -> History:
    columns = {name: [0.0, 1.0] for name in ("time", "test_loss", "train_loss", "staleness")}
    counts = {name: [0, 1] for name in ("round", "gradients", "updates")}
    return History(
        strategy="uniform",
        seed=seed,
        learning_rate=0.1,
        clock="virtual",
        test_accuracy=[0.1, accuracy],  # type: ignore[arg-type]
        **columns,  # type: ignore[arg-type]
        **counts,  # type: ignore[arg-type]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    made.begin({"fleet": "three-clusters"})
    made.write_history([history()])
    made.write_summary({"strategies": [{"name": "uniform"}]})
    yield made
    accept_edits(False)


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def test_what_was_written_is_read(folder: RunFolder) -> None:
    assert folder.read().histories[0].final == 0.5
    folder.write_history([history(0.6)])
    assert folder.read().histories[0].final == 0.6


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("history.jsonl", "0.5", "0.999"),
        ("summary.json", "uniform", "unifor"),
        ("experiment.toml", "three-clusters", "two-clusters"),
    ],
)
def test_an_edit_is_refused_unless_asked_for(
    folder: RunFolder, name: str, before: str, after: str
) -> None:
    edit(folder.path / name, before, after)
    with pytest.raises(InvalidFile, match=f"{name}: changed since it was written.*--use-edited"):
        folder.read()
    accept_edits(True)
    folder.read()
    assert noted() == [f"{folder.path / name}: changed since it was written"]


def test_a_file_of_another_hand_is_refused(folder: RunFolder) -> None:
    (folder.path / "tune.json").write_text("{}")
    with pytest.raises(InvalidFile, match=r"not in ledger\.jsonl"):
        folder.read()


def test_an_edited_ledger_vouches_for_nothing(folder: RunFolder) -> None:
    lines = (folder.path / NAME).read_text().splitlines()
    for change in (
        [line.replace('"sha256": "', '"sha256": "0') for line in lines],
        [line.replace("history", "hystory") for line in lines],
        [line[:-20] for line in lines],
        ["[" * 100_000],
    ):
        (folder.path / NAME).write_text("\n".join(change))
        with pytest.raises(InvalidFile, match=r"changed since|not in ledger.jsonl"):
            folder.read()


def test_a_folder_of_an_earlier_version_is_taken_as_it_is(folder: RunFolder) -> None:
    (folder.path / NAME).unlink()
    edit(folder.history_path, "0.5", "0.7")
    assert folder.read().histories[0].final == 0.7


def test_killed_before_the_file_took_its_place_the_one_before_counts(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with Ledger(tmp_path).writing(path) as temporary:
        temporary.write_text("{}")
    line = json.dumps({"file": "summary.json", "sha256": "0" * 64})
    with (tmp_path / NAME).open("a") as file:
        file.write(f"{line}\n")
    Ledger(tmp_path).check(path)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"file": "summ')
    with Ledger(tmp_path).writing(path) as temporary:
        temporary.write_text("[]")
    Ledger(tmp_path).check(path)
