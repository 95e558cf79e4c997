"""A real Dask scheduler and real workers on loopback."""

import json
import time
from contextlib import contextmanager
from pathlib import Path

import distributed

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


def _when_written(file: Path) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return json.loads(file.read_text())["address"]
        except (OSError, ValueError):
            time.sleep(0.05)
    raise AssertionError("the Dask scheduler did not start")
