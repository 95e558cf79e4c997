"""Clients in network namespaces of their own, behind links of 200 ms that lose 5 % of all packets."""

import sys
import time
from pathlib import Path

import pytest

from sojourn.fleet import Fleet
from tests.commands import Commands
from tests.deployment.flower_sessions import Session, check_accounts, status_of, tasks_of
from tests.deployment.namespaces import Link, links, why_not

REASON = why_not() if sys.platform == "linux" else "network namespaces are Linux's"
pytestmark = [
    pytest.mark.xdist_group("flower"),
    pytest.mark.timeout(3600),
    pytest.mark.slow,
    pytest.mark.flower,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]

CLIENTS = 3
DELAY, LOSS = 0.2, 0.05
CUT_SECONDS = 60.0
PATIENT = {"shortest-deadline": 120.0, "first-deadline": 300.0, "checkpoint-seconds": 2.0}


class Apart(Session):
    """Clients that reach the SuperLink through a link of their own; those of ``near`` without one."""

    def __init__(self, folder: Path, between: dict[int, Link]) -> None:
        super().__init__(folder, [0.0] * CLIENTS, resident=True)
        self.between = between

    def start_superlink(self) -> None:
        """Reached from the namespaces by addresses that are not loopback's."""
        self.flower.start_superlink(host="0.0.0.0")

    def start_client(self, client: int) -> None:
        if client not in self.between:
            super().start_client(client)
            return
        link, flower = self.between[client], self.flower
        config = ["--insecure", "--node-config", f"partition-id={client} pause-seconds=0.0"]
        command = flower.supernode_command(config, superlink=f"{link.near}:{flower.port}")
        flower.processes.start(f"client-{client}", ["ip", "netns", "exec", link.name, *command])


def test_slow_lossy_links_and_a_cut_lose_nothing(
    tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    """Client 0 is on loopback, the others apart; the link of client 2 is cut for a minute."""
    run = tmp_path / "run"
    with links(CLIENTS - 1, delay=DELAY, loss=LOSS) as made:
        between = dict(enumerate(made, start=1))
        with Apart(tmp_path / "flower", between) as session:
            session.submit(run, 60, **PATIENT)
            session.wait_for(run, 15)
            made[-1].cut.set()
            cut_at = len(tasks_of(run))
            time.sleep(CUT_SECONDS)
            made[-1].cut.clear()
            mended_at = len(tasks_of(run))
            session.wait_until_finished(run, seconds=1200.0)
    check_accounts(run, 6)
    tasks, status = tasks_of(run), status_of(run)
    after = [task for task in tasks[mended_at:] if task["client"] == 2]
    seconds = {
        client: [t["service_seconds"] for t in tasks if t["client"] == client]
        for client in range(3)
    }
    medians = {c: sorted(filter(None, s))[len(s) // 2] for c, s in seconds.items() if any(s)}
    with capsys.disabled():
        lost = [f"{link.lost} of {link.lost + link.carried}" for link in made]
        sys.stdout.write(
            f"\n{len(tasks)} updates in {status['elapsed']} s; {mended_at - cut_at} during the cut; "
            f"median seconds per task {medians}; packets lost {lost}; counts {status['counts']}\n"
        )
    assert (status["counts"]["used"], status["counts"]["lost"]) == (60, 0)
    assert mended_at > cut_at, "the others go on during the cut"
    assert after, "the one that was cut off comes back"
    assert medians[1] > medians[0] + 2 * DELAY
    found = commands.run(
        tmp_path, "fleet", "estimate", "--from-run", "run", "--by-device", "--out", "f.csv"
    )
    assert found.code == 0, found.error
    fleet = Fleet.from_csv(tmp_path / "f.csv")
    with capsys.disabled():
        sys.stdout.write(f"{found.out}\n")
    assert fleet.uplink is not None
    assert fleet.downlink is not None
    links_of = dict(zip(fleet.names, fleet.uplink + fleet.downlink, strict=True))
    assert all(links_of[name] > links_of["0"] + 2 * DELAY for name in ("1", "2"))
