"""Hostile clients that answer before the others, or know what the server sends: what they can do.

The bound of the screen ``norm`` is a theorem (`sojourn.deployment.guard.norm`); Hypothesis looks for
arrivals that violate it.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st, target

from sojourn._support.ledger import digest_of_arrays
from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard import Guard, GuardState, Norm, Submission
from sojourn.deployment.guard.agreement import WIDTH, Agreement, group_apart
from sojourn.deployment.guard.norm import NormState
from sojourn.deployment.guard.screens import tolerated
from sojourn.errors import InvalidFile
from sojourn.rules import AsyncSGD
from tests.deployment.attacks import Attack, run
from tests.deployment.digits_task import TEST, Softmax, digits, shares

FIRST = 1e-3
"""Seconds of a hostile client's answer; an honest one takes 1 on average."""


def _huge(honest: np.ndarray, count: int, norm: float) -> np.ndarray:
    """1e6 towards the first class, whatever is asked."""
    update = np.zeros_like(honest)
    update[:64] = -1e6 / 8
    return update


ATTACKS = {
    "huge": Attack(_huge, seconds=FIRST),
    "sign flip": Attack(lambda honest, count, norm: -honest, seconds=FIRST),
}


def accuracy(
    clients: int, hostile: int, attack: Attack | None, policy: str, seed: int = 0
) -> float:
    """Mean test accuracy of the last quarter, softmax regression on the digits."""
    x, y = digits()
    held = shares(clients)
    updates, tail = 60 * clients, []

    def gradient(weights: np.ndarray, task: object) -> np.ndarray:
        if task.number > 0.75 * updates and task.number % 10 == 0:  # type: ignore[attr-defined]
            guess = (x[:TEST] @ weights[:640].reshape(10, 64).T + weights[640:]).argmax(axis=1)
            tail.append(float((guess == y[:TEST]).mean()))
        own_x, own_y = held[task.client]  # type: ignore[attr-defined]
        random = np.random.default_rng([seed, task.client, task.ordinal])  # type: ignore[attr-defined]
        batch = random.integers(0, len(own_y), 32)
        with np.errstate(divide="ignore", over="ignore"):
            found = Softmax(own_x[batch], own_y[batch]).loss_and_gradient(weights, 0, 0, 0)[1]
        return found.astype(np.float32)

    run(
        gradient,
        np.zeros(650, dtype=np.float32),
        attack=attack,
        hostile=hostile,
        updates=updates,
        learning_rate=0.2,
        policy=policy,
        clients=clients,
        seed=seed,
    )
    return float(np.mean(tail))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    ("clients", "policy"),
    [
        (20, "routed"),
        (30, "never-queue"),
        *(
            pytest.param(n, policy, marks=pytest.mark.slow)
            for n in (10, 30, 50, 100)
            for policy in ("routed", "never-queue")
        ),
    ],
)
def test_a_fifth_that_answers_first_does_not_own_the_model(
    attack: str, clients: int, policy: str
) -> None:
    without = accuracy(clients, clients // 5, None, policy)
    attacked = accuracy(clients, clients // 5, ATTACKS[attack], policy)
    assert attacked >= 0.9 * without


class Arrivals:
    """Clients that come, go and answer in any order; the first ``hostile`` of them send what they like."""

    def __init__(self, clients: int, hostile: int) -> None:
        self.guard = GuardState(Guard(agreement=-1.0), size=1, clients=clients)
        self.hostile = hostile
        self.living, self.heard = list(range(clients)), set[int]()
        for client in self.living:
            self.guard.lives(client, True)
        self.largest_honest = 0.0

    def leave(self, client: int) -> None:
        """Unless of those who then take part too many were hostile: that is the theorem's condition."""
        left = [i for i in self.living if i != client]
        part = self.heard | set(left)
        if left and sum(i < self.hostile for i in part) <= tolerated(len(part)):
            self.living = left
            self.guard.lives(client, False)

    def join(self, client: int) -> None:
        self.living = sorted({*self.living, client})
        self.guard.lives(client, True)

    def answer(self, client: int, norm: float) -> float:
        """What counts of the answer; after that, what may count at most is `limit`."""
        if client not in self.living:
            return 0.0
        self.heard.add(client)
        if client >= self.hostile:
            self.largest_honest = max(self.largest_honest, norm)
        fleet = self.guard.fleet(client)
        given = Submission(np.array([norm]), client, np.zeros(1), 0, fleet=fleet)
        verdict = self.guard.judge(given)
        return 0.0 if verdict.update is None else abs(float(verdict.update[0]))

    @property
    def limit(self) -> float:
        return Norm().largest_ratio * self.largest_honest * (1 + 1e-12)


Event = tuple[str, float, float, float]
EVENTS = st.tuples(
    st.sampled_from(["answer", "answer", "answer", "leave", "join"]),
    st.floats(0.0, 1.0, exclude_max=True),
    st.sampled_from([1e-30, 1e-3, 0.5, 1.0, 2.0, -2.0, 3.0, 5.0, -5.0, 1e3, -1e3, 1e30]),
    st.floats(0.5, 2.0),
)
"""What happens, to whom, and what a hostile or an honest client sends: it points away if it is negative."""


@settings(max_examples=200, deadline=None)
@given(
    clients=st.integers(5, 20),
    fewer=st.sampled_from([0, 0, 0, 1, 2]),
    opening=st.lists(EVENTS, max_size=20),
    events=st.lists(EVENTS, max_size=40),
)
@example(10, 0, [("answer", i / 3, 1e30, 1.0) for i in range(3)] + [("leave", 0.0, 1.0, 1.0)], [])
def test_the_bound_is_at_most_an_honest_norm_whatever_arrives(
    clients: int, fewer: int, opening: list[Event], events: list[Event]
) -> None:
    """In the opening hostile clients are alone; the search is led to where they have most influence."""
    arrivals = Arrivals(clients, max(0, tolerated(clients) - fewer))
    worst = 0.0
    among_all = [(clients, event) for event in events]
    # After the opening, one of the hostile answers before anybody else does.
    among_hostile = [*opening, ("answer", 0.99, 1e30, 1.0)] if arrivals.hostile else []
    for among, (kind, who, hostile_norm, honest_norm) in [
        *((arrivals.hostile, event) for event in among_hostile),
        *among_all,
    ]:
        client = int(who * among)
        if kind == "answer":
            sent = hostile_norm if client < arrivals.hostile else honest_norm
            counts = arrivals.answer(client, sent)
            assert counts <= arrivals.limit
            worst = max(worst, counts / arrivals.limit if counts else 0.0)
        else:
            (arrivals.leave if kind == "leave" else arrivals.join)(client)
    target(worst)


@given(st.lists(st.floats(0.0, 1e300), min_size=2, max_size=2).map(sorted), st.booleans())
@example([2.5, 2.5 * (1 + 1e-9)], False)
@example([6.25, 6.25 * (1 + 1e-9)], False)
def test_who_typically_sends_more_never_counts_for_more(
    excesses: list[float], opposed: bool
) -> None:
    """Of one update of the norm allowed; nobody counts for less than who is opposed, or for more than that norm."""
    less, more = (NormState._of_typical(excess, opposed) for excess in excesses)
    assert 1.0 >= less >= more >= NormState._of_typical(excesses[1], True)
    if excesses[1] <= excesses[0] * (1 + 1e-6):
        assert more >= less * (1 - 3e-6), "it does not jump"


def test_clients_that_left_do_not_stop_the_others() -> None:
    """Of a hundred listed clients ten are there: three in ten of these are waited for."""
    state = Norm().begin(1, 100, None)
    outcomes = [
        state.judge(Submission(np.ones(1), client, np.zeros(1), 0, fleet=10)).outcome
        for client in range(10)
    ]
    assert outcomes == ["hold"] * 3 + ["apply"] * 7


def test_without_the_key_the_null_space_of_a_sketch_is_not_found() -> None:
    """An update that looks honest under a guessed key points away under the real one."""
    size, clients = 4 * WIDTH, 10
    honest = np.random.default_rng(5).normal(size=size)

    def sketch(key: bytes, vector: np.ndarray) -> np.ndarray:
        signs = Agreement(size=size, clients=clients, key=key)._signs
        return (vector * signs).reshape(-1, WIDTH).sum(axis=0)

    def hostile(key: bytes) -> np.ndarray:
        """Minus the honest update where this key does not see it, the honest one where it does."""
        signs = Agreement(size=size, clients=clients, key=key)._signs
        seen = np.tile(sketch(key, honest), size // WIDTH) * signs / (size // WIDTH)
        return seen - (honest - seen)

    def agreement_with(update: np.ndarray) -> float:
        agreement = Agreement(size=size, clients=clients, key=b"the server's")
        for _ in range(5):
            for client in range(clients):
                agreement.observe(client, update if client < 2 else honest)
        return float(agreement.values()[0])

    assert agreement_with(hostile(b"the server's")) > 0.9  # the attack works for who has the key
    assert agreement_with(hostile(b"0")) < 0.1


@pytest.mark.parametrize("clients", [10, 30, 100])
def test_a_group_of_at_most_three_in_ten_is_found_and_no_other(clients: int) -> None:
    random = np.random.default_rng(clients)
    most = tolerated(clients)
    rows = random.normal(size=(clients, WIDTH))
    assert not group_apart(rows, most).any(), "noise has no group"
    together = rows.copy()
    together[: clients // 5] = 1.5
    assert group_apart(together, most)[: clients // 5].all()
    assert np.count_nonzero(group_apart(together, most)) == most
    halves = rows + 3.0 * (np.arange(clients) % 2)[:, np.newaxis]
    assert not group_apart(halves, most).any(), "neither half is a minority"
    assert not group_apart(rows[:1], 0).any()


def test_colluders_that_noise_would_hide_are_found() -> None:
    """Of a hundred clients whose own data move their updates more than what they have in common."""
    clients, hostile, size = 100, 20, 4 * WIDTH
    random = np.random.default_rng(6)
    common = random.normal(size=size)
    own = 3.5 * random.normal(size=(clients, size))
    guard = GuardState(Guard(), size=size, clients=clients, key=b"secret")
    for _ in range(10):
        for client in range(clients):
            update = -common if client < hostile else common + own[client]
            guard.agreement.observe(client, update + 0.1 * random.normal(size=size))
    away = [guard.points_away(client) is not None for client in range(clients)]
    assert all(away[:hostile])
    assert not any(away[hostile:])


def test_a_deployment_draws_a_key_that_does_not_follow_from_its_seed(tmp_path: Path) -> None:
    def server(key: bytes) -> Dispatcher:
        return Dispatcher(
            np.zeros(300),
            rule=AsyncSGD(),
            routing=[0.2] * 5,
            concurrency=5,
            learning_rate=0.1,
            key=key,
        )

    first, second = server(b"one"), server(b"two")
    for client in (0, 1, 2, 3, 4):
        first.guard.agreement.observe(client, np.ones(300))
    write_checkpoint(tmp_path / "c.npz", first)
    restore_checkpoint(tmp_path / "c.npz", second)
    assert second.guard.agreement.key == b"one"
    assert np.array_equal(second.guard.agreement._signs, first.guard.agreement._signs)


def test_an_edited_checkpoint_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """For its digest; and where that was made to fit, if it is no state of such a server."""

    def server() -> Dispatcher:
        return Dispatcher(
            np.ones(3), rule=AsyncSGD(), routing=[0.5, 0.5], concurrency=2, learning_rate=0.1
        )

    path = tmp_path / "c.npz"
    write_checkpoint(path, server())
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "digest"}
        digest = archive["digest"]
    meta = json.loads(arrays["meta"].tobytes())

    def edited(**changes: object) -> Path:
        values = {
            **arrays,
            "meta": np.frombuffer(json.dumps(meta | changes).encode(), dtype=np.uint8),
        }
        with pytest.raises(
            InvalidFile, match=r"edited\.npz: (damaged, or edited by hand|a checkpoint of another)"
        ):
            restore_checkpoint(written("edited.npz", values, digest), server())
        return written("edited.npz", values, digest_of_arrays(values))

    def written(name: str, values: dict[str, np.ndarray], digest: np.ndarray) -> Path:
        np.savez(tmp_path / name, **values, digest=digest)
        return tmp_path / name

    edits: list[dict[str, object]] = [
        {key: wrong} for key in meta for wrong in (None, "x", [], {}, 7, -1)
    ]
    for edit in edits:
        if meta[next(iter(edit))] == next(iter(edit.values())):
            continue
        try:
            restore_checkpoint(edited(**edit), server())
        except InvalidFile as refused:
            assert "edited.npz" in str(refused)
    spoilt = {**arrays, "weights": np.array([1.0, np.nan, 0.0])}
    written("nan.npz", spoilt, digest_of_arrays(spoilt))
    with pytest.raises(InvalidFile, match="not finite"):
        restore_checkpoint(tmp_path / "nan.npz", server())


def test_the_default_guard_is_what_is_promised() -> None:
    assert Guard().screens == (Norm(),)
