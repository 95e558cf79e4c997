"""A real Dask scheduler and real workers, on loopback or in network namespaces of their own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import distributed

from tests.deployment.namespaces import ip

PATIENCE = 600
"""Seconds to wait for processes that a busy machine is slow to start."""


@contextmanager
def dask_cluster(commands, folder, *, workers, **environment):
    """``(address, workers)``; all run in ``folder``, started by ``commands``.

    As workers are started if nothing is said about it, each calls cells from several threads.
    """
    file = folder / "scheduler.json"
    local = ["--host", "127.0.0.1", "--no-dashboard"]

    def start(module, *arguments):
        module = f"distributed.cli.{module}"
        return commands.start(folder, *arguments, *local, module=module, **environment)

    processes = [start("dask_scheduler", "--port", "0", "--scheduler-file", str(file))]
    try:
        address = _when_written(file)
        worker = ("dask_worker", address, "--no-nanny", "--nthreads", "2")
        processes += [start(*worker) for _ in range(workers)]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=PATIENCE)
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def namespaces(count: int) -> Iterator[list[tuple[str, str, str]]]:
    """``(name, address here, address there)`` of so many namespaces, each joined to this one by a link.

    They do not reach one another.
    """
    made = []
    try:
        for number in range(count):
            name, net = f"sjd{os.getpid() % 10000}n{number}", f"10.214.{number}"
            near, far, inside = f"{net}.1", f"{net}.2", ("netns", "exec", name, "ip")
            ip("netns", "add", name)
            made.append((name, near, far))
            ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b")
            ip("link", "set", f"{name}b", "netns", name)
            ip("addr", "add", f"{near}/30", "dev", f"{name}a")
            ip("link", "set", f"{name}a", "up")
            ip(*inside, "addr", "add", f"{far}/30", "dev", f"{name}b")
            ip(*inside, "link", "set", f"{name}b", "up")
            ip(*inside, "link", "set", "lo", "up")
        yield made
    finally:
        for name, _, _ in made:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", f"{name}a")
            ip("netns", "del", name)


@contextmanager
def apart(folder: Path, joined: list[tuple[str, str, str]], **environment: str):
    """``(address, workers)``: a scheduler here, and a worker in each namespace, in a folder of its own."""
    file, said = folder / "scheduler.json", (folder / "dask.log").open("w")
    python = (sys.executable, "-m")

    def start(where: Path, *command: str) -> "subprocess.Popen[bytes]":
        where.mkdir(exist_ok=True)
        variables = {**os.environ, **environment}
        return subprocess.Popen(command, cwd=where, env=variables, stdout=said, stderr=said)

    scheduler = ("--host", "0.0.0.0", "--port", "0", "--no-dashboard", "--scheduler-file", file)
    command = (*python, "distributed.cli.dask_scheduler", *map(str, scheduler))
    processes = [start(folder / "scheduler", *command)]
    try:
        port = _when_written(file).rpartition(":")[2]
        for name, near, far in joined:
            options = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", far)
            worker = (*python, "distributed.cli.dask_worker", f"tcp://{near}:{port}", *options)
            processes.append(start(folder / name, "ip", "netns", "exec", name, *worker))
        address = f"tcp://127.0.0.1:{port}"
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(len(joined), timeout=PATIENCE)
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        said.close()


def _when_written(file: Path) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return json.loads(file.read_text())["address"]
        except (OSError, ValueError):
            time.sleep(0.05)
    raise AssertionError("the Dask scheduler did not start")
