"""What the benchmarks share: peers in environments of their own, timing, and the machine's name.

A peer never becomes a dependency of Sojourn: it is installed, at a pinned version, into a virtual
environment in the user's cache, and called there as a subprocess. Standard library only, so that
the code that runs in a peer's environment can import this module too.
"""

import hashlib
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

MAIN = """
import contextlib, json, sys
request = json.load(sys.stdin)
if request["memory"]:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (request["memory"], request["memory"]))
names = {}
with contextlib.redirect_stdout(sys.stderr):
    exec(request["source"], names)
    result = names[request["name"]](**request["arguments"])
json.dump(result, sys.stdout)
"""


class PeerFailed(Exception):
    """A peer gave no result; the message says why."""


def environment(*requirements: str) -> Path:
    """The interpreter of a virtual environment that holds ``requirements``, built at most once.

    It stands in ``$XDG_CACHE_HOME/sojourn-benchmarks``, or in the folder for temporary files.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir()) / "sojourn-benchmarks"
    key = json.dumps([sys.version, *requirements])
    folder = cache / hashlib.sha256(key.encode()).hexdigest()[:12]
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"installing {' '.join(requirements)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", *requirements], check=True)
        ready.touch()
    return python


def call(
    python: Path,
    function: Callable[..., Any],
    *,
    timeout: float,
    memory: int | None = None,
    **arguments: Any,
) -> Any:
    """What ``function(**arguments)`` returns in the environment of ``python``, on one thread.

    Only the function's own source crosses, so it imports what it needs; arguments and result
    travel as JSON. Raises ``PeerFailed`` when it fails, when ``timeout`` seconds have passed, or
    when it needs more than ``memory`` bytes of address space.
    """
    request = {
        "source": inspect.getsource(function),
        "name": function.__name__,
        "arguments": arguments,
        "memory": memory,
    }
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    try:
        done = subprocess.run(
            [python, "-c", MAIN],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **one_thread, "PYTHONPATH": str(HERE)},
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"no result within {timeout:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PeerFailed(lines[-1] if lines else f"ended with code {done.returncode}")
    return json.loads(done.stdout)


def seconds(function: Callable[[], object], *, rounds: int = 5) -> float:
    """Median time of one call, after a first one that is not counted."""
    function()
    timer = timeit.Timer(function)
    number = max(1, int(0.02 / timer.timeit(1)))
    return statistics.median(timer.repeat(rounds, number)) / number


def machine() -> str:
    """The processor's model, the number of its cores in view, system and Python version."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        models = []
    model = models[0] if models else platform.processor() or platform.machine()
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    )
