"""What the paper says about its chain in passing: how fast it converges, and what its formulas cost."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from tests.reference.enumeration import distribution, states

import sojourn as sj
from sojourn.theory.jackson.analysis import covariance


def transition(rates: np.ndarray, routing: np.ndarray, tasks: int) -> tuple[list, np.ndarray]:
    """The chain (1) of the m - 1 tasks that are left: one is sent, then one of the busy clients completes."""
    places = list(states(len(rates), tasks - 1))
    index = {place: k for k, place in enumerate(places)}
    matrix = np.zeros((len(places), len(places)))
    for place in places:
        for sent, chance in enumerate(routing):
            there = np.array(place)
            there[sent] += 1
            speeds = np.where(there > 0, rates, 0.0)
            for done in np.flatnonzero(speeds):
                after = there.copy()
                after[done] -= 1
                share = chance * speeds[done] / speeds.sum()
                matrix[index[place], index[tuple(after.tolist())]] += share
    return places, matrix


@pytest.mark.parametrize("seed", range(5))
def test_the_chain_converges_exponentially_fast_from_anywhere(seed: int) -> None:
    """By the second eigenvalue, and by the distance after 50, 100 and 150 rounds from the farthest start."""
    random = np.random.default_rng(seed)
    n, m = int(random.integers(2, 4)), int(random.integers(2, 6))
    rates = np.exp(random.normal(0.0, 0.7, n))
    routing = random.dirichlet(np.full(n, 2.0))
    places, matrix = transition(rates, routing, m)
    loads = [Fraction(load) for load in (routing / rates).tolist()]
    law = distribution(loads, m - 1)[1]
    limit = np.array([float(law[place]) for place in places])
    np.testing.assert_allclose(limit @ matrix, limit, atol=1e-12)
    sizes = np.sort(np.abs(np.linalg.eigvals(matrix)))
    second = sizes[-2]
    assert second < 1.0 - 1e-6 and sizes[-1] == pytest.approx(1.0)
    distances = []
    power = np.eye(len(places))
    for _ in range(3):
        power = power @ np.linalg.matrix_power(matrix, 50)
        distances.append(np.abs(power - limit).sum(axis=1).max() / 2.0)
    for before, after in itertools.pairwise(distances):
        assert after <= before * second**50 * 1.5 + 1e-12


def test_the_formulas_as_printed_take_a_number_of_products_of_order_n2_m2() -> None:
    """(9) summed as printed, products counted, against the package; the diagonal as corrected."""
    rates, m = np.array([0.5, 1.0, 2.0, 4.0]), 9
    routing = np.array([0.3, 0.2, 0.4, 0.1])
    rho, n = routing / rates, len(rates)
    z = np.zeros(m)
    z[0], products = 1.0, 0
    for one in rho:
        for k in range(1, m):
            z[k] += one * z[k - 1]
            products += 1
    second, first = np.zeros((n, n)), np.zeros(n)
    for i in range(n):
        for k in range(1, m):
            first[i] += rho[i] ** k * z[m - 1 - k] / z[m - 1]
            second[i, i] += (2 * k - 1) * rho[i] ** k * z[m - 1 - k] / z[m - 1]
            products += 2
        for j in range(n):
            if i == j:
                continue
            for k in range(1, m):
                for other in range(1, m - k):
                    second[i, j] += rho[i] ** k * rho[j] ** other * z[m - 1 - k - other] / z[m - 1]
                    products += 1
    expected = covariance(sj.Network(sj.Fleet(rates), routing, m))
    np.testing.assert_allclose(second - np.outer(first, first), expected, rtol=1e-10, atol=1e-12)
    assert products <= n**2 * m**2
