"""Small problems and schedules that the tests of training share."""

import numpy as np
import torch
from torch import nn

from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.simulation.simulate import simulate
from sojourn.training.experiment.jobs import Job, run_jobs
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.stack import Stack

CLASSES = 3


def perceptron(*, dtype=torch.float32, features=6):
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    ).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def samples(size, generator, *, dtype=torch.float32, shape=(6,)):
    x = torch.randn(size, *shape, generator=generator, dtype=dtype)
    return x, x.flatten(1)[:, :CLASSES].argmax(dim=1)


def small_problem(*, clients=4, model=None, dtype=torch.float32, shape=(6,), **options):
    generator = torch.Generator().manual_seed(11)
    sizes = [5 + 7 * i for i in range(clients)]
    sets = [samples(size, generator, dtype=dtype, shape=shape) for size in sizes]
    test = samples(40, generator, dtype=dtype, shape=shape)
    options = {"batch_size": 8, **options}
    return Problem(model or perceptron(dtype=dtype), sets, test, **options)


def small_schedule(*, clients=4, concurrency=12, rounds=200, routing=None, **options):
    fleet = Fleet(np.exp(np.arange(clients) / 3))
    network = Network(fleet, uniform_routing(fleet) if routing is None else routing, concurrency)
    return simulate(network, rounds=rounds, **{"seed": 3, **options})


def final_run(experiment, strategy, seed, learning_rate):
    """The history of one final run of an experiment."""
    return run_jobs([(experiment, Job(strategy, seed, (learning_rate,)), None)])[0][0]


def ran(run, **options):
    """The position at the end of one run, its gradients computed one by one."""
    position = run.beginning(False)
    Stack([run]).run([position], batched=False, **options)
    return position
