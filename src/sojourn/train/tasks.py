"""The work of clients: the results of a run of independent tasks, one by one or together."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sojourn.rules import Rule, local_learning_rate
from sojourn.train.problem import Problem, local_step
from sojourn.train.stacked import StackedGradients

Weights: TypeAlias = NDArray[np.floating]
"""The server's vectors are NumPy's, whose arithmetic costs least to call."""

Result: TypeAlias = tuple[float, Weights]


class Task(NamedTuple):
    """One request to one client: which of its tasks it is, and the weights it was sent with."""

    client: int
    ordinal: int
    sent: Weights


class Tasks(Protocol):
    """A way to compute the results of tasks, in their order."""

    def results(self, tasks: Sequence[Task]) -> Iterator[Result]:
        """Mean loss and update of each task."""
        ...


class PlainTasks:
    """One task at a time, each when its result is asked for."""

    def __init__(self, problem: Problem, rule: Rule, learning_rate: float, seed: int) -> None:
        self._problem, self._rule, self._seed = problem, rule, seed
        self._rate = local_learning_rate(rule, learning_rate)

    def results(self, tasks: Sequence[Task]) -> Iterator[Result]:
        problem, rule, seed = self._problem, self._rule, self._seed
        for client, ordinal, sent in tasks:
            if rule.sends == "gradient":
                yield problem.loss_and_array(sent, client, ordinal, seed)
            else:
                steps, rate, pull = rule.local_steps, self._rate, rule.proximal
                loss, update = problem.loss_and_difference(
                    sent, client, ordinal, seed, steps, rate, proximal=pull
                )
                yield loss, update.numpy()


class BatchedTasks:
    """All tasks together, on stacked weights: the same up to rounding."""

    def __init__(
        self,
        problem: Problem,
        rule: Rule,
        learning_rate: float,
        seed: int,
        gradients: StackedGradients,
    ) -> None:
        self._problem, self._rule, self._seed = problem, rule, seed
        self._rate = local_learning_rate(rule, learning_rate)
        self._gradients = gradients

    def results(self, tasks: Sequence[Task]) -> Iterator[Result]:
        sent = torch.from_numpy(np.stack([task.sent for task in tasks]))
        if self._rule.sends == "gradient":
            losses, updates = self._step(tasks, sent, 0)
        else:
            losses, updates = self._descend(tasks, sent)
        return zip(losses.tolist(), updates.numpy(), strict=True)

    def _descend(self, tasks: Sequence[Task], sent: Tensor) -> tuple[Tensor, Tensor]:
        local, total = sent, torch.zeros(len(tasks), dtype=torch.float64)
        for step in range(self._rule.local_steps):
            losses, gradients = self._step(tasks, local, step)
            local = local_step(local, sent, gradients, self._rate, self._rule.proximal)
            total += losses
        return total / self._rule.local_steps, local - sent

    def _step(self, tasks: Sequence[Task], weights: Tensor, step: int) -> tuple[Tensor, Tensor]:
        steps = self._rule.local_steps
        numbers = [(task.client, task.ordinal * steps + step) for task in tasks]
        x, y = self._problem.stacked_batches(numbers, self._seed)
        return self._gradients(weights, x, y)
