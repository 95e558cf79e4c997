"""Bad input never ends in a traceback, in silence, or in half a file."""

import pytest

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


def test_a_hundred_bad_inputs() -> None:
    check(seed=18, count=100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_two_thousand_bad_inputs(seed: int) -> None:
    check(seed=1000 + seed, count=200)
