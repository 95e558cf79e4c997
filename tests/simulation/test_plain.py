"""Policies without a compiled form on every network: the plain loop against the kernels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.estimate import Estimate
from sojourn.dispatch import Chooser, Policy
from sojourn.fleet.calendars import Drift, Hours
from sojourn.simulation.plain import PlainRun
from sojourn.simulation.runs import start_run
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate

LINKS = {"downlink": [0.1, 0.2, 0.0, 0.3], "uplink": [0.2, 0.0, 0.1, 0.3]}
AWAY = {"mean_up": [10.0, 5.0, 8.0, 9.0], "mean_down": [1.0, 2.0, 0.0, 1.0]}
HOURS = Hours([[(0.0, 8.0), (20.0, 24.0)], [(9.0, 17.5)], [(2.0, 24.0)]], period=24.0)


def network_of(tasks: int = 10, server_rate: float | None = None, **columns) -> sj.Network:
    fleet = sj.Fleet([1.0, 2.0, 0.3, 5.0], counts=[3, 2, 4, 1], **columns)
    return sj.Network(fleet, sj.uniform_routing(fleet), tasks, server_rate=server_rate)


def completions(run, rounds: int) -> tuple[np.ndarray, ...]:
    out = np.empty(rounds, np.int32), np.empty(rounds, np.int64), np.empty(rounds)
    run.advance(np.inf, 0, out)
    return out


@pytest.mark.parametrize("server_rate", [None, 3.0])
@pytest.mark.parametrize("drift", [None, Drift([[(3.0, 2.0), (7.0, 0.5)]])])
@pytest.mark.parametrize("paired", [False, True])
def test_links_server_and_drift_are_those_of_the_kernel(server_rate, drift, paired) -> None:
    """Never-queue with a task for everybody draws nothing: the same schedule to the bit."""
    network = network_of(server_rate=server_rate, **LINKS)
    scenario = Scenario(policy="never-queue", law="lognormal", drift=drift, paired=paired)
    kernel = completions(start_run(network, scenario, seed=2), 4000)
    plain = completions(PlainRun(network, scenario, 2), 4000)
    for one, other in zip(kernel, plain, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("offline", ["wait", "lose"])
@pytest.mark.parametrize("parts", [AWAY, {**AWAY, **LINKS}, {"hours": HOURS}], ids=["a", "b", "c"])
def test_absences_are_those_of_the_kernel_in_distribution(offline, parts) -> None:
    given = dict(parts)
    hours = given.pop("hours", None)
    network, rounds = network_of(**given), 1500
    scenario = Scenario(policy="never-queue", law="erlang", offline=offline, hours=hours)
    found = []
    for start in (PlainRun, lambda n, s, seed: start_run(n, s, seed=seed)):
        runs = [completions(start(network, scenario, seed), rounds) for seed in range(25)]
        rates = [np.bincount(c, minlength=10) / t[-1] for c, _, t in runs]
        found.append(Estimate.from_samples(np.array(rates)))
    error = np.hypot(found[0].standard_error, found[1].standard_error)
    assert np.abs((found[0].mean - found[1].mean) / error).max() < 4.0


@dataclass(frozen=True)
class Fastest(Policy):
    """A stranger's policy: the fastest living client without a task."""

    name: ClassVar[str] = "fastest"
    one_task_each: ClassVar[bool] = True

    def chooser(self, random) -> Chooser:
        return _Fastest()


class _Fastest(Chooser):
    def choose(self, view, finisher):
        idle = [client for client in view.living if not view.tasks(client)]
        return max(idle, key=lambda client: view.rates[client], default=None)


@pytest.mark.parametrize("offline", ["wait", "lose"])
@pytest.mark.parametrize(
    "policy",
    [Fastest(), "restart", "first-of", "attempts", {"name": "never-queue", "patience": 0.5}],
    ids=str,
)
def test_every_policy_runs_in_every_world(tmp_path, policy, offline) -> None:
    network = network_of(6, server_rate=4.0, **LINKS, **AWAY)
    parts = {"hours": HOURS, "drift": Drift([[(5.0, 0.5), (90.0, 2.0)]]), "law": "lognormal"}
    run = simulate(network, rounds=800, policy=policy, offline=offline, seed=3, **parts)
    again = simulate(
        network, rounds=800, policy=policy, offline=offline, seed=3, folder=tmp_path / "s", **parts
    )
    np.testing.assert_array_equal(run.time, again.time)
    assert np.all(np.diff(run.time) >= 0.0) and np.all(run.dispatched <= np.arange(800))
    assert run.pending_client.size <= run.in_flight


def test_a_policy_sees_only_those_who_are_present() -> None:
    """The only fast client is there for the first half of the time, and gets tasks only then."""
    fleet = sj.Fleet([5.0, 1.0])
    hours = Hours([[(0.0, 10.0)], [(0.0, 20.0)]], period=20.0)
    network = sj.Network(fleet, [0.5, 0.5], 1)
    run = simulate(network, rounds=600, policy=Fastest(), hours=hours, law="deterministic")
    begun = run.time - 1.0 / fleet.service_rates[run.client]
    assert set(run.client[run.time % 20.0 < 9.0].tolist()) == {0}
    assert np.all(begun[run.client == 1] % 20.0 > 8.0)


def test_patience_begins_anew_with_the_present_weights() -> None:
    """Times of 1 and 9, stopped at 2: a task is as old as its last attempt, in which few complete."""
    network = sj.Network(sj.Fleet([1.0, 1.0, 1.0]), [0.3, 0.3, 0.4], 3)
    law = sj.Trace([1.0, 9.0])
    run = simulate(network, rounds=3000, policy=sj.NeverQueue(patience=2.0 / 5.0), law=law, seed=1)
    assert run.relative_delay.max() <= 4
    # Half of the attempts take .2, the others are stopped at .4: .6 per task and client.
    assert run.throughput(warm_up=300) == pytest.approx(3 / 0.6, rel=0.05)
    plain = simulate(network, rounds=3000, policy="never-queue", law=law, seed=1)
    assert plain.throughput(warm_up=300) == pytest.approx(3.0, rel=0.05)
    assert plain.relative_delay.max() > 8
    assert not sj.NeverQueue(patience=2.0).deployable and sj.NeverQueue().deployable
    with pytest.raises(sj.InvalidInput, match="patience"):
        sj.NeverQueue(patience=0.0)
