"""Devices have names, and a strategy for many can be rehearsed with few."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.flower.messages import client_of
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings, rehearsal
from sojourn.deployment.transport import Identity
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Fleet, Network
from sojourn.rules import AsyncSGD
from sojourn.rules.privacy import Privacy
from sojourn.theory.floor import target_rates
from tests.deployment.test_inprocess import problem, tasks_of

DEVICES = ("cam-17", "cam-18", "phone")


class Named(InProcessTransport):
    """Nodes that say the names of their devices, in the order given."""

    devices: tuple[str, ...] = DEVICES

    def receive(self, waiting: Any, weights: Any) -> Any:
        for received in super().receive(waiting, weights):
            if isinstance(received, Identity):
                name = self.devices[received.node - 1]
                received = Identity(received.message, received.node, name, received.version)
            yield received


def run(folder: Path, devices: tuple[str, ...]) -> str:
    Fleet([1.0, 2.0, 3.0], names=DEVICES).to_csv(folder / "fleet.csv")
    given = {"clients": 3, "updates": 60, "predict": False, "join-seconds": 1.0}
    config = {**given, "fleet": "fleet.csv", "run-folder": str(folder / "run")}
    with Named(problem, [lambda: 0.002] * 3) as transport:
        transport.devices = devices
        serve(transport, problem, read_settings(config, folder))
    return (folder / "run" / "events.log").read_text()


def test_a_device_is_the_client_whose_name_it_has(tmp_path: Path) -> None:
    """In whatever order they come."""
    events = run(tmp_path, ("phone", "cam-17", "cam-18"))
    assert all(f"joined\t{name}: joined" in events for name in DEVICES)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert [client["name"] for client in status["clients"]] == list(DEVICES)
    assert {task["client"] for task in tasks_of(tmp_path)} == {0, 1, 2}


def test_an_unknown_device_is_refused_with_a_sentence(tmp_path: Path) -> None:
    events = run(tmp_path, ("cam-17", "cam-18", "fridge"))
    assert "refused\tunknown device 'fridge': the fleet has cam-17, cam-18, phone" in events
    assert {task["client"] for task in tasks_of(tmp_path)} == {0, 1}


def test_two_devices_of_one_name_are_one_client(tmp_path: Path) -> None:
    events = run(tmp_path, ("cam-17", "cam-17", "phone"))
    assert "claims to be cam-17, who is alive elsewhere" in events
    assert {task["client"] for task in tasks_of(tmp_path)} == {0, 2}


def test_a_node_is_configured_by_name_or_number() -> None:
    assert client_of({"device": "cam-17", "partition-id": 3}) == "cam-17"
    assert client_of({"partition-id": 3}) == 3
    with pytest.raises(InvalidInput, match=r"--node-config 'device=\"NAME\"'"):
        client_of({})


def test_a_strategy_for_many_is_rehearsed_with_some_of_its_clients(tmp_path: Path) -> None:
    rates = np.repeat([1.0, 2.0, 8.0], 100)
    Fleet([1.0, 2.0, 8.0], counts=[100, 100, 100], names=["a", "b", "c"]).to_csv(
        tmp_path / "fleet.csv"
    )
    config = {"clients": 3, "updates": 1, "concurrency": 150, "fleet": "fleet.csv"}
    with pytest.raises(InvalidFile, match=r"'clients' is 3; the fleet has 300.*rehearse = true"):
        read_settings(config, tmp_path)
    settings = read_settings({**config, "rehearse": True}, tmp_path)
    assert settings.rehearsed_of is not None
    assert (settings.rehearsed_of.size, settings.strategy.concurrency) == (300, 2)
    assert settings.strategy.network.fleet.service_rates.tolist() == [1.0, 2.0, 8.0]
    assert settings.strategy.network.fleet.names == ("a 51", "b 51", "c 51")
    whole = Network(Fleet(rates), rates / rates.sum(), 30)
    small = rehearsal(whole, 6)
    np.testing.assert_allclose(small.client_routing, small.fleet.service_rates / 22.0)
    assert small.concurrency == 1


def admitting(folder: Path, rounds: int, **more: Any) -> tuple[Any, str]:
    """A run that "late" and "later" join after ``rounds`` updates, for which the others then wait."""
    Fleet([1.0, 2.0], names=["cam-17", "phone"]).to_csv(folder / "fleet.csv")
    given = {"updates": 150, "predict": False, "join-seconds": 1.0, "admit": "any", **more}
    config = {"clients": 3, **given, "fleet": "fleet.csv", "run-folder": str(folder / "run")}
    arrived, seen = threading.Event(), []
    arrived.set()

    class Late(Named):
        def receive(self, waiting: Any, weights: Any) -> Any:
            for received in super().receive(waiting, weights):
                yield received
                if isinstance(received, Identity) and str(received.client).startswith("late"):
                    seen.append(received.client)
                    if len(seen) == 2:
                        arrived.set()

    def pace() -> float:
        assert arrived.wait(60.0)
        return 0.003

    with Late(problem, [pace, pace, lambda: 0.003]) as transport:
        transport.leave(3)
        transport.devices = ("cam-17", "phone", "", "late", "later")
        lines = folder / "run" / "tasks.jsonl"
        sent = transport.send

        def send(messages: Any) -> Any:
            done = len(lines.read_text().splitlines()) if lines.exists() else 0
            if done >= rounds and len(transport.nodes()) == 2:
                arrived.clear()
                transport.join(2)
                transport.join(2)
            return sent(messages)

        transport.send = send  # type: ignore[method-assign]
        serve(transport, problem, read_settings(config, folder))
    status = json.loads((folder / "run" / "status.json").read_text())
    return status, (folder / "run" / "events.log").read_text()


@pytest.mark.parametrize("policy", ["never-queue", "routed"])
def test_a_device_that_joins_later_is_estimated_and_gets_its_share(
    tmp_path: Path, policy: str
) -> None:
    status, events = admitting(tmp_path, 30, policy=policy)
    (late,) = (client for client in status["clients"] if client["name"].startswith("late"))
    other = {"late": "later", "later": "late"}[late["name"]]
    assert f"'{other}' finds no place: all 3 clients are taken" in events
    assert late["used"] > 10
    assert late["rate"] is not None


def test_only_listed_devices_unless_any_are_admitted(tmp_path: Path) -> None:
    Fleet([1.0, 2.0], names=["cam-17", "phone"]).to_csv(tmp_path / "fleet.csv")
    config = {"clients": 3, "updates": 1, "fleet": "fleet.csv"}
    with pytest.raises(InvalidFile, match="'clients' is 3; the fleet has 2"):
        read_settings(config, tmp_path)
    settings = read_settings({**config, "admit": "any"}, tmp_path)
    assert (settings.listed, settings.clients) == (2, 3)
    with pytest.raises(InvalidFile, match="'admit' is \"listed\" or \"any\"; it is 'all'"):
        read_settings({**config, "admit": "all"}, tmp_path)


def dispatcher_with_a_place(**options: Any) -> Dispatcher:
    server = Dispatcher(
        np.zeros(2),
        rule=AsyncSGD(),
        routing=[0.3, 0.3, 0.4],
        concurrency=3,
        learning_rate=0.1,
        service_rates=[1.0, 3.0, 2.0],
        names=["a", "b", "place 2"],
        listed=2,
        **options,
    )
    for client in (0, 1):
        server.joined(client, now=0.0)
    server.start(now=0.0)
    return server


def test_a_new_device_takes_the_median_speed_and_the_share_of_never_queue() -> None:
    server = dispatcher_with_a_place()
    assert server.admit("new") == 2
    assert server.admit("newer") is None
    server.joined(2, now=1.0)
    assert server.clients[2].estimate.rate() == 2.0
    share = target_rates(Fleet([1.0, 3.0, 2.0]), 3)
    np.testing.assert_allclose(server.router.share(2), share[2] / share.sum())
    np.testing.assert_allclose(server.router.share(0), server.router.share(1))


def test_a_device_that_left_is_forgotten_after_its_deadline() -> None:
    server = dispatcher_with_a_place()
    server.admit("new")
    server.joined(2, now=1.0)
    server.left(2, now=2.0)
    deadline = server.allowance(server.clients[2])
    assert not server.tick(2.0 + 0.9 * deadline).events
    assert server.clients[2].name == "new"
    (event,) = (e for e in server.tick(2.1 + deadline).events if e.client == 2)
    assert event.detail == "new: forgotten; its place is free"
    assert server.admit("other") == 2


def test_what_privacy_a_device_has_spent_is_never_forgotten() -> None:
    server = dispatcher_with_a_place(privacy=Privacy(clip=1.0, noise=1.0))
    server.admit("new")
    server.joined(2, now=1.0)
    server.left(2, now=2.0)
    server.tick(1e9)
    assert server.clients[2].name == "new"


def test_a_device_that_was_admitted_is_known_after_a_restart(tmp_path: Path) -> None:
    server = dispatcher_with_a_place()
    server.admit("new")
    write_checkpoint(tmp_path / "checkpoint.npz", server)
    resumed = Dispatcher(
        np.zeros(2),
        rule=AsyncSGD(),
        routing=[0.3, 0.3, 0.4],
        concurrency=3,
        learning_rate=0.1,
        names=["a", "b", "place 2"],
        listed=2,
    )
    restore_checkpoint(tmp_path / "checkpoint.npz", resumed)
    assert [client.name for client in resumed.clients] == ["a", "b", "new"]
    assert resumed.admit("other") is None
