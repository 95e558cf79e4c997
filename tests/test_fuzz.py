"""Bad input never ends in a traceback, in silence, or in half a file."""

import os
import subprocess
import sys

import pytest

from tests.commands import ROOT
from tests.fuzzing import Tryer, cases, prepare

ACCEPTED = (0, 1, 2)


def check(seed: int, count: int) -> None:
    prepare()
    wrong = []
    with Tryer() as tryer:
        for number, case in enumerate(cases(seed, count)):
            outcome = tryer.run(case)
            if outcome.code not in ACCEPTED or "Traceback" in outcome.error or outcome.left_over:
                wrong.append(f"{number}: {case}\n{outcome.error}\nleft: {outcome.left_over}")
    assert not wrong, f"{len(wrong)} of {count}:\n\n" + "\n\n".join(wrong)


def test_fifty_bad_inputs() -> None:
    check(seed=18, count=50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_two_thousand_bad_inputs(seed: int) -> None:
    check(seed=1000 + seed, count=200)


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "count", "surroundings"),
    [
        *((2000 + k, 200, ASCII) for k in range(10)),
        *((3000 + k, 50, {"FUZZING_SPARE_MEGABYTES": str(50 * 3**k)}) for k in range(4)),
    ],
)
def test_bad_inputs_in_an_ascii_locale_and_with_little_memory(
    seed: int, count: int, surroundings: dict[str, str]
) -> None:
    """In a process whose locale it is: files without a stated encoding are ASCII there."""
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.test_fuzz import check; check({seed}, {count})"],
        cwd=ROOT,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
