"""Ten attacks by one and by two of ten clients, on a quadratic and on the digits.

Distances are relative to where the run began, and like accuracies they are means over the last
quarter of the run, because single updates are noisy.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from sojourn.deploy.agreement import Agreement
from sojourn.deploy.quarantine import Quarantine
from sojourn.deploy.screening import Median, Norm, Reference, Screen, Submission
from sojourn.deploy.tasks import Task
from sojourn.rules import AsyncSGD
from tests.deploy.attacks import ATTACKS, CLIENTS, Attack, run
from tests.deploy.digits_task import TEST, Softmax, digits, shares
from tests.deploy.virtual_clock import VirtualClients

SIZE = 50
TARGET = np.ones(SIZE)
CURVATURE = np.linspace(0.5, 1.5, SIZE)
APART = np.random.default_rng(3).normal(scale=0.2, size=(CLIENTS, SIZE))
APART -= APART.mean(axis=0)
UPDATES = {"quadratic": 800, "digits": 600}
POLICIES = ("routed", "never-queue")
UNWATCHED = Quarantine(agreement=-1.0)
LATE = ("slow liar", "never-queue")


def quadratic(tail: list[float]) -> Callable[[np.ndarray, Task], np.ndarray]:
    def gradient(weights: np.ndarray, task: Task) -> np.ndarray:
        if task.number > 0.75 * UPDATES["quadratic"]:
            tail.append(float(np.linalg.norm(weights - TARGET) / np.linalg.norm(TARGET)))
        noise = np.random.default_rng([7, task.client, task.ordinal]).normal(size=SIZE)
        return CURVATURE * (weights - TARGET - APART[task.client]) + noise / np.sqrt(SIZE)

    return gradient


@cache
def samples() -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    x, y = digits()
    return x[:TEST], y[:TEST], shares(CLIENTS)


def softmax(tail: list[float]) -> Callable[[np.ndarray, Task], np.ndarray]:
    x, y, held = samples()

    def gradient(weights: np.ndarray, task: Task) -> np.ndarray:
        if task.number > 0.75 * UPDATES["digits"] and task.number % 10 == 0:
            guess = (x @ weights[:640].reshape(10, 64).T + weights[640:]).argmax(axis=1)
            tail.append(float((guess == y).mean()))
        own_x, own_y = held[task.client]
        batch = np.random.default_rng([task.client, task.ordinal]).integers(0, len(own_y), 32)
        with np.errstate(divide="ignore"):
            found = Softmax(own_x[batch], own_y[batch]).loss_and_gradient(weights, 0, 0, 0)[1]
        return found.astype(np.float32)

    return gradient


def outcome(
    problem: str,
    attack: Attack | None,
    hostile: int,
    *,
    policy: str = "routed",
    screens: Sequence[Screen] = (Norm(),),
    **options: object,
) -> tuple[float, VirtualClients]:
    tail: list[float] = []
    is_quadratic = problem == "quadratic"
    world = run(
        quadratic(tail) if is_quadratic else softmax(tail),
        np.zeros(SIZE) if is_quadratic else np.zeros(650, dtype=np.float32),
        attack=attack,
        hostile=hostile,
        updates=UPDATES[problem],
        learning_rate=0.05 if is_quadratic else 0.2,
        policy=policy,
        screens=screens,
        **options,  # type: ignore[arg-type]
    )
    return float(np.mean(tail)), world


@cache
def without(problem: str, hostile: int, policy: str) -> float:
    """The same run in which those clients are not there, and nothing is screened."""
    return outcome(problem, None, hostile, policy=policy, screens=(), largest_speed=0.0)[0]


@pytest.mark.parametrize("hostile", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_the_quadratic_stay_within_a_tenth(name: str, policy: str, hostile: int) -> None:
    """Two of them: of the final distance itself, but for liars so slow that they are found late.

    One of them: a hundredth of the way, because the lone run happens to end nearer than its like.
    """
    distance, _ = outcome("quadratic", ATTACKS[name], hostile, policy=policy)
    alone = without("quadratic", hostile, policy)
    late = hostile == 2 and (name, policy) == LATE
    assert distance <= (alone + 0.02 if late else alone + 0.01 if hostile == 1 else 1.1 * alone)


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_for_its_moment_is_bounded_by_the_norm_alone(policy: str) -> None:
    """Honest until the clients disagree anyway, and then all the influence that the norm allows."""

    def patient(honest: np.ndarray, count: int, norm: float) -> object:
        return honest if count < 30 else np.full_like(honest, 1.49 * norm / np.sqrt(honest.size))

    distance, world = outcome("quadratic", Attack(patient), 2, policy=policy)
    assert distance <= without("quadratic", 2, policy) + 0.1
    assert not any(client.status == "quarantined" for client in world.server.clients)


@pytest.mark.parametrize("excess", [2.0, 10.0, 100.0])
def test_who_always_sends_too_much_has_the_less_influence(excess: float) -> None:
    guard = Norm().guard(1, CLIENTS, None)
    for _ in range(5):
        for client in range(CLIENTS):
            sent = np.array([1.5 * excess if client == 0 else 1.0])
            verdict = guard.judge(Submission(sent, client, np.ones(1), 0))
    verdict = guard.judge(Submission(np.array([1.5 * excess]), 0, np.ones(1), 0))
    assert verdict.update is not None
    np.testing.assert_allclose(verdict.update, 1.5 / excess)


def test_who_answers_first_does_not_say_what_the_middle_is() -> None:
    agreement = Agreement(size=300, clients=CLIENTS, seed=0)
    for _ in range(5):
        for hostile in (0, 1):
            agreement.observe(hostile, -np.ones(300))
    assert np.isnan(agreement.values()).all()
    for _ in range(3):
        for client in range(CLIENTS):
            agreement.observe(client, np.ones(300) * (-1 if client < 2 else 1))
    assert (agreement.values()[:2] < -0.5).all()
    assert (agreement.values()[2:] > 0.5).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("apart", [1.0, 20.0])
def test_honest_clients_who_want_different_things_are_not_quarantined(
    apart: float, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the points that they want are four times as far apart as the way to the middle."""
    monkeypatch.setattr(f"{__name__}.APART", apart * APART)
    _, world = outcome("quadratic", None, 0, policy=policy)
    assert all(client.status == "alive" for client in world.server.clients)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_the_digits_stay_within_a_tenth(name: str, policy: str) -> None:
    accuracy, _ = outcome("digits", ATTACKS[name], 2, policy=policy)
    assert accuracy >= 0.9 * without("digits", 2, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("problem", UPDATES)
def test_honest_runs_lose_at_most_one_percent(problem: str, policy: str) -> None:
    screened, world = outcome(problem, None, 0, policy=policy)
    assert abs(screened - without(problem, 0, policy)) <= 0.01
    assert world.server.counts.refused == 0


def test_unscreened_one_client_ruins_the_model() -> None:
    """What the screen is for."""
    distance, _ = outcome("quadratic", ATTACKS["sign flip"], 1, screens=())
    assert distance > 1e6


@pytest.mark.parametrize("rule", [None, AsyncSGD()])
@pytest.mark.parametrize("planned", [True, False])
def test_a_free_rider_gets_at_most_twice_its_share(rule: AsyncSGD | None, planned: bool) -> None:
    _, world = outcome(
        "quadratic", ATTACKS["free rider"], 1, policy="never-queue", rule=rule, planned=planned
    )
    assert world.server.clients[0].used <= 2.5 / (CLIENTS - 1 + 2) * UPDATES["quadratic"]


def test_without_a_limit_it_takes_nearly_all() -> None:
    _, world = outcome(
        "quadratic", ATTACKS["free rider"], 1, policy="never-queue", largest_speed=0.0
    )
    assert world.server.clients[0].used > 0.9 * UPDATES["quadratic"]


def test_the_median_of_a_buffer_lets_three_of_ten_do_less_than_the_norm_alone() -> None:
    """With the attack that the norm alone does least about."""
    name = "just below the bound"
    base = without("quadratic", 3, "routed")
    clipped, _ = outcome("quadratic", ATTACKS[name], 3, quarantine=UNWATCHED)
    screens = (Norm(), Median(places=CLIENTS))
    attacked, world = outcome("quadratic", ATTACKS[name], 3, screens=screens, quarantine=UNWATCHED)
    assert attacked - base < 0.6 * (clipped - base)
    assert attacked <= base + 0.12
    assert world.server.state.version < 0.5 * UPDATES["quadratic"], "several updates make a step"


@pytest.mark.parametrize("places", [5, CLIENTS])
def test_clients_that_never_answer_do_not_stop_the_median(places: int) -> None:
    """Clients 0 and 5, who share a place of five; or 0 and 1, of two places of ten."""
    absent = (0, 5) if places == 5 else (0, 1)
    guard = Median(places=places).guard(1, CLIENTS, None)
    steps = []
    for round_ in range(20):
        for client in set(range(CLIENTS)) - set(absent):
            given = Submission(np.array([1.0]), client, np.ones(1), round_)
            verdict = guard.judge(given)
            if verdict.outcome == "apply":
                assert verdict.update is not None
                steps.append(float(verdict.update[0]))
    assert sum(steps) > 20 * (CLIENTS - 2) - 4 * places - CLIENTS, "every update moved the model"


def referred(name: str, hostile: int, policy: str = "routed") -> tuple[float, VirtualClients]:
    """The quadratic under attack, with a noisy gradient at the server to compare updates with."""
    server_sees = np.random.default_rng(11)

    def reference(weights: np.ndarray, number: int) -> np.ndarray:
        return CURVATURE * (weights - TARGET) + server_sees.normal(size=SIZE) / np.sqrt(SIZE)

    screens = (Norm(), Reference())
    return outcome(
        "quadratic", ATTACKS[name], hostile, policy=policy, screens=screens, reference=reference
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ATTACKS)
def test_with_the_reference_the_final_distance_is_within_a_tenth(name: str, policy: str) -> None:
    """Of the final distance itself, not of the way."""
    distance, _ = referred(name, 2, policy)
    assert distance <= 1.1 * without("quadratic", 2, policy)


@pytest.mark.parametrize("name", ["sign flip", "scaled noise", "colluding"])
def test_the_reference_keeps_a_hostile_majority_out(name: str) -> None:
    attacked, world = referred(name, 6)
    assert attacked <= without("quadratic", 6, "routed") + 0.1
    assert not any(client.refused for client in world.server.clients[6:]), "no honest one is blamed"


def test_a_client_that_always_points_away_is_quarantined() -> None:
    _, world = outcome("digits", ATTACKS["sign flip"], 2)
    out = [client.number for client in world.server.clients if client.status == "quarantined"]
    assert out == [0, 1]
    honest = world.server.agreement.values()[2:]
    limit = world.server.quarantine.agreement
    assert (honest > limit / 2).all(), "no honest client comes half way to the limit"
    assert np.mean(honest) > 0.0


def test_agreement_survives_a_checkpoint() -> None:
    first = Agreement(size=300, clients=4, seed=1)
    for client in range(4):
        first.observe(client, np.random.default_rng(client).normal(size=300) + 1.0)
    second = Agreement(size=300, clients=4, seed=1)
    second.restore(first.record())
    np.testing.assert_array_equal(first.values(), second.values())
    for agreement in (first, second):
        agreement.observe(0, np.ones(300))
    np.testing.assert_array_equal(first.values(), second.values())
    earlier = {name: first.record()[name] for name in ("sketches", "seen")}
    third = Agreement(size=300, clients=4, seed=1)
    third.restore(earlier)
    third.observe(0, np.ones(300))
    assert np.isfinite(third.values()[0])
    assert np.isnan(third.values()[1:]).all(), "earlier versions kept no more"
