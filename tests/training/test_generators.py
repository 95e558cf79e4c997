# ruff: noqa: NPY002  # The legacy generators are what is tested.
"""Draws of transforms depend on their seed alone, whatever else draws in the process."""

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from sojourn.training import Problem
from sojourn.training.problem.batches import Batches
from sojourn.training.problem.generators import forked_generators, generators_put_back, seeded


def draws() -> tuple[float, ...]:
    return (
        random.random(),
        random.gauss(0.0, 1.0),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
    )


def states() -> tuple[object, ...]:
    python, numpy = random.getstate(), np.random.get_state()
    return python, numpy[1].tolist(), numpy[2:], torch.random.get_rng_state().tolist()


def in_a_thread(function) -> list:
    """What ``function`` returns in a thread of its own, while this one waits."""
    found: list = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a run"])
def test_a_thread_that_draws_amid_a_fork_changes_nothing(inside):
    """As a Dask worker does, whose event loop draws from `random` when a task arrives."""

    def disturbed() -> tuple[float, ...]:
        found: tuple[float, ...] = ()
        with forked_generators(5):
            for _ in range(3):
                in_a_thread(lambda: (random.sample(range(100), 5), np.random.rand(3)))
                found += draws()
        return found

    with forked_generators(5):
        expected = draws() + draws() + draws()
    before = states()
    if inside:
        with generators_put_back():
            assert disturbed() == expected
    else:
        assert disturbed() == expected
    assert states() == before


def test_two_threads_that_fork_draw_as_one_alone():
    with forked_generators(1):
        first = draws()
    with forked_generators(2):
        second = draws()
    ready, found = threading.Barrier(2), {}

    def draw(seed: int) -> None:
        with generators_put_back():
            ready.wait()
            found[seed] = set()
            for _ in range(200):
                with forked_generators(seed):
                    found[seed].add(draws())

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1: {first}, 2: {second}}


def test_other_threads_draw_anew_each_time_while_a_run_goes_on():
    """They do not see the seeds of batches over and over."""
    seen = []
    with generators_put_back():
        for _ in range(5):
            with forked_generators(1):
                pass
            seen += in_a_thread(lambda: (random.random(), float(np.random.rand())))
    assert len({first for first, _ in seen}) == len({second for _, second in seen}) == 5


def test_generators_are_as_they_were_after_forks_within_forks_and_errors():
    np.random.randn()  # Half of a pair of normal numbers is kept.
    before = states()
    functions = random.random, random.sample, np.random.rand
    with forked_generators(1):
        outer = draws()
        with forked_generators(2):
            inner = draws()
        outer += draws()
        with pytest.raises(ZeroDivisionError), forked_generators(3), seeded(4):
            raise ZeroDivisionError
    assert states() == before
    assert (random.random, random.sample, np.random.rand) == functions
    with forked_generators(1):
        assert draws() + draws() == outer
    with forked_generators(2):
        assert draws() == inner


def test_what_a_lazy_client_draws_when_it_is_made_does_not_depend_on_who_asks_first():
    """A random split without a seed of its own: the client is made again once it was dropped."""

    def entry() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(6, 2), torch.tensor(np.random.randint(2, size=6))

    def problem() -> Problem:
        return Problem(nn.Linear(2, 2), [entry] * 3, (torch.zeros(1, 2), torch.tensor([0])))

    with forked_generators(8):
        usual, other = problem(), problem()
    first = usual.batch(1, number=0, seed=4), usual.batch(1, number=1, seed=4)
    other.train_sizes  # noqa: B018  # makes every client
    second = other.batch(1, number=0, seed=4), problem().batch(1, number=1, seed=4)
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
    assert not torch.equal(first[0][0], usual.batch(2, number=0, seed=4)[0])


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63 + 5, 2**100 + 7])
def test_the_seeds_of_batches_are_those_of_a_seed_sequence(seed):
    batches = Batches(seed, lambda client: 10, 4)
    for client, number in ((0, 0), (3, 41), (99_999, 2**31)):
        sequence = np.random.SeedSequence([seed, client, number], spawn_key=(1,))
        expected = int(sequence.generate_state(1, np.uint64)[0] >> 1)
        assert batches.noise(client, number) == expected
