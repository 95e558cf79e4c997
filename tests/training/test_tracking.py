"""Finished runs in trackers: what is logged is what the history says, by the trackers' own readers."""

import json
import sys

import pytest
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.errors import InvalidInput, MissingExtra
from sojourn.runs.history import History
from sojourn.training.tracking import make_tracker, run_name

EXPERIMENT = (
    'fleet = "three-clusters"\nrounds = 40\nseeds = 2\nthreads = 1\nbatched = false\n'
    'learning-rate = 0.05\nevaluate-every = 20\nrefine = false\nstrategies = ["uniform"]\n'
)


def trained(folder, monkeypatch, track):
    monkeypatch.chdir(folder)
    (folder / "e.toml").write_text(EXPERIMENT)
    done = CliRunner().invoke(app, ["train", "e.toml", "--out", "run", "--track", track])
    assert done.exit_code == 0, done.output
    return History.read(folder / "run/history.jsonl")


def test_tensorboard_reads_what_was_logged(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for history in trained(tmp_path, monkeypatch, "tensorboard:board"):
        reader = accumulator.EventAccumulator(str(tmp_path / "board" / run_name(history)))
        reader.Reload()
        for name in ("test_loss", "test_accuracy", "time"):
            events = reader.Scalars(name)
            assert [event.step for event in events] == history.round.tolist()
            assert [event.value for event in events] == pytest.approx(
                getattr(history, name).tolist(), rel=1e-6
            )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, by MLflow
def test_mlflow_reads_what_was_logged(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path}/store.db"
    histories = {run_name(h): h for h in trained(tmp_path, monkeypatch, f"mlflow:{uri}")}
    client = tracking.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("sojourn")
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name for run in runs} == set(histories)
    for run in runs:
        history = histories[run.info.run_name]
        assert run.info.status == "FINISHED"
        assert run.data.params["strategy"] == history.strategy
        assert float(run.data.params["learning_rate"]) == history.learning_rate
        for name in ("test_loss", "test_accuracy", "time"):
            seen = client.get_metric_history(run.info.run_id, name)
            assert [m.value for m in seen] == getattr(history, name).tolist()
            assert [m.step for m in seen] == history.round.tolist()


def test_a_store_that_mlflow_cannot_open_is_said(tmp_path, monkeypatch):
    pytest.importorskip("mlflow.tracking")
    for uri in ("bogus://x", "http://127.0.0.1:9"):
        with pytest.raises(InvalidInput, match=f"--track 'mlflow:{uri}' cannot be used: "):
            make_tracker(f"mlflow:{uri}")


def records_of(path):
    """The records of a file of W&B: blocks of LevelDB's log, each a protocol buffer of its own."""
    import struct

    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), 7, []
    assert data.startswith(b":W&B")
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        parts.append(data[place + 7 : place + 7 + size])
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(b"".join(parts))
            parts = []


def test_wandb_takes_runs_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    histories = {run_name(h): h for h in trained(tmp_path, monkeypatch, "wandb:trial")}
    written = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(written) == len(histories) == 2
    for path in written:
        records = list(records_of(path))
        (run,) = (r.run for r in records if r.WhichOneof("record_type") == "run")
        assert run.project == "trial"
        history = histories.pop(run.display_name)
        rows = [
            {i.key or i.nested_key[0]: json.loads(i.value_json) for i in r.history.item}
            for r in records
            if r.WhichOneof("record_type") == "history"
        ]
        assert [row["_step"] for row in rows] == history.round.tolist()
        for name in ("test_loss", "test_accuracy", "time"):
            assert [row[name] for row in rows] == getattr(history, name).tolist()


OWN = """
logged, ended = [], []

class Mine:
    def log(self, history):
        logged.append((history.strategy, history.seed, len(history.round)))

    def close(self):
        ended.append(True)

nothing = 5
"""


def test_a_tracker_of_ones_own_hears_of_every_final_run(tmp_path, monkeypatch):
    (tmp_path / "tracker_of_a_test.py").write_text(OWN)
    trained(tmp_path, monkeypatch, "tracker_of_a_test:Mine")
    module = sys.modules["tracker_of_a_test"]
    assert module.logged == [("uniform", 0, 3), ("uniform", 1, 3)]
    assert module.ended == [True]
    with pytest.raises(InvalidInput, match=r"has the methods log\(history\) and close"):
        make_tracker("tracker_of_a_test:nothing")
    sys.modules.pop("tracker_of_a_test")


def test_a_tracker_that_fails_loses_no_run(tmp_path, monkeypatch):
    (tmp_path / "tracker_that_fails.py").write_text(
        OWN.replace("logged.append", "assert history.seed, 'gone'\n        logged.append")
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    command = ["train", "e.toml", "--out", "run", "--track", "tracker_that_fails:Mine"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    said = str(done.exception)
    assert (
        "did not take 1 of the runs, first 'uniform_seed-0_rate-0.05' (AssertionError: gone" in said
    )
    assert "All runs are finished and saved" in said
    assert len(History.read(tmp_path / "run/history.jsonl")) == 2
    assert sys.modules["tracker_that_fails"].logged == [("uniform", 1, 3)]
    sys.modules.pop("tracker_that_fails")


def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"cannot be used: .*Not a directory"):
        make_tracker(f"tensorboard:{tmp_path}/file/board")


def test_a_tracker_that_is_not_installed_says_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"pip install 'sojourn\[wandb\]'"):
        make_tracker("wandb:project")
    with pytest.raises(InvalidInput, match="write tensorboard:DIR"):
        make_tracker("tensorboard:")
