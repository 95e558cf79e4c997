"""The folder of a run: when it counts as empty."""

from pathlib import Path

from sojourn.runs.folder import RunFolder


def test_a_folder_with_a_finished_run_is_not_empty(tmp_path: Path) -> None:
    """Else a second experiment would be written among the results of the first."""
    folder = RunFolder(tmp_path / "run")
    assert folder.empty
    folder.cells.mkdir(parents=True)
    assert folder.empty, "killed before anything was computed"
    (folder.cells / "uniform_seed-0.jsonl").write_text("{}")
    assert not folder.empty
