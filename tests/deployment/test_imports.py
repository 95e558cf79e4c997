"""The dispatcher needs neither Flower nor torch."""

import subprocess
import sys

CODE = """
import sys
sys.modules["flwr"] = sys.modules["torch"] = None
from sojourn.deployment import Deadlines, Dispatcher, Task
import sojourn.deployment.checkpoint, sojourn.deployment.local, sojourn.deployment.settings
assert not {"scipy", "numba", "sklearn"} & set(sys.modules)
"""


def test_the_dispatcher_is_light() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
