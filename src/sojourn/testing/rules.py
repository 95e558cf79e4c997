"""Whether a rule keeps what `sojourn.rules.Rule` promises, in virtual time and in deployment."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.dispatch import as_policy
from sojourn.rules import Arrival, Rule, ServerState, check_rule
from sojourn.rules.state import client_part, sent_with, steps_of
from sojourn.testing.stateless import require
from sojourn.types import Vector

CLIENTS, CONCURRENCY, DIMENSION = 3, 3, 5
ARRIVALS = 40


def check_rule_conforms(rule: Rule) -> None:
    """Raise ``AssertionError``, saying what is wrong, unless ``rule`` conforms to the protocol.

    It is run by itself, in a `Dispatcher` (unless its policy is not for deployment) and in a replay,
    each interrupted and resumed from its checkpoint. The replay needs the extra ``train``.

    >>> from sojourn.rules import AsyncSGD, Momentum
    >>> check_rule_conforms(AsyncSGD(server=Momentum()))
    """
    check_attributes(rule)
    for dtype in (np.float32, np.float64):
        check_states(rule, dtype)
    check_client_part(rule)
    check_deployment(rule)
    check_replay(rule)


def check_attributes(rule: Rule) -> None:
    """What the replay and the deployment read of a rule."""
    check_rule(rule)
    require(isinstance(rule.name, str) and bool(rule.name), "name must be text")
    require(rule.sends in ("gradient", "difference"), "sends must be 'gradient' or 'difference'")
    require(isinstance(rule.policy, str), "policy must be the name of a dispatch policy")
    steps = rule.local_steps
    each = steps if isinstance(steps, tuple) else (steps,)
    require(
        all(type(number) is int and number >= 1 for number in each),
        "local_steps must be 1 or more, or a tuple of such numbers",
    )
    own = rule.local_learning_rate
    require(own is None or own > 0, "local_learning_rate must be None or positive")
    require(rule.proximal >= 0, "proximal must not be negative")


def check_states(rule: Rule, dtype: type[np.floating]) -> None:
    """`begin` and `apply` by themselves, for weights of one precision."""
    first = np.linspace(-1.0, 1.0, DIMENSION).astype(dtype)
    start = first.copy()
    state, twin = rule.begin(start, CLIENTS), rule.begin(start, CLIENTS)
    sent = sent_with(rule, state)
    require(
        np.array_equal(sent[:DIMENSION], first),
        "sent must return the weights, and behind them what else clients are to know",
    )
    require(isinstance(state, ServerState), "begin must return a ServerState")
    require(state.version == 0, "begin must return version 0")
    require(np.array_equal(state.weights, first), "begin must keep the weights it is given")
    for name, array in state.arrays.items():
        own = not np.shares_memory(array, twin.arrays[name])
        own = own and not np.shares_memory(array, start)
        require(own, f"begin must give every state an array '{name}' of its own")
    _check_writable(state)
    for arrival in _arrivals(rule, sent):
        before, version, kept = state.weights, state.version, state.weights.copy()
        update = arrival.update.copy()
        state, used = _applied(rule, state, arrival)
        twin, again = _applied(rule, twin, arrival)
        require(type(used) is bool, "apply must return the state and whether it was used, a bool")
        require(np.array_equal(before, kept), "apply must not change weights in place")
        require(np.array_equal(arrival.update, update), "apply must not change an update in place")
        require(state.weights.dtype == dtype, f"weights must stay {np.dtype(dtype)}")
        require(state.weights.shape == (DIMENSION,), "weights must keep their shape")
        require(state.version - version in (0, 1), "apply must make one version at most")
        moved = not np.array_equal(state.weights, kept)
        require(state.version > version or not moved, "weights that change are a new version")
        require(used or state.version == version, "a dropped arrival must make no version")
        _check_writable(state)
        require(used == again, "the same arrivals must be used alike")
        _check_equal(state, twin, "the same arrivals must make the same state")
    require(np.array_equal(start, first), "apply must not change the first weights in place")


def check_client_part(rule: Rule) -> None:
    """What clients carry out, where the rule has such a part: `sojourn.rules.state.ClientPart`."""
    methods = [hasattr(rule, name) for name in ("client_shift", "client_state")]
    require(all(methods) or not any(methods), "client_shift and client_state go together")
    part = client_part(rule)
    if part is None:
        return
    weights = np.linspace(-1.0, 1.0, DIMENSION).astype(np.float32)
    sent = sent_with(rule, rule.begin(weights, CLIENTS))
    own: dict[str, Vector] = {}
    difference = 0.1 * weights.astype(np.float64)
    for _ in range(3):
        before = sent.copy(), {name: array.copy() for name, array in own.items()}
        shift = part.client_shift(sent, own)
        require(shift.shape == (DIMENSION,), "client_shift must return a number for every weight")
        after = dict(part.client_state(sent, own, difference, 2, 0.1))
        again = dict(part.client_state(sent, own, difference, 2, 0.1))
        plain = all(isinstance(array, np.ndarray) for array in after.values())
        require(plain, "client_state must return arrays by name")
        require(_same(after, again), "client_state must return the same for the same task")
        require(
            np.array_equal(sent, before[0]) and _same(own, before[1]),
            "what a client has and what it was sent must not be changed in place",
        )
        own = after


def _same(one: Mapping[str, Vector], other: Mapping[str, Vector]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def check_deployment(rule: Rule) -> None:
    """A `Dispatcher` with this rule, and one that is resumed from its checkpoint."""
    if not as_policy(rule.policy).deployable:
        return
    server = _dispatcher(rule)
    _join(server, now=0.0)
    server.start(now=0.0)
    _answer(server, 17, now=1.0)
    resumed = _dispatcher(rule)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "state.npz", server)
        restore_checkpoint(Path(folder) / "state.npz", resumed)
    _check_equal(resumed.state, server.state, "a checkpoint must keep the whole state")
    _join(resumed, now=50.0)
    _answer(server, 17, now=51.0)
    _answer(resumed, 17, now=51.0)
    counts = server.counts
    require(counts.completed == 34, "every update must be used or dropped")
    require(counts.to_dict() == resumed.counts.to_dict(), "a resumed server must use the same")
    _check_equal(resumed.state, server.state, "a resumed server must go on to the same state")


def check_replay(rule: Rule) -> None:
    """A replay with this rule, and one that is resumed from its checkpoint."""
    from sojourn.training.replay.checkpoint import Checkpoint, CheckpointFile
    from sojourn.training.replay.stack import Stack

    whole = _replay(rule)
    position = whole.beginning(batched=False)
    Stack([whole]).run([position], batched=False)
    part = _replay(rule)
    with tempfile.TemporaryDirectory() as folder:
        file = CheckpointFile(Checkpoint(Path(folder) / "run.checkpoint"), part.identity())
        half = [part.beginning(batched=False)]
        Stack([part]).run(half, batched=False, file=file, until=ARRIVALS // 2)
        positions = file.read()
    require(len(positions) == 1, "a checkpoint must be written")
    Stack([part]).run(positions, batched=False)
    resumed = positions[0]
    _check_equal(resumed.state, position.state, "a resumed replay must come to the same state")
    left = resumed.clients.keys() == position.clients.keys() and all(
        _same(resumed.clients[client], own) for client, own in position.clients.items()
    )
    require(left, "a resumed replay must leave the same with its clients, to the bit")
    same = repr(resumed.rows) == repr(position.rows)
    require(same, "a resumed replay must come to the same history")


def _replay(rule: Rule) -> Any:
    import torch

    from sojourn.fleet import Fleet, Network, uniform_routing
    from sojourn.simulation.simulate import simulate
    from sojourn.training.problem.problem import Problem
    from sojourn.training.replay.run import Replay

    fleet = Fleet([1.0, 2.0, 4.0])
    network = Network(fleet, uniform_routing(fleet), CONCURRENCY)
    schedule = simulate(network, rounds=ARRIVALS, policy=rule.policy, work=rule.local_steps, seed=1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, generator=generator)
    y = (x[:, 0] > 0).long()
    model = torch.nn.Linear(2, 2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    sets = [(x[10 * i :][:10], y[10 * i :][:10]) for i in range(CLIENTS)]
    problem = Problem(model, sets, (x[30:], y[30:]), batch_size=4)
    return Replay(schedule, problem, rule, learning_rate=0.05, seed=1)


def _dispatcher(rule: Rule) -> Dispatcher:
    weights = np.linspace(-1.0, 1.0, DIMENSION).astype(np.float32)
    return Dispatcher(
        weights,
        rule=rule,
        routing=[0.2, 0.3, 0.5],
        concurrency=CONCURRENCY,
        learning_rate=0.05,
        updates=34,
        seed=1,
    )


def _join(server: Dispatcher, now: float) -> None:
    for client in range(CLIENTS):
        server.joined(client, now=now)


def _answer(server: Dispatcher, rounds: int, now: float) -> None:
    """Answer the oldest task that is out, again and again."""
    for t in range(rounds):
        task = server.tasks[min(number for client in server.clients for number in client.out)]
        update = server.weights_of(task)[:DIMENSION] * np.float32(0.1 + 0.1 * (task.ordinal % 3))
        server.completed(task.number, update, now=now + t)


def _arrivals(rule: Rule, sent: Vector) -> Iterator[Arrival]:
    random = np.random.default_rng(1)
    for k in range(ARRIVALS):
        yield Arrival(
            random.normal(size=DIMENSION).astype(sent.dtype),
            sent.copy(),
            client=k % CLIENTS,
            staleness=(0, 0, 0, 3)[k % 4],
            share=0.25,
            divisor=0.75,
            round=k,
            progress=k / ARRIVALS,
            loss=1.0 / (k + 1),
            steps=steps_of(rule, k % CLIENTS),
        )


def _applied(rule: Rule, state: ServerState, arrival: Arrival) -> tuple[ServerState, bool]:
    made = rule.apply(state, arrival, learning_rate=0.05, clients=CLIENTS, concurrency=CONCURRENCY)
    pair = isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], ServerState)
    require(pair, "apply must return a ServerState and whether the arrival was used")
    return made


def _check_writable(state: ServerState) -> None:
    for name, array in state.arrays.items():
        plain = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        require(plain, f"arrays must be NumPy arrays of numbers; '{name}' is not")
        require(
            bool(np.isfinite(array).all()),
            f"arrays must be finite, since a checkpoint with other numbers is taken for damaged; "
            f"'{name}' is not",
        )
    for name, number in state.numbers.items():
        plain = type(number) in (int, float) and json.loads(json.dumps(number)) == number
        require(plain, f"numbers must be plain finite numbers; '{name}' is {number!r}")


def _check_equal(one: ServerState, other: ServerState, message: str) -> None:
    alike = one.version == other.version and dict(one.numbers) == dict(other.numbers)
    alike = alike and one.arrays.keys() == other.arrays.keys()
    alike = alike and one.weights.tobytes() == other.weights.tobytes()
    alike = alike and all(
        array.dtype == other.arrays[name].dtype
        and array.shape == other.arrays[name].shape
        and array.tobytes() == other.arrays[name].tobytes()
        for name, array in one.arrays.items()
    )
    require(alike, f"{message}, to the bit")
