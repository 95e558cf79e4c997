"""What a client on Flower computes, against what the replay computes for the same task."""

import numpy as np
import pytest

from sojourn.deployment.client import compute
from sojourn.deployment.tasks import Task
from sojourn.deployment.transport import Request
from sojourn.rules import AsyncSGD, FedBuff, Rule
from sojourn.training.problem.gradients import ClientWork, Task as ReplayTask
from tests.training.small import small_problem


@pytest.mark.parametrize(
    "rule",
    [
        AsyncSGD(),
        AsyncSGD(local_steps=3),
        AsyncSGD(local_steps=3, local_learning_rate=0.2, proximal=0.5),
        FedBuff(local_steps=3),
    ],
    ids=repr,
)
def test_a_client_sends_what_the_replay_computes(rule: Rule) -> None:
    problem = small_problem()
    weights = problem.initial_weights().numpy()
    task = Task(7, 1, 4, version=0, dispatched=0, probability=0.25, clients=4, divisor=1.0)
    request = Request.of(task, rule, clients=problem.clients, seed=5, learning_rate=0.1)
    loss, update, _ = compute(problem, request, weights, client=1)
    asked = ReplayTask(1, 4, weights, request.local_learning_rate)
    ((expected_loss, expected),) = ClientWork(problem, rule, seed=5).results([asked])
    assert loss == expected_loss
    np.testing.assert_array_equal(update, expected)
    assert update.dtype == weights.dtype
