"""Every law has mean 1; traces are read strictly."""

from pathlib import Path

import numpy as np
import pytest

from sojourn.dispatch.analysis import analyze
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.fleet import Fleet, Network
from sojourn.fleet.laws import LAW_NAMES, Law, read_trace
from sojourn.simulation.simulate import simulate

SQUARED_VARIATION = {
    "exponential": 1.0,
    "deterministic": 0.0,
    "lognormal": np.e - 1.0,
    "gamma": 2.0,
    "erlang": 0.5,
    "hyperexponential": 4.0,
    "weibull": 5.0,
}
FLEET = Fleet([1.0, 2.0], names=["old", "new"])


@pytest.mark.parametrize("name", LAW_NAMES[:-1])
def test_mean_and_variance(name: str) -> None:
    samples = Law(name).sample(np.random.default_rng(1), 400_000)
    error = samples.std() / np.sqrt(samples.size)
    assert abs(samples.mean() - 1.0) <= 4 * error
    if name in SQUARED_VARIATION:
        squares = (samples - 1.0) ** 2
        error = squares.std() / np.sqrt(squares.size)
        assert abs(squares.mean() - SQUARED_VARIATION[name]) <= 4 * error


def test_a_client_alone_takes_work_over_rate() -> None:
    network = Network(Fleet([4.0]), [1.0], 1)
    schedule = simulate(network, rounds=5, law="deterministic", work=3.0)
    np.testing.assert_allclose(schedule.time, 0.75 * np.arange(1, 6))


def test_parameters_are_checked() -> None:
    assert Law("lognormal", sigma=2) == Law("lognormal", sigma=2.0)
    with pytest.raises(UnknownName, match="did you mean 'sigma'"):
        Law("lognormal", sgima=1.0)
    with pytest.raises(InvalidInput, match=r"above 1; it is 0\.9"):
        Law("pareto", shape=0.9)
    with pytest.raises(InvalidInput, match=r"whole number; it is 2\.5"):
        Law("erlang", stages=2.5)
    with pytest.raises(InvalidInput, match="read_trace"):
        Law("trace")


def test_trace_keeps_the_fleets_speed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("class,duration\nold,3\nold,9\nnew,5\n2,5\n")
    law = read_trace(path, FLEET)
    assert [(trace.durations, trace.mean) for trace in law] == [
        ((3.0, 9.0), 6.0),
        ((5.0, 5.0), 5.0),
    ]
    schedule = simulate(Network(FLEET, [0.5, 0.5], 1), rounds=2000, law=law, seed=1)
    steps = np.diff(schedule.time, prepend=0.0)
    assert set(steps[schedule.client == 1].round(9).tolist()) == {0.5}
    assert set(steps[schedule.client == 0].round(9).tolist()) == {0.5, 1.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("duration\n1\n-2\n", "line 3: the duration must be positive; it is -2"),
        ("class,duration\nold,1\nnew,\n", "line 3: duration is missing"),
        ("duration\n1\nfast\n", "line 3: duration must be a number; it is 'fast'"),
        ("duration\nnan\n", "line 2: duration must be finite; it is nan"),
        ("class,duration\nold,1\nnwe,2\n", "line 3: unknown class 'nwe': did you mean 'new'"),
        ("class,duration\nold,1\n", "no durations for new"),
        ("class,duration\nold,1,4\n", "line 2: 3 fields"),
        ("seconds\n1\n", "unknown column 'seconds'"),
        ("", "empty. The first line must name the columns: duration"),
        ("duration\n", "there are no durations"),
    ],
)
def test_bad_traces_say_where(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=words):
        read_trace(path, FLEET)


def test_theory_and_simulation_refuse_another_number_of_laws_than_classes():
    network = Network(Fleet([1.0, 2.0]), [0.5, 0.5], 2)
    laws = ["lognormal", "gamma", "exponential"]
    patient = {"name": "never-queue", "patience": 2.0}
    for ask in (
        lambda: analyze(network, law=laws),
        lambda: analyze(network, patient, law=laws),
        lambda: simulate(network, rounds=1, law=laws),
    ):
        with pytest.raises(InvalidInput, match="which has 2; there are 3"):
            ask()
