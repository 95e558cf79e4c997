"""The benchmark of the dispatcher runs, and memory stays flat, on a small scale."""

import runpy
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "dispatch.py"


def test_memory_is_flat_and_speed_is_measured() -> None:
    run = runpy.run_path(str(BENCHMARK))["run"]
    speed, _, memory = run(completions=20_000, clients=200, concurrency=200, size=10)
    assert speed > 10_000 / 5
    assert memory[-1] - memory[2] < 1.0
