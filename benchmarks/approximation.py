"""How near the approximate analysis is to simulation: the table of docs/limits.md.

    python benchmarks/approximation.py [LAW ...]

On 30 random fleets on which it was made, and on 30 others, each simulated until the throughput is
known to a standard error of 0.3 % or for 12 runs of half a million rounds.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.theory.test_approximate import random_network, simulated

from sojourn._support.estimate import Estimate
from sojourn.fleet.laws import Law
from sojourn.theory.jackson import analyze

LAWS = {
    "deterministic": Law("deterministic"),
    "Erlang, 2 stages": Law("erlang"),
    "lognormal, sigma 1": Law("lognormal"),
}
FLEETS = {"made on": range(30), "others": range(1000, 1030)}
LEAST_RUNS, RUNS, ROUNDS, ERROR = 3, 12, 500_000, 0.003


def errors(law: Law, seed: int) -> tuple[float, float]:
    """Relative errors of the formula for exponential times and of the approximation."""
    network = random_network(seed)
    for runs in range(LEAST_RUNS, RUNS + 1, 3):
        seen: Estimate = simulated(network, law, seed, runs, ROUNDS)
        if float(seen.standard_error) < ERROR * float(seen.mean):
            break
    formula, near = analyze(network), analyze(network, law=law)
    return tuple(abs(x.throughput / float(seen.mean) - 1.0) for x in (formula, near))


def told(values: np.ndarray) -> str:
    return f"{100 * values.mean():.1f} % ({100 * values.max():.1f} %)"


def main() -> None:
    print(
        "| service times | fleets | error of the formula, mean (largest) | of the approximation |"
    )
    print("| --- | --- | --- | --- |")
    for name, law in LAWS.items():
        if sys.argv[1:] and law.name not in sys.argv[1:]:
            continue
        for which, seeds in FLEETS.items():
            found = np.array([errors(law, seed) for seed in seeds])
            row = (name, which, told(found[:, 0]), told(found[:, 1]))
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
