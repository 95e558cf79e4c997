"""Client-level differential privacy: clipping, noise, its price, and the end of the budget."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kstest, norm

from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard import Guard
from sojourn.deployment.settings import read_settings
from sojourn.errors import InvalidFile
from sojourn.rules import AsyncSGD, FedBuff, Rule
from sojourn.rules.privacy import Privacy
from tests.deployment.test_inprocess import run, tasks_of


@pytest.mark.parametrize(("noise", "answers"), [(0.8, 1), (1.0, 10), (4.0, 1), (4.0, 100)])
def test_epsilon_is_that_of_the_composed_gaussian_mechanism(noise: float, answers: int) -> None:
    """Against the definition, integrated: delta = E[(1 - exp(epsilon - L))+] over the loss L."""
    privacy = Privacy(clip=1.0, noise=noise, delta=1e-5)
    epsilon, mu = privacy.epsilon(answers), math.sqrt(answers) / noise

    def leaks(loss: float) -> float:
        density = norm.pdf(loss, loc=mu**2 / 2.0, scale=mu)
        return float(-np.expm1(epsilon - loss) * density)

    delta, _ = quad(leaks, epsilon, epsilon + 40.0 * mu, epsabs=1e-14)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert privacy.epsilon(0) == 0.0
    assert epsilon < privacy.epsilon(answers + 1)


@pytest.mark.parametrize(
    ("noise", "answers", "expected"),
    [(0.8, 1, 5.6795868), (1.0, 10, 17.8565868), (4.0, 1, 0.9263415), (4.0, 100, 13.2067122)],
)
def test_epsilon_is_that_of_dp_accounting(noise: float, answers: int, expected: float) -> None:
    """``PLDAccountant().compose(GaussianDpEvent(noise), answers)`` of dp-accounting 0.6.0.

    That library wants an older ``attrs`` than others here, and is not installed.
    """
    privacy = Privacy(clip=1.0, noise=noise, delta=1e-5)
    assert privacy.epsilon(answers) == pytest.approx(expected, rel=1e-6)


def test_the_noise_is_gaussian_and_updates_are_clipped() -> None:
    privacy, random = Privacy(clip=2.0, noise=0.5), np.random.default_rng(1)
    update = np.zeros(20_000)
    update[0] = 50.0
    found = privacy.apply(update, random)
    assert kstest(found[1:], norm(scale=1.0).cdf).pvalue > 1e-4
    means = np.mean([privacy.apply(update, random)[0] for _ in range(400)])
    assert means == pytest.approx(2.0, abs=4.0 / 20.0)
    small = np.full(4, 0.1, dtype=np.float32)
    assert privacy.apply(small, random).dtype == np.float32
    quiet = Privacy(clip=2.0, noise=1e-9).apply(small, random)
    np.testing.assert_allclose(quiet, small, atol=1e-6)


@pytest.mark.parametrize("rule", [AsyncSGD(), FedBuff(buffer_size=2)])
def test_nothing_of_an_update_reaches_the_model_without_noise(rule: Rule) -> None:
    """Two updates that clip to the same vector give the same model for the same noise."""

    def model(size: float) -> np.ndarray:
        server = Dispatcher(
            np.zeros(3),
            rule=rule,
            routing=[1.0],
            concurrency=1,
            learning_rate=0.1,
            guard=Guard(screens=()),
            privacy=Privacy(clip=1.0, noise=1.0),
            noise=np.random.default_rng(5),
        )
        server.joined(0, now=0.0)
        server.start(now=0.0)
        for number in range(4):
            server.completed(number, np.array([size, 0.0, 0.0]), now=float(number), client=0)
        assert server.clients[0].answers == 4
        assert server.epsilon == Privacy(clip=1.0, noise=1.0).epsilon(4)
        return server.state.weights

    np.testing.assert_allclose(model(1e3), model(1e6), rtol=1e-12)


def test_a_run_ends_when_its_budget_is_spent(tmp_path: Path) -> None:
    config = {"privacy-clip": 1.0, "privacy-noise": 4.0, "privacy-epsilon": 3.0}
    status = run(tmp_path, [lambda: 0.0] * 2, updates=10_000, **config, **{"evaluate-every": 3})
    most = Privacy(clip=1.0, noise=4.0, budget=3.0).answers()
    assert most is not None and most <= len(tasks_of(tmp_path)) <= 2 * most
    assert status["phase"] == "finished"
    assert status["epsilon"] == Privacy(clip=1.0, noise=4.0).epsilon(most) <= 3.0
    assert "the privacy budget is spent" in (tmp_path / "run" / "events.log").read_text()
    lines = (tmp_path / "run" / "history.jsonl").read_text()
    assert '"epsilon"' in lines
    assert all(row.get("train_loss") is None for row in map(json.loads, lines.splitlines()[1:]))


def test_half_of_it_and_too_small_a_budget_are_refused(tmp_path: Path) -> None:
    given = {"clients": 2, "updates": 1}
    with pytest.raises(InvalidFile, match="privacy takes both 'privacy-clip'"):
        read_settings({**given, "privacy-clip": 1.0}, tmp_path)
    small = {"privacy-clip": 1.0, "privacy-noise": 1.0, "privacy-epsilon": 0.1}
    with pytest.raises(InvalidFile, match=r"one answer of a client .* costs an epsilon of 4\.38"):
        read_settings({**given, **small}, tmp_path)
