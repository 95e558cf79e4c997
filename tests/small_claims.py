"""Claims about training that are reproduced in seconds, in the place of the paper's.

The digits stand in for its data sets. What gradients cost is given, not timed: which runs a budget
pays depends on it.
"""

import json
import shutil
from pathlib import Path

from reproduction import claims, settings

SIZE = """
model = "linear"
batch-size = 8
rounds = {rounds}
looks = [2, 3]
evaluations = 4
"""
SETTING = """
where = "a test"
service-rates = "exp(i/3)"
clients = 6
concurrency = 8
learning-rate = 0.05
axis = "rounds"
strategies = ["uniform", "balanced", "g-optimal"]
"""
SETTINGS = f"""
[setting.rounds]
{SETTING}
[setting.tuned]
{SETTING}
tried-rates = [0.02, 0.05, 0.1]

[constants]
initial-gap = 15.0
smoothness = 1.0
gradient-noise = 3.0
heterogeneity = 10.0

[quick]
processor-minutes = 1.0
reduced = "all"
[quick.digits]
{SIZE.format(rounds=100)}
[standard]
reduced = "all"
[standard.digits]
{SIZE.format(rounds=100)}
[paper]
reduced = ""
[paper.digits]
{SIZE.format(rounds=200)}
"""
STATEMENTS = """
[[parameters.cell]]
data = "digits"
partition = "dirichlet(0.5)"

[[parameters.statement]]
says = "p*G is more accurate than uniform and balanced routing at the end"
measure = "final"
strategy = "g-optimal"
over = ["uniform", "balanced"]

[[parameters.statement]]
says = "p*G is hardly less accurate than uniform routing at the end"
measure = "final"
strategy = "g-optimal"
over = ["uniform"]
by = -0.5
"""


def _claim(number: str, parameters: str) -> str:
    named = ("claim", number), ("title", "t"), ("source", "s"), ("computes", "training")
    head = "\n".join(f'{key} = "{value}"' for key, value in (*named, ("checked", "c")))
    return f"{head}\n[parameters]\n{parameters}\n{STATEMENTS}"


TRAINING = {
    "3-rounds.toml": _claim("3", 'setting = "rounds"\nalso = ["square-root", "plan"]'),
    "10-tuned.toml": _claim("10", 'setting = "tuned"'),
}
PRICES = {"digits": [1e-4, 1e-3, 1e-2]}
"""Seconds of a gradient, an evaluation, a problem."""
BUDGET = 6.0
"""Seconds: pays a second look at some of the statements."""


def use_small_claims(folder: Path) -> None:
    """Claims and settings of this process are those of this module from now on."""
    paper = claims.CLAIMS
    folder.mkdir(exist_ok=True)
    shutil.copy(paper / "4-concurrency.toml", folder)
    (folder / "settings.toml").write_text(SETTINGS)
    for name, text in TRAINING.items():
        (folder / name).write_text(text)
    claims.CLAIMS = settings.CLAIMS = folder


def set_prices(out: Path) -> None:
    """What a first call would have noted about prices and budget, unless something stands there."""
    record = out / "reproduction.json"
    if not record.exists():
        out.mkdir(exist_ok=True)
        known = {"scale": "quick", "processor_seconds": BUDGET, "prices": PRICES}
        temporary = out / "record.new"
        temporary.write_text(json.dumps(known))
        temporary.replace(record)
