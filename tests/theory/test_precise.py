"""Both engines against fifty digits: crowds of clients, crowds of tasks, loads that hardly differ."""

import numpy as np
import pytest

from sojourn.theory.jackson import steady_state
from tests.reference.precise import precise_steady_state

RELATIVE_ERROR = 1e-11
MOST_CLIENTS, MOST_TASKS = 1e15, 2.0**40


def random_network(random):
    """Loads, counts and a concurrency, often near the switch of engines and near a tie of loads."""
    k = int(random.integers(1, 7))
    concurrency = int(np.exp(random.uniform(0.0, np.log(MOST_TASKS))))
    if random.random() < 0.3:
        concurrency = int(random.integers(95, 110))
    counts = np.exp(random.uniform(0.0, np.log(MOST_CLIENTS / k), k)).astype(np.int64)
    if random.random() < 0.4:
        counts = random.integers(1, 50, k)
    loads = np.exp(random.uniform(0.0, random.uniform(0.0, 18.0), k))
    kind = random.integers(0, 5)
    if kind == 0:
        loads = 1.0 + 1e-12 * random.integers(0, 5, k)
    elif kind == 1:
        loads = loads / counts
    elif kind == 2:
        counts[0] = random.integers(1, 4)
        loads[0] = loads.max() * (1.0 + 10.0 ** random.uniform(-12.0, 2.0))
    return loads / (loads @ counts), counts, concurrency


def largest_error(loads, counts, concurrency):
    exact = precise_steady_state(loads, counts, concurrency - 1)
    assert exact is not None, "the reference does not know its own error"
    state = steady_state(loads, counts, concurrency)
    found = [state.throughput, *state.mean_tasks]
    true = [exact.throughput, *exact.mean_tasks]
    return max(float(abs(a - b) / b) if b else a for a, b in zip(found, true, strict=True))


def check(number, seed):
    random = np.random.default_rng(seed)
    for _ in range(number):
        loads, counts, concurrency = random_network(random)
        error = largest_error(loads, counts, concurrency)
        assert error < RELATIVE_ERROR, (loads.tolist(), counts.tolist(), concurrency)


@pytest.mark.parametrize("seed", range(4))
def test_random_networks(seed):
    check(20, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_thousand_random_networks(seed):
    check(1000, seed)


@pytest.mark.parametrize("clients", [10**9, 10**12, 10**15])
@pytest.mark.parametrize("concurrency", [101, 102, 10_000, 2**40])
def test_many_clients_and_few_tasks(clients, concurrency):
    """Each client's share is far below the rounding of 1; the crowd's is not."""
    counts = np.array([clients, clients // 3, 1])
    loads = np.array([1.0, 2.0, 3.0]) / clients
    assert largest_error(loads, counts, concurrency) < 1e-13


@pytest.mark.parametrize(
    "loads, counts, concurrency",
    [
        ([0.021382300981069597, 0.02138225277966443, 0.002], [1, 42, 40], 26_899_604),
        ([0.038112964983236644, 0.023460659390652765], [1, 41], 109),
        ([0.02511224009376715, 0.0009959411600538295, 0.02506396638450166], [1, 42, 37], 29_299),
        ([0.022727285598973048, 0.022727272427930857], [1, 43], 132_419_930),
    ],
)
def test_one_client_above_a_class_of_forty(loads, counts, concurrency):
    """Half a pole, half a Gaussian: the parabola's points are too far apart by 1e-9 to 1e-7."""
    assert largest_error(np.array(loads), np.array(counts), concurrency) < 1e-13


def test_the_two_references_agree():
    random = np.random.default_rng(0)
    for _ in range(5):
        loads, counts, _ = random_network(random)
        by_path = precise_steady_state(loads, counts, 120, longest=0)
        by_recursion = precise_steady_state(loads, counts, 120)
        assert abs(by_path.throughput / by_recursion.throughput - 1) < 1e-14
        for a, b in zip(by_path.mean_tasks, by_recursion.mean_tasks, strict=True):
            assert abs(a / b - 1) < 1e-14
