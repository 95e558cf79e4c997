"""A server that is killed and resumed goes on as if it had not been."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.speeds import Deadlines
from sojourn.deployment.tasks import Actions, Task
from sojourn.errors import InvalidFile
from sojourn.rules import (
    AREA,
    RULES,
    Adam,
    AsyncSGD,
    FedBuff,
    GeneralizedAsyncSGD,
    Momentum,
    Rennala,
    Rule,
)


def make(
    rule: Rule | None = None,
    policy: str = "routed",
    concurrency: int = 5,
    deadlines: Deadlines | None = None,
) -> Dispatcher:
    return Dispatcher(
        np.ones(3, dtype=np.float32),
        rule=rule or GeneralizedAsyncSGD(),
        routing=[0.2, 0.3, 0.5],
        concurrency=concurrency,
        deadlines=deadlines,
        learning_rate=0.1,
        policy=policy,
        seed=4,
    )


def gradient(server: Dispatcher, task: Task) -> np.ndarray:
    """An update that tells tasks and weights apart, as a deterministic client would send."""
    return server.weights_of(task) * np.float32(0.5 + 0.1 * (task.ordinal % 7))


def work(server: Dispatcher, waiting: list[Task], rounds: int, now: float) -> list[int]:
    """Answer the oldest message again and again; the numbers of the tasks answered."""
    done = []
    for t in range(rounds):
        task = waiting.pop(0)
        actions = server.completed(task.number, gradient(server, task), now=now + t)
        assert (actions.used is None) != (actions.dropped is None)
        done.append(task.number)
        waiting += actions.send
    return done


def join_all(server: Dispatcher, now: float) -> list[Task]:
    return [task for i in range(3) for task in server.joined(i, now=now).send]


RESUMED = [
    *(kind() for kind in RULES.values() if kind.policy != "synchronous"),
    FedBuff(buffer_size=4),
    Rennala(batch_size=2),
    AREA(buffer_size=4),
    AsyncSGD(debias=0.5, server=Momentum()),
    FedBuff(buffer_size=4, server=Adam(amsgrad=True)),
]


@pytest.mark.parametrize("rule", RESUMED, ids=repr)
def test_a_resumed_server_ends_with_the_model_it_would_have_had(tmp_path: Path, rule: Rule) -> None:
    server = make(rule)
    join_all(server, 0.0)
    waiting = server.start(now=0.0).send
    used = work(server, waiting, 23, 1.0)
    write_checkpoint(tmp_path / "state.npz", server, {"elapsed": 24.0})
    lost_with_the_server = work(server, waiting, 6, 24.0)

    resumed = make(rule)
    assert restore_checkpoint(tmp_path / "state.npz", resumed) == {"elapsed": 24.0}
    assert resumed.counts.completed == 23
    assert len(resumed.tasks) == 5
    waiting = sorted(join_all(resumed, 100.0), key=lambda task: task.number)
    used += work(resumed, waiting, 6, 101.0)

    assert used[23:] == lost_with_the_server
    np.testing.assert_array_equal(resumed.state.weights, server.state.weights)
    assert resumed.state.numbers == server.state.numbers
    for name, array in server.state.arrays.items():
        np.testing.assert_array_equal(resumed.state.arrays[name], array)
        assert resumed.state.arrays[name].dtype == array.dtype
    assert len(set(used)) == len(used) == resumed.counts.completed == 29


def test_what_was_out_is_sent_again_to_the_same_client_in_the_same_order(tmp_path: Path) -> None:
    server = make()
    join_all(server, 0.0)
    server.start(now=0.0)
    write_checkpoint(tmp_path / "state.npz", server)
    resumed = make()
    restore_checkpoint(tmp_path / "state.npz", resumed)
    for before, after in zip(server.clients, resumed.clients, strict=True):
        numbers = [*before.out, *(task.number for task in before.queue)]
        assert [task.number for task in after.queue] == numbers
    assert resumed.versions.uses() == server.versions.uses()


def test_tasks_of_a_client_that_does_not_return_are_routed_to_others(tmp_path: Path) -> None:
    server = make()
    join_all(server, 0.0)
    server.start(now=0.0)
    write_checkpoint(tmp_path / "state.npz", server)
    resumed = make()
    restore_checkpoint(tmp_path / "state.npz", resumed)
    actions = Actions()
    actions.send += resumed.joined(2, now=1.0).send
    for absent in (0, 1):
        actions.send += resumed.left(absent, now=2.0).send
    assert {task.client for task in resumed.tasks.values()} == {2}
    assert len(resumed.tasks) == 5
    assert resumed.counts.withdrawn == 4


def test_the_order_of_a_shuffled_server_is_kept_for_the_clients_that_return(
    tmp_path: Path,
) -> None:
    server = make(policy="shuffled")
    join_all(server, 0.0)
    work(server, server.start(now=0.0).send, 4, 1.0)
    server.router.restore({"order": [1, 0, 2]})
    write_checkpoint(tmp_path / "state.npz", server)

    resumed = make(policy="shuffled")
    restore_checkpoint(tmp_path / "state.npz", resumed)
    waiting = [task for i in (0, 1) for task in resumed.joined(i, now=20.0).send]
    waiting += resumed.left(2, now=21.0).send
    assert {task.client for task in resumed.tasks.values()} == {0, 1}
    work(resumed, waiting, 9, 22.0)
    assert resumed.counts.used == 13


@pytest.mark.parametrize(
    "other",
    [
        {"concurrency": 6},
        {"policy": "idle"},
        {"rule": FedBuff(buffer_size=3)},
        {"rule": FedBuff(buffer_size=4)},
    ],
)
def test_other_settings_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    started = make(FedBuff(buffer_size=4)) if other == {"rule": FedBuff(buffer_size=3)} else make()
    write_checkpoint(tmp_path / "state.npz", started)
    with pytest.raises(InvalidFile, match=r"Resume with the settings that it was started with"):
        restore_checkpoint(tmp_path / "state.npz", make(**other))


def test_deadlines_keep_what_was_learnt_and_take_new_bounds(tmp_path: Path) -> None:
    server = make()
    for _ in range(50):
        server.deadlines.observe(1.0)
    write_checkpoint(tmp_path / "state.npz", server)
    resumed = make(deadlines=Deadlines(shortest=3.0, first=9.0, longest=20.0))
    restore_checkpoint(tmp_path / "state.npz", resumed)
    assert resumed.deadlines.squared_variation == server.deadlines.squared_variation
    assert resumed.deadlines.shortest == 3.0
    assert resumed.deadlines.allowance(mean_seconds=None, tasks=0) == 9.0
    assert resumed.deadlines.longest == 20.0


def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    with pytest.raises(InvalidFile, match="no checkpoint"):
        restore_checkpoint(path, make())
    path.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(InvalidFile, match="not a checkpoint"):
        restore_checkpoint(path, make())
    np.savez(path, weights=np.ones(3))
    with pytest.raises(InvalidFile, match="not a checkpoint"):
        restore_checkpoint(path, make())
    np.savez(path, meta=np.array([{"code": "evil"}], dtype=object))
    with pytest.raises(InvalidFile, match="not a checkpoint"):
        restore_checkpoint(path, make())
    write_checkpoint(path, make())
    other = Dispatcher(
        np.ones(4), rule=GeneralizedAsyncSGD(), routing=[1.0], concurrency=1, learning_rate=0.1
    )
    with pytest.raises(InvalidFile, match="3 weights and 3 clients"):
        restore_checkpoint(path, other)
