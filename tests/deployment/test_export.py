"""The model of a deployment, at any time."""

import errno
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sojourn._support.ledger import digest_of_arrays
from sojourn.deployment.checkpoint import read_checkpoint
from sojourn.deployment.export import CHECKPOINT, Layout, export_model
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.errors import InvalidFile, InvalidInput, SojournError
from sojourn.training import Problem
from sojourn.training.replay.checkpoint import rows_in


def network() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 4).requires_grad_(False)  # in the state_dict, and not trained
    norm.register_buffer("calls", torch.tensor(7))  # of another type
    return nn.Sequential(nn.Linear(2, 4), norm, nn.Linear(4, 3))


def problem(clients: int, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(90, 2, generator=generator), torch.arange(90) % 3
    shares = [(x[i::clients], y[i::clients]) for i in range(clients)]
    return Problem(network().eval(), shares, (x, y), batch_size=8)


def run(folder: Path, **config: object) -> Path:
    given = {"clients": 2, "updates": 20, "predict": False, "run-folder": str(folder / "run")}
    settings = read_settings({**given, **config}, folder)
    with InProcessTransport(problem, [lambda: 0.0] * 2) as transport:
        serve(transport, problem, settings)
    return folder / "run"


def test_an_exported_model_loads_in_plain_pytorch_and_evaluates_alike(tmp_path: Path) -> None:
    folder = run(tmp_path, **{"export-model": True})
    assert export_model(folder, tmp_path / "model.safetensors") == 20
    model = network().eval()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    learnable = problem(2, 0)
    weights = np.load(folder / "weights.npy")
    x = torch.randn(5, 2)
    torch.testing.assert_close(model(x), learnable.trained_model(weights)(x), rtol=0, atol=0)
    for name in ("model.safetensors", "weights.safetensors"):
        state = load_file(folder / name)
        assert state.keys() == model.state_dict().keys()
        assert all(torch.equal(state[key], model.state_dict()[key]) for key in state)


def test_raw_and_averaged_weights_are_exported(tmp_path: Path) -> None:
    rule = {"rule.name": "async-sgd", "rule.server.name": "plain", "rule.server.average": 0.5}
    folder = run(tmp_path, **rule)
    for options, name in (
        ({}, "default"),
        ({"averaged": True}, "mean"),
        ({"averaged": False}, "raw"),
    ):
        export_model(folder, tmp_path / name, **options)  # type: ignore[arg-type]
    default, mean, raw = (load_file(tmp_path / name) for name in ("default", "mean", "raw"))
    assert all(torch.equal(default[key], mean[key]) for key in default)
    assert not torch.equal(mean["0.weight"], raw["0.weight"])
    names = "0.weight", "0.bias", "2.weight", "2.bias"
    flat = np.concatenate([mean[name].numpy().ravel() for name in names])
    np.testing.assert_array_equal(flat, np.load(folder / "weights.npy"))


def test_a_problem_without_a_model_is_one_vector() -> None:
    layout = Layout.of(object(), np.zeros(3))
    assert [*layout.state(np.ones(3))] == ["weights"]


def test_bad_folders_are_refused_with_a_sentence(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    (tmp_path / "empty").mkdir()
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "status.json").write_text("{}")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "experiment.toml").write_text("")
    for name, reason in (
        ("nothing", "there is no such folder"),
        ("empty", "not the folder of a deployment"),
        ("young", "has written no checkpoint yet"),
        ("trained", "not a deployment"),
    ):
        with pytest.raises(InvalidFile, match=reason):
            export_model(tmp_path / name, target)
    (tmp_path / "empty" / "checkpoint.npz").write_bytes(b"PK")
    with pytest.raises(InvalidFile, match="not a checkpoint of a deployment"):
        export_model(tmp_path / "empty", target)
    assert not target.exists()


def test_an_average_that_no_rule_keeps_and_a_full_disk_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, target = run(tmp_path), tmp_path / "model.safetensors"
    with pytest.raises(InvalidInput, match="keeps no average of versions"):
        export_model(folder, target, averaged=True)
    target.write_text("as before")

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(SojournError, match=r"cannot be written \(No space left on device\)"):
        export_model(folder, target)
    assert target.read_text() == "as before"


def test_a_checkpoint_of_others_is_exported_only_if_it_fits(tmp_path: Path) -> None:
    """Its digest may have been made to fit as well."""
    folder = run(tmp_path)
    arrays, meta = read_checkpoint(folder / CHECKPOINT)
    layouts: list[object] = [
        *(None, "x", [["a"]], [["a", [-2], 0]], [["a", [10**30], 0]], [["a", [2], -5]]),
        *([["a", ["x"], 0]], [[1, [1], 0]], [["a", [1], 10**9]], [["a", [1], None]], [7]),
    ]
    edits = [{"version": None}, {"extra": 7}, *({"extra": {"layout": one}} for one in layouts)]
    changed = [{"meta": _encoded({**meta, **edit})} for edit in edits]
    for change in [*changed, {"weights": np.array(1.0)}]:
        named = {**arrays, "meta": _encoded(meta), **change}
        np.savez(folder / CHECKPOINT, **named, digest=digest_of_arrays(named))
        with pytest.raises(InvalidFile, match=r"checkpoint\.npz: "):
            export_model(folder, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def _encoded(meta: object) -> np.ndarray:
    return np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)


@pytest.mark.parametrize(
    "kind", ["compressed", "one array", "pipe", "nested", "larger than memory"]
)
def test_what_is_no_archive_of_ours_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / CHECKPOINT
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "compressed":
        np.savez_compressed(path, meta=np.zeros(10**6))
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif kind == "nested":
        np.savez(path, meta=np.frombuffer(b"[" * 100_000, dtype=np.uint8))
    else:
        header = io.BytesIO()
        shape = {"descr": "<f8", "fortran_order": False, "shape": (2**56,)}
        np.lib.format.write_array_header_1_0(header, shape)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("meta.npy", header.getvalue())
    with pytest.raises(InvalidFile, match=r"checkpoint\.npz: "):
        read_checkpoint(path)
    with pytest.raises(InvalidFile, match=r"checkpoint\.npz: "):
        rows_in(path)
