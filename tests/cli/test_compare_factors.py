"""``sojourn compare --factors`` on the folder of a factorial experiment."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli import app

EXPERIMENT = """
fleet = "fleet.csv"
data = "digits"
model = "linear"
time = 5
seeds = 3
learning-rate = 0.05
policy = "never-queue"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factors")
    (folder / "fleet.csv").write_text("service_rate,count\n1,3\n5,3\n")
    tables = "".join(
        f'[[strategy]]\nname = "{steps} {server}"\n'
        f'rule = {{ name = "async-sgd", local-steps = {steps}, server = {{ name = "{server}" }} }}\n'
        for steps in (1, 4)
        for server in ("plain", "momentum")
    )
    (folder / "factorial.toml").write_text(EXPERIMENT + tables)
    out = folder / "out"
    done = CliRunner().invoke(app, ["train", str(folder / "factorial.toml"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


def test_each_factor_has_its_effect_from_pairs(trained: Path) -> None:
    shown = CliRunner().invoke(app, ["compare", str(trained), "--factors"]).output
    lines = [line.split() for line in shown.splitlines()]
    factors = [line[0] for line in lines if line and line[0] in ("optimiser:", "local")]
    assert sorted(factors) == ["local", "optimiser:"]
    assert "over 3" in " ".join(shown.split())


def test_several_folders_have_no_common_factors(trained: Path) -> None:
    done = CliRunner().invoke(app, ["compare", str(trained), str(trained), "--factors"])
    assert done.exit_code != 0
