"""What runs will hold and take is said before they begin, and is what they then hold."""

import re
from pathlib import Path

import numpy as np
import torch

from sojourn._support.configuration import Table
from sojourn.strategy import Choices, Strategy
from sojourn.training.experiment.experiment import experiment_from_table
from sojourn.training.experiment.size import run_size, size_note, trial
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack
from tests.training.small import small_problem, small_schedule


def held(position):
    """Bytes of versions, of the rule and of clients in a position."""
    versions = {id(v.weights): v.weights.nbytes for v in position.live.values()}
    rule = sum(array.nbytes for array in position.state.arrays.values())
    clients = [array.nbytes for own in position.clients.values() for array in own.values()]
    return sum(versions.values()), rule, sum(clients)


def test_a_run_holds_what_was_said(tmp_path):
    problem = small_problem(optimizer=torch.optim.AdamW, optimizer_state="client")
    fleet = "name,service_rate,count\na,1,4\n"
    (tmp_path / "fleet.csv").write_text(fleet)
    choices = Choices(concurrency=12, rule={"name": "async-sgd", "server": {"name": "adam"}})
    strategy = Strategy.read("fleet.csv", choices, folder=tmp_path)
    _, client_bytes = trial(problem, 1e-3, seed=1)
    said = run_size(problem, strategy, refine=False, client_bytes=client_bytes)
    run = Replay(small_schedule(), problem, strategy.rule, learning_rate=1e-3, seed=1)
    position, most = run.beginning(False), (0, 0, 0)
    for until in range(1, 60):
        Stack([run]).run([position], until=until, batched=False)
        most = tuple(np.maximum(most, held(position)).tolist())
    versions, rule, clients = most
    assert versions <= said.versions * said.vector <= 1.4 * versions
    assert rule == said.rule
    assert clients == said.clients
    assert said.between == 0


def test_one_line_says_runs_gradients_time_and_memory():
    table = Table(
        {
            "fleet": "three-clusters",
            "model": "linear",
            "rounds": 200,
            "concurrency": 10,
            "learning-rate": [0.1, 0.2],
            "seeds": 3,
            "strategy": [{"name": "plain"}, {"name": "table", "rule": "ace"}],
        },
        "x",
    )
    note = size_note(experiment_from_table(table, Path()), jobs=2)
    assert re.match(
        r"10 runs, about 2,000 gradients of .* ms: at most about \d+ s of processor time with 2 jobs; "
        r"a run of 'table' holds .*: 11 versions of the weights \(.*\), the rule .*; samples take",
        note,
    )
