"""Which node is which client: what a node says of itself is believed once."""

from pathlib import Path

import numpy as np

from tests.deployment.test_server import Deployment, hostile


def test_a_node_stays_the_client_that_it_said_it_was(tmp_path: Path) -> None:
    """Set aside and asked whether it lives, it says that it is another, who is not there."""
    deployment = Deployment(tmp_path, **{"join-seconds": 1.0})
    absent = next(number for number, node in deployment.grid.nodes.items() if node.client == 2)
    del deployment.grid.nodes[absent]
    liar = deployment.node(0)

    def lie() -> None:
        liar.fails, liar.client = True, 2

    deployment.grid.at = [(10.0, lie)]
    deployment.run()
    assert not [task for task in deployment.tasks() if task["client"] == 2]
    assert deployment.dispatcher.clients[0].status == "aside"
    assert "client 0: claims to be client 2 now" in (tmp_path / "events.log").read_text()


def test_a_client_in_quarantine_stays_there_at_another_node(tmp_path: Path) -> None:
    """Whether it comes while its node is there or when that is gone."""
    deployment = Deployment(tmp_path, **{"quarantine-refused": 2})
    bad = next(iter(deployment.grid.nodes))
    deployment.grid.nodes[bad].tamper = hostile(np.ones(7, dtype=np.float32))
    others: list[int] = []
    deployment.grid.at = [
        (20.0, lambda: others.append(deployment.add_node(0))),
        (24.0, lambda: deployment.grid.nodes.pop(bad) and None),
        (28.0, lambda: others.append(deployment.add_node(0))),
    ]
    deployment.run()
    assert deployment.dispatcher.clients[0].status == "quarantined"
    assert all(deployment.grid.nodes[node].served == [""] for node in others)
    assert "who is in quarantine elsewhere" in (tmp_path / "events.log").read_text()


def test_who_was_taken_for_dead_gets_its_place_back(tmp_path: Path) -> None:
    """A node takes the place of a client that is only slow to answer, and dies itself."""
    deployment = Deployment(tmp_path, updates=120)
    late = deployment.node(0)

    def usurp() -> None:
        deployment.grid.nodes[999] = type(late)(0, deployment.app, 1.0)

    def wake() -> None:
        late.hangs, deployment.grid.nodes[999].hangs = False, True

    deployment.grid.at = [
        (20.0, lambda: deployment.kill(0)),
        (22.0, usurp),
        (60.0, wake),
    ]
    served = len(late.served)
    deployment.run()
    assert len(late.served) > served
    assert [task for task in deployment.tasks() if task["client"] == 0 and task["time"] > 80]
