"""Flower's short-lived commands, each in a process of its own, without importing them anew.

Flower starts a process for every task and for every ``flwr`` command; each imports for two seconds
what it then runs for a tenth of one. A process that has imported it all waits for command lines and
forks for each. Programs of the commands' names, first on the path, hand it their arguments, folder,
environment and output; a fork ends when the program that asked for it does, however that ends.
"""

import array
import atexit
import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sojourn.deployment.local import QUIET
from sojourn.deployment.processes import descendants

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("flwr", "flwr-clientapp", "flwr-serverapp")
IMPORTED = (
    "sojourn.deployment.flower.apps",
    "sojourn.deployment.run",
    "sojourn.training.replay",
    "torch",
)
PATIENCE_SECONDS = 60.0
ASK = """\
#!{python} -IS
import array, json, os, socket, sys
order = json.dumps([{command!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
outputs = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))]
with socket.socket(socket.AF_UNIX) as server:
    server.connect("\\0" + {address!r})
    server.sendmsg([len(order).to_bytes(8, "big")], outputs)
    server.sendall(order)
    code = server.recv(1)
sys.exit(code[0] if code else 1)
"""


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which Flower's commands are forks; on leaving, none may be running."""
    address = f"sojourn-{uuid.uuid4()}"
    for command in COMMANDS:
        text = ASK.format(python=sys.executable, address=address, command=command)
        (folder / command).write_text(text)
        (folder / command).chmod(0o755)
    path = [str(folder), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    with subprocess.Popen(
        [sys.executable, "-m", __name__, address],
        cwd=ROOT,
        env={**os.environ, **QUIET},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield {"PATH": os.pathsep.join(path)}
        server.stdin.close()
        left = server.stdout.read()
    assert left == b"0\n", f"forks that go on: {left!r}"


def serve(address: str) -> None:
    """Fork for every order until standard input ends; say how many forks do not end then."""
    entries = {
        entry.name: entry.load()
        for entry in importlib.metadata.entry_points(group="console_scripts")
        if entry.name in COMMANDS
    }
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.freeze()  # what forks share is not looked at, and so not copied, by their collectors
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nobody need wait for those who ended
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + address)  # without a file, whose path might be too long
        listener.listen(64)
        os.write(1, b"ready\n")
        while listener in select.select([listener, 0], [], [])[0]:
            asked, _ = listener.accept()
            with asked:
                if os.fork() == 0:
                    listener.close()
                    become(entries, asked)
    patience = time.monotonic() + PATIENCE_SECONDS
    while (left := len(descendants([os.getpid()]))) and time.monotonic() < patience:
        time.sleep(0.05)
    os.write(1, f"{left}\n".encode())


def become(entries: dict[str, Any], asked: socket.socket) -> None:
    """Be the command that is asked for, and end with it."""
    code: object = 1
    try:
        command, arguments, folder, environment = read_order(asked)
        threading.Thread(target=end_with, args=(asked,), daemon=True).start()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        Path("/proc/self/comm").write_text(command)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = [command, *arguments]
        code = entries[command]()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    number = (code or 0) if isinstance(code, int | None) else 1
    with contextlib.suppress(OSError):
        asked.send(bytes([number % 256]))
    os._exit(number)


def read_order(asked: socket.socket) -> Any:
    """The command line; what it says goes where the program that asks says what it does."""
    outputs = array.array("i")
    head, rights, *_ = asked.recvmsg(8, socket.CMSG_SPACE(2 * outputs.itemsize))
    outputs.frombytes(rights[0][2])
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    size, order = int.from_bytes(head, "big"), b""
    while len(order) < size:
        order += asked.recv(size - len(order))
    return json.loads(order)


def end_with(asked: socket.socket) -> None:
    """Wait for the end of the program that asked, which says nothing more."""
    with contextlib.suppress(OSError):
        asked.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1])
