"""Quadratic client losses with different optima: whose optimum does the server find?"""

import numpy as np
import torch
from torch import nn

from sojourn.network import Fleet, Network
from sojourn.rules import AsyncSGD, GeneralizedAsyncSGD
from sojourn.simulation.simulate import simulate
from sojourn.train import Problem
from sojourn.train.replay.replay import replay

OPTIMA = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 8.0]])
ROUTING = np.array([0.55, 0.25, 0.15, 0.05])


class Point(nn.Module):
    """The model is one point; its output does not depend on the input."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return self.point.expand(len(x), 2)


def half_square(outputs, y):
    return 0.5 * (outputs - y).square().sum(dim=1).mean()


def quadratic_problem():
    sets = [
        (torch.zeros(4, 1, dtype=torch.float64), torch.tensor(np.tile(optimum, (4, 1))))
        for optimum in OPTIMA
    ]
    return Problem(Point(), sets, sets[0], half_square, batch_size=2)


def long_run_means(rule, *, replicates=20):
    """The mean of the weights near the end of each replicate."""
    problem = quadratic_problem()
    network = Network(Fleet([1.0, 2.0, 3.0, 4.0]), ROUTING, 5)
    return np.array(
        [
            replay(
                simulate(network, rounds=400, seed=seed),
                problem,
                rule,
                learning_rate=0.03,
                seed=seed,
                evaluate_every=400,
                batched=False,
            ).weights
            for seed in range(replicates)
        ]
    )


def z_scores(means, expected):
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    return (means.mean(axis=0) - expected) / error


def test_dividing_by_n_p_finds_the_optimum_of_the_average():
    means = long_run_means(GeneralizedAsyncSGD())
    assert np.abs(z_scores(means, OPTIMA.mean(axis=0))).max() < 4


def test_without_it_the_server_finds_what_the_routing_prefers():
    means = long_run_means(AsyncSGD())
    biased = ROUTING @ OPTIMA
    assert np.abs(z_scores(means, biased)).max() < 4
    missed_by = np.linalg.norm(biased - OPTIMA.mean(axis=0))
    assert missed_by > 2
    assert np.linalg.norm(means.mean(axis=0) - OPTIMA.mean(axis=0)) > 0.9 * missed_by
