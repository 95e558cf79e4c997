"""The public surface, and what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import sojourn as sj

HEAVY = ("torch", "flwr", "matplotlib", "typer", "plotly", "sklearn", "pandas")


def test_every_public_name_can_be_had():
    assert sj.__all__
    for name in sj.__all__:
        assert getattr(sj, name) is not None


def test_the_stub_is_sorted():
    stub = Path(sj.__file__).with_suffix(".pyi").read_text()
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    named = [node.module for node in imports if node.module]
    assert named == sorted(named)
    for node in imports:
        names = [alias.name for alias in node.names]
        assert sorted(names, key=_classes_first) == names


def _classes_first(name):
    """As ruff sorts: classes before functions."""
    return (not name[:1].isupper(), name)


def test_what_goes_from_hand_to_hand_is_public():
    nouns = {"Fleet", "Network", "Plan", "Scenario", "Schedule", "History", "RunFolder", "Report"}
    parts = {"Law", "Trace", "NeverQueue", "Objective", "Policy", "rules"}
    floors = {"duty_cycles", "noise_floor"}
    assert nouns | parts | floors <= set(sj.__all__)


def test_import_is_light():
    code = "import sojourn, sys; sojourn.analyze; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(HEAVY) & {name.split(".")[0] for name in loaded}


def test_plain_import_needs_not_even_numpy():
    code = "import sojourn, sys; print('numpy' in sys.modules, 'numba' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["False", "False"]


def test_former_names_of_packages_stay_importable():
    import sojourn.deploy
    import sojourn.deployment
    import sojourn.train
    import sojourn.training

    assert sojourn.train.Problem is sojourn.training.Problem
    assert sojourn.deploy.Dispatcher is sojourn.deployment.Dispatcher
    assert set(sojourn.train.__all__) == set(sojourn.training.__all__)


BASE = """
import sys
for name in ("torch", "jinja2", "plotly", "matplotlib", "sklearn", "pandas", "flwr", "safetensors"):
    sys.modules[name] = None  # not installed
from typer.testing import CliRunner
from sojourn.cli import app
for words in (
    "analyze three-clusters --concurrency 30",
    "plan three-clusters",
    "simulate three-clusters --concurrency 30 --rounds 2000 --seed 1",
    "--help",
):
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, (words, done.output, done.exception)
import sojourn.report.verdict
"""


def test_a_base_installation_analyses_plans_and_simulates() -> None:
    """Without the extras; a verdict needs none of a page's."""
    done = subprocess.run([sys.executable, "-c", BASE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
