"""Ten attacks by one and by two of ten clients, on a quadratic and on the digits.

Distances are relative to where the run began, and like accuracies they are means over the last
quarter of the run, because single updates are noisy.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from sojourn.deployment import Dispatcher
from sojourn.deployment.guard import Guard, GuardState, Median, Norm, Reference, Submission
from sojourn.deployment.guard.agreement import Agreement
from sojourn.deployment.guard.screens import Screen
from sojourn.deployment.tasks import Task
from sojourn.rules import AsyncSGD
from tests.deployment.attacks import ATTACKS, CLIENTS, Attack, run
from tests.deployment.digits_task import TEST, Softmax, digits, shares
from tests.deployment.virtual_clock import VirtualClients

SIZE = 50
TARGET = np.ones(SIZE)
CURVATURE = np.linspace(0.5, 1.5, SIZE)
APART = np.random.default_rng(3).normal(scale=0.2, size=(CLIENTS, SIZE))
APART -= APART.mean(axis=0)
UPDATES = {"quadratic": 800, "digits": 600}
POLICIES = ("routed", "never-queue")
UNWATCHED = -1.0
"""The agreement at which no client is put into quarantine."""
OFF = Guard(screens=(), largest_speed=0.0)
EVERY_ATTACK = [
    pytest.param(name, policy, marks=[pytest.mark.slow] if (i + j) % 2 else [])
    for i, name in enumerate(ATTACKS)
    for j, policy in enumerate(POLICIES)
]
"""Under both policies, of which one in turn is not slow."""
FEW, MANY = range(2), range(12)
"""Seeds: single runs end some 5 % nearer or further away by chance."""


def quadratic(tail: list[float], seed: int) -> Callable[[np.ndarray, Task], np.ndarray]:
    def gradient(weights: np.ndarray, task: Task) -> np.ndarray:
        if task.number > 0.75 * UPDATES["quadratic"]:
            tail.append(float(np.linalg.norm(weights - TARGET) / np.linalg.norm(TARGET)))
        noise = np.random.default_rng([7, seed, task.client, task.ordinal]).normal(size=SIZE)
        return CURVATURE * (weights - TARGET - APART[task.client]) + noise / np.sqrt(SIZE)

    return gradient


@cache
def samples() -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    x, y = digits()
    return x[:TEST], y[:TEST], shares(CLIENTS)


def softmax(tail: list[float], seed: int) -> Callable[[np.ndarray, Task], np.ndarray]:
    x, y, held = samples()

    def gradient(weights: np.ndarray, task: Task) -> np.ndarray:
        if task.number > 0.75 * UPDATES["digits"] and task.number % 10 == 0:
            guess = (x @ weights[:640].reshape(10, 64).T + weights[640:]).argmax(axis=1)
            tail.append(float((guess == y).mean()))
        own_x, own_y = held[task.client]
        random = np.random.default_rng([seed, task.client, task.ordinal])
        batch = random.integers(0, len(own_y), 32)
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
    guard: Guard | None = None,
    seed: int = 0,
    **options: object,
) -> tuple[float, VirtualClients]:
    tail: list[float] = []
    is_quadratic = problem == "quadratic"
    world = run(
        quadratic(tail, seed) if is_quadratic else softmax(tail, seed),
        np.zeros(SIZE) if is_quadratic else np.zeros(650, dtype=np.float32),
        attack=attack,
        hostile=hostile,
        updates=UPDATES[problem],
        learning_rate=0.05 if is_quadratic else 0.2,
        policy=policy,
        guard=guard,
        seed=seed,
        **options,  # type: ignore[arg-type]
    )
    return float(np.mean(tail)), world


@cache
def without(problem: str, hostile: int, policy: str, seeds: range = FEW) -> float:
    """The mean of runs in which those clients are not there, and nothing is screened."""
    options = {"policy": policy, "guard": OFF}
    found = [outcome(problem, None, hostile, seed=seed, **options)[0] for seed in seeds]  # type: ignore[arg-type]
    return float(np.mean(found))


def attacked(problem: str, name: str, hostile: int, policy: str, seeds: range) -> float:
    """The mean of runs in which they attack."""
    attack = ATTACKS[name]
    found = [outcome(problem, attack, hostile, policy=policy, seed=seed)[0] for seed in seeds]
    return float(np.mean(found))


@pytest.mark.parametrize(("name", "policy"), EVERY_ATTACK)
def test_attacks_on_the_quadratic_stay_within_a_tenth(name: str, policy: str) -> None:
    """Of the final distance itself."""
    distance = attacked("quadratic", name, 2, policy, FEW)
    assert distance <= 1.1 * without("quadratic", 2, policy)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("hostile", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("problem", UPDATES)
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_stay_within_a_tenth_over_many_seeds(
    name: str, problem: str, policy: str, hostile: int
) -> None:
    found = attacked(problem, name, hostile, policy, MANY)
    alone = without(problem, hostile, policy, MANY)
    assert found <= 1.1 * alone if problem == "quadratic" else found >= 0.9 * alone


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("problem", UPDATES)
def test_honest_runs_lose_at_most_one_percent_over_many_seeds(problem: str, policy: str) -> None:
    """Of the distance or accuracy itself, up to two standard errors of what the seeds tell."""
    options = {"policy": policy, "guard": OFF}
    loss = [
        outcome(problem, None, 0, policy=policy, seed=seed)[0]
        - outcome(problem, None, 0, seed=seed, **options)[0]  # type: ignore[arg-type]
        for seed in range(40)
    ]
    mean = np.mean(loss) if problem == "quadratic" else -np.mean(loss)
    error = np.std(loss, ddof=1) / np.sqrt(len(loss))
    assert mean - 2.0 * error <= 0.01 * without(problem, 0, policy, range(40))
    assert error < 0.008 * without(problem, 0, policy, range(40)), "the seeds tell too little"


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_for_its_moment_is_bounded_by_the_norm_alone(policy: str) -> None:
    """Honest until the clients disagree anyway, and then all the influence that the norm allows.

    Two that turn alike may be found as a group; nobody else is suspected.
    """

    def patient(honest: np.ndarray, count: int, norm: float) -> object:
        return honest if count < 30 else np.full_like(honest, 1.49 * norm / np.sqrt(honest.size))

    distance, world = outcome("quadratic", Attack(patient), 2, policy=policy)
    assert distance <= without("quadratic", 2, policy) + 0.1
    honest = world.server.clients[2:]
    assert not any(client.status == "quarantined" for client in honest)


@pytest.mark.parametrize("opposed", [True, False])
@pytest.mark.parametrize("excess", [0.5, 1.0, 2.0, 4.0, 6.25, 10.0, 20.0])
def test_who_always_sends_too_much_has_the_less_influence(excess: float, opposed: bool) -> None:
    """At once if it is opposed to the others, from 2.5 times what is allowed if it is not."""
    guard = Norm().begin(1, CLIENTS, None)
    for _ in range(5):
        for client in range(CLIENTS):
            sent = np.array([1.5 * excess if client == 0 else 1.0])
            guard.judge(Submission(sent, client, np.ones(1), 0, opposed=opposed))
    last = Submission(np.array([1.5 * excess]), 0, np.ones(1), 0, opposed=opposed)
    verdict = guard.judge(last)
    assert verdict.update is not None
    factors = {4.0: 6.25 / 16.0} | dict.fromkeys((0.5, 1.0, 2.0), 1.0)
    factor = min(1.0, 1.0 / excess) if opposed else factors.get(excess, 1.0 / excess)
    np.testing.assert_allclose(verdict.update, 1.5 * min(1.0, excess) * factor)


def test_large_updates_are_spared_only_where_they_do_not_point_away() -> None:
    """What a client sent lately decides, not what it sent before; with samples at the server nobody is spared."""

    def counts(turns: int, *screens: Screen) -> float:
        """What counts of a large update of client 0, whose last ones, so many, had another direction."""
        guard = GuardState(
            Guard(screens=(Norm(), *screens), agreement=UNWATCHED),
            size=300,
            clients=CLIENTS,
            reference=lambda weights, number: np.ones(300),
        )
        for round_ in range(40):
            for client in range(CLIENTS):
                sent = np.full(300, 3.0 if client == 0 else 1.0)
                if client == 0 and round_ >= 40 - turns:
                    sent *= -1.0
                verdict = guard.judge(Submission(sent, client, np.zeros(300), round_), round_)
                if client == 0:
                    last = 0.0 if verdict.update is None else abs(float(verdict.update[0]))
        return last

    assert counts(0) == pytest.approx(1.5)
    assert counts(12) == pytest.approx(0.75), "its agreement since the run began is still positive"
    assert counts(0, Reference()) == pytest.approx(0.75)


@pytest.mark.parametrize("sent", [0.0, 0.01, 500.0])
def test_who_sends_next_to_nothing_or_far_too_much_is_not_used(sent: float) -> None:
    """Until it sends something; where most clients send nothing, as at an optimum, everybody is."""
    guard = GuardState(Guard(), size=1, clients=CLIENTS)

    def judge(client: int, norm: float) -> str:
        return guard.screened(Submission(np.array([norm]), client, np.ones(1), 0)).outcome

    for _ in range(9):
        last = [judge(client, sent if client == 0 else 1.0) for client in range(CLIENTS)]
    assert last == ["refuse", *["apply"] * (CLIENTS - 1)]
    assert [judge(0, 1.0) for _ in range(3)][-1] == "apply"
    for _ in range(20):
        last = [judge(client, 0.0) for client in range(4)]
    assert last == ["apply"] * 4, "the others are gone"
    for _ in range(9):
        last = [judge(client, 0.0) for client in range(CLIENTS)]
    assert last == ["apply"] * CLIENTS


def test_gradients_may_be_large() -> None:
    """Norms are compared with those of others, not with that of the weights."""
    for clients in (2, 3, CLIENTS):
        guard = Norm().begin(1, clients, None)
        for _ in range(2):
            for client in range(clients):
                verdict = guard.judge(Submission(np.array([1e7]), client, np.zeros(1), 0))
        assert verdict.outcome == "apply"
        bad = guard.judge(Submission(np.array([1e15]), 0, np.zeros(1), 0))
        assert bad.outcome == "refuse"


def test_among_few_one_that_is_refused_makes_no_room_for_the_next() -> None:
    guard = Norm().begin(3, 4, None)
    for client in (2, 3):
        verdict = guard.judge(Submission(np.full(3, 1e30), client, np.zeros(3), 0))
        assert verdict.outcome == "refuse"


def test_who_answers_first_is_judged_as_soon_as_others_are_heard() -> None:
    """What it sent until then counts, for it and against it."""
    agreement = Agreement(size=300, clients=CLIENTS, key=b"0")
    agreement.observe(0, -np.ones(300), 0)
    agreement.observe(0, -np.ones(300), 1)
    for client in range(2, 8):
        agreement.observe(client, np.ones(300), 2)
    value, evidence = agreement.of(0)
    assert value < -0.9
    assert evidence == pytest.approx(2.0)


def test_who_is_slow_is_compared_with_what_others_sent_about_the_same_model() -> None:
    """Its answer to the first model comes when that is long past, and all want something else."""
    agreement = Agreement(size=300, clients=CLIENTS, key=b"0")
    early, late = np.ones(300), np.tile([1.0, -1.0], 150)
    for round_ in range(400):
        agreement.observe(1 + round_ % 9, early if round_ < 100 else late, round_)
    assert agreement.of(0) == pytest.approx((np.nan, 0.0), nan_ok=True)
    agreement.observe(0, early, 5)
    value, evidence = agreement.of(0)
    assert value > 0.99
    assert evidence > 0.9
    agreement.forget(0)
    agreement.observe(0, -early, 5)
    assert agreement.of(0)[0] < -0.99


def test_a_late_reply_moves_nothing_but_tells_who_sent_it() -> None:
    """A liar that answers after its deadline is compared with what others sent about that model."""
    server = Dispatcher(
        np.zeros(50),
        rule=AsyncSGD(),
        routing=np.full(CLIENTS, 1 / CLIENTS),
        concurrency=CLIENTS,
        learning_rate=0.1,
    )
    for client in range(CLIENTS):
        server.joined(client, now=0.0)
    tasks = {task.client: task.number for task in server.start(now=0.0).send}
    for client in range(1, CLIENTS):
        server.completed(tasks[client], np.ones(50), now=1.0, client=client)
    server.tick(now=100.0)
    assert server.clients[0].status == "overdue"
    before = server.state.version
    server.completed(tasks[0], -np.ones(50), now=101.0, client=0)
    assert (server.counts.late, server.state.version) == (1, before)
    assert server.guard.agreement.of(0) == (pytest.approx(-1.0), pytest.approx(1.0))
    assert server.clients[0].status == "quarantined"
    server.set_quarantine(0, None, now=102.0)
    assert server.guard.agreement.of(0)[1] == 0.0, "let out, it is judged anew"
    server.set_quarantine(1, "by the operator", now=103.0)
    assert server.guard.typical_norms[1] == pytest.approx(50**0.5)
    server.set_quarantine(1, None, now=104.0)
    assert np.isnan(server.guard.typical_norms[1]), "and has no vote before it is heard"


def test_who_answers_first_does_not_say_what_the_middle_is() -> None:
    agreement = Agreement(size=300, clients=CLIENTS, key=b"0")
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


@pytest.mark.parametrize("name, policy", EVERY_ATTACK)
def test_attacks_on_the_digits_stay_within_a_tenth(name: str, policy: str) -> None:
    accuracy, _ = outcome("digits", ATTACKS[name], 2, policy=policy)
    assert accuracy >= 0.9 * without("digits", 2, policy, range(1))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("problem", UPDATES)
def test_honest_runs_lose_at_most_one_percent(problem: str, policy: str) -> None:
    runs = [outcome(problem, None, 0, policy=policy, seed=seed) for seed in FEW]
    gained = np.mean([found for found, _ in runs]) - without(problem, 0, policy)
    assert (-gained if problem == "digits" else gained) <= 0.01
    assert not any(world.server.counts.refused for _, world in runs)


def test_unscreened_one_client_ruins_the_model() -> None:
    """What the screen is for."""
    distance, _ = outcome("quadratic", ATTACKS["sign flip"], 1, guard=Guard(screens=()))
    assert distance > 1e6


@pytest.mark.parametrize("rule", [None, AsyncSGD()])
@pytest.mark.parametrize("planned", [True, False])
def test_a_free_rider_gets_at_most_twice_its_share(rule: AsyncSGD | None, planned: bool) -> None:
    _, world = outcome(
        "quadratic", ATTACKS["free rider"], 1, policy="never-queue", rule=rule, planned=planned
    )
    assert world.server.clients[0].used <= 2.5 / (CLIENTS - 1 + 2) * UPDATES["quadratic"]


def test_without_a_limit_it_takes_nearly_all() -> None:
    _, world = outcome("quadratic", ATTACKS["free rider"], 1, policy="never-queue", guard=OFF)
    assert world.server.clients[0].used > 0.9 * UPDATES["quadratic"]


def test_the_median_of_a_buffer_lets_three_of_ten_do_less_than_the_norm_alone() -> None:
    """With the attack that the norm alone does least about."""
    name = "just below the bound"
    base = without("quadratic", 3, "routed")
    clipped, _ = outcome("quadratic", ATTACKS[name], 3, guard=Guard(agreement=UNWATCHED))
    guard = Guard(screens=(Norm(), Median(places=CLIENTS)), agreement=UNWATCHED)
    attacked, world = outcome("quadratic", ATTACKS[name], 3, guard=guard)
    assert attacked - base < 0.6 * (clipped - base)
    assert attacked <= base + 0.12
    assert world.server.state.version < 0.5 * UPDATES["quadratic"], "several updates make a step"


@pytest.mark.parametrize("places", [5, CLIENTS])
def test_clients_that_never_answer_do_not_stop_the_median(places: int) -> None:
    """Clients 0 and 5, who share a place of five; or 0 and 1, of two places of ten."""
    absent = (0, 5) if places == 5 else (0, 1)
    guard = Median(places=places).begin(1, CLIENTS, None)
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

    guard = Guard(screens=(Norm(), Reference()))
    return outcome(
        "quadratic", ATTACKS[name], hostile, policy=policy, guard=guard, reference=reference
    )


@pytest.mark.parametrize("name, policy", EVERY_ATTACK)
def test_with_the_reference_the_final_distance_is_within_a_tenth(name: str, policy: str) -> None:
    """Of the final distance itself, not of the way."""
    distance, _ = referred(name, 2, policy)
    assert distance <= 1.1 * without("quadratic", 2, policy)


@pytest.mark.parametrize("name", ["sign flip", "scaled noise", "colluding"])
def test_the_reference_keeps_a_hostile_majority_out(name: str) -> None:
    attacked, world = referred(name, 6)
    assert attacked <= without("quadratic", 6, "routed") + 0.1
    assert not any(client.refused for client in world.server.clients[6:]), "no honest one is blamed"


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_client_that_always_points_away_is_quarantined(policy: str, seed: int) -> None:
    _, world = outcome("quadratic", ATTACKS["sign flip"], 2, policy=policy, seed=seed)
    out = [client.number for client in world.server.clients if client.status == "quarantined"]
    assert out == [0, 1]
    honest = world.server.guard.agreement.values()[2:]
    assert (honest > -0.25).all(), "no honest client comes half way to the limit"


@pytest.mark.parametrize("seed", FEW)
def test_noisy_gradients_tell_less_but_who_points_away_stands_out(seed: int) -> None:
    _, world = outcome("digits", ATTACKS["sign flip"], 2, seed=seed)
    out = [client.number for client in world.server.clients if client.status == "quarantined"]
    assert out == [0, 1]
    agreement = world.server.guard.agreement.values()
    assert agreement[:2].max() < 0.0
    assert agreement[2:].min() > 0.1


def test_numbers_that_float32_just_holds_do_not_blind_the_rest() -> None:
    """Their sums it does not hold: infinite sketches would make everybody's median NaN."""
    agreement = Agreement(size=1000, clients=CLIENTS, key=b"0")
    for round_ in range(3):
        for client in range(CLIENTS):
            sent = np.full(1000, 3e38 if client == 0 else 1.0, dtype=np.float32)
            agreement.observe(client, -sent if client == 1 else sent, round_)
    found = agreement.values()
    assert np.isfinite(found).all()
    assert found[1] < -0.9
    assert found[2:].min() > 0.9


def test_agreement_survives_a_checkpoint() -> None:
    first = Agreement(size=300, clients=4, key=b"1")
    for client in range(4):
        first.observe(client, np.random.default_rng(client).normal(size=300) + 1.0)
    second = Agreement(size=300, clients=4, key=b"1")
    second.restore(first.record())
    np.testing.assert_array_equal(first.values(), second.values())
    assert not np.isnan(first.recent).all()
    np.testing.assert_array_equal(first.recent, second.recent)
    for agreement in (first, second):
        agreement.observe(0, np.ones(300))
    np.testing.assert_array_equal(first.values(), second.values())
