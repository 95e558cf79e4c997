"""Children are ended with everything they started, and nothing else is touched."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sojourn.deploy.processes import Processes, descendants, free_port, listens

FAMILY = """
import subprocess, sys, time
own_group = len(sys.argv) > 1
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=own_group)
time.sleep(60)
"""


def alive(process: int) -> bool:
    table = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True
    )
    return bool(table.stdout.strip()) and not table.stdout.strip().startswith("Z")


@pytest.mark.parametrize("own_group", [False, True])
def test_children_and_grandchildren_end(tmp_path: Path, own_group: bool) -> None:
    outsider = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with Processes(os.environ, tmp_path) as processes:
            child = processes.start(
                "family", [sys.executable, "-c", FAMILY, *(["x"] if own_group else [])]
            )
            patience = time.monotonic() + 30
            while not (family := descendants([child.pid])) and time.monotonic() < patience:
                time.sleep(0.05)
            assert family
            assert processes.dead() == []
        time.sleep(0.2)
        assert not any(alive(process) for process in [child.pid, *family])
        assert alive(outsider.pid)
    finally:
        outsider.kill()
        outsider.wait()


def test_a_killed_child_is_gone_and_can_be_started_again(tmp_path: Path) -> None:
    with Processes(os.environ, tmp_path) as processes:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        first = processes.start("client", command)
        processes.kill("client")
        assert first.poll() is not None
        assert processes.start("client", command).poll() is None


def test_what_children_say_is_kept(tmp_path: Path) -> None:
    with Processes(os.environ, tmp_path) as processes:
        processes.start("speaker", [sys.executable, "-c", "print('hello')"]).wait(30)
        assert processes.dead() == ["speaker"]
    assert (tmp_path / "speaker.log").read_text() == "hello\n"


def test_free_ports_are_free() -> None:
    port = free_port()
    assert port > 0
    assert not listens(port)
