"""Children are ended with everything they started, and nothing else is touched."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sojourn.deployment.processes import Processes, descendants, free_port, listens

FAMILY = """
import subprocess, sys, time
own_group = len(sys.argv) > 1
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=own_group)
time.sleep(600)
"""


SLEEP = "import time; time.sleep(600)"

PARENT = f"""
import os, sys, time
from pathlib import Path
from sojourn.deployment.processes import Processes
child = Processes(os.environ, Path(sys.argv[1])).start("child", [sys.executable, "-c", {SLEEP!r}])
sys.stdout.write(f"{{child.pid}}\\n")
sys.stdout.flush()
time.sleep(600)
"""


def alive(process: int) -> bool:
    """Whether it runs: a zombie, which nobody has waited for yet, does not."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 240.0) -> bool:
    patience = time.monotonic() + seconds
    while not condition() and time.monotonic() < patience:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("own_group", [False, True])
def test_children_and_grandchildren_end(tmp_path: Path, own_group: bool) -> None:
    outsider = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with Processes(os.environ, tmp_path) as processes:
            child = processes.start(
                "family", [sys.executable, "-c", FAMILY, *(["x"] if own_group else [])]
            )
            assert wait_until(lambda: bool(descendants([child.pid])))
            family = descendants([child.pid])
            assert processes.dead() == []
        assert wait_until(lambda: not any(alive(process) for process in [child.pid, *family]))
        assert alive(outsider.pid)
    finally:
        outsider.kill()
        outsider.wait()


def test_a_killed_child_is_gone_and_can_be_started_again(tmp_path: Path) -> None:
    with Processes(os.environ, tmp_path) as processes:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        first = processes.start("client", command)
        processes.kill("client")
        assert first.poll() is not None
        assert processes.start("client", command).poll() is None


def test_what_children_say_is_kept(tmp_path: Path) -> None:
    with Processes(os.environ, tmp_path) as processes:
        processes.start("speaker", [sys.executable, "-c", "print('hello')"]).wait(30)
        assert processes.dead() == ["speaker"]
    assert (tmp_path / "speaker.log").read_text() == "hello\n"


def test_a_childs_group_ends_even_where_processes_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Processes(os.environ, tmp_path / "logs") as processes:
        child = processes.start("family", [sys.executable, "-c", FAMILY])
        assert wait_until(lambda: bool(descendants([child.pid])))
        family = descendants([child.pid])
        monkeypatch.setattr("sojourn.deployment.processes.descendants", lambda ancestors: set())
    assert wait_until(lambda: not any(alive(process) for process in [child.pid, *family]))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of a death")
def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    assert wait_until(lambda: not alive(child))


def test_free_ports_are_free() -> None:
    port = free_port()
    assert port > 0
    assert not listens(port)
