"""The floor with local work, links, stopping and absences: beside simulation, and never undercut."""

import math

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.estimate import Estimate
from sojourn.dispatch import intervals
from sojourn.fleet.laws import Law, Trace
from sojourn.simulation.scenario import each_client
from sojourn.simulation.schedule import time_spent
from sojourn.simulation.simulate import simulate
from sojourn.theory.floor import (
    balanced_work,
    best_patience,
    duty_cycles,
    noise_floor,
    noise_rate,
    round_trip_rates,
    stopped_times,
    target_rates,
)
from sojourn.theory.never_queue import never_queue
from tests.reference.attempts import completion_rates

LAWS = [
    Law("exponential"),
    Law("lognormal", sigma=1.0),
    Law("pareto", shape=2.5),
    Law("weibull", shape=0.7),
    Law("erlang", stages=3),
]
HEAVY = [
    Law("lognormal", sigma=1.0),
    Law("lognormal", sigma=2.0),
    Law("pareto", shape=1.5),
    Law("weibull", shape=0.5),
    Law("hyperexponential", scv=8.0),
]
SOME = [0, 1]


def random_fleet(seed: int, *, links: bool = False, away: bool = False) -> sj.Fleet:
    random = np.random.default_rng(seed)
    classes = int(random.integers(1, 4))
    columns = {}
    if links:
        columns = {name: random.exponential(1.0, classes) for name in ("downlink", "uplink")}
    if away:
        columns |= {"mean_up": random.uniform(1.0, 9.0, classes)}
        columns |= {"mean_down": random.uniform(0.5, 5.0, classes)}
    counts = random.integers(1, 4, classes)
    return sj.Fleet(10.0 ** random.uniform(-1.0, 1.0, classes), counts, **columns)


def network_of(fleet: sj.Fleet, tasks: int) -> sj.Network:
    return sj.Network(fleet, sj.uniform_routing(fleet), tasks)


def rates_of(schedule: sj.Schedule, warm_up: int) -> np.ndarray:
    completed = np.bincount(schedule.client[warm_up:], minlength=schedule.network.size)
    return completed / (schedule.time[-1] - schedule.time[warm_up - 1])


def simulated_rates(
    network: sj.Network, *, runs: int = 20, rounds: int = 3000, **parts
) -> Estimate:
    schedules = [simulate(network, rounds=rounds, seed=seed, **parts) for seed in range(runs)]
    return Estimate.from_samples(np.array([rates_of(one, rounds // 4) for one in schedules]))


def check(found: Estimate, theory: np.ndarray, error: float | np.ndarray = 0.0) -> None:
    """Within four standard errors; ``error`` is that of the ``theory``, where it is simulated, too."""
    z = (found.mean - theory) / np.hypot(found.standard_error, error)
    assert np.abs(z).max() < 4.0, (found.mean, theory, z)


def cases(laws):
    """Two fleets and two laws at once; all of ten fleets and five laws with the slow tests."""
    return [
        pytest.param(f, law, id=f"{f}-{law}", marks=() if f in SOME and k in SOME else pytest.mark.slow)
        for f in range(10)
        for k, law in enumerate(laws)
    ]  # fmt: skip


@pytest.mark.parametrize(("seed", "law"), cases(LAWS))
def test_local_work_beside_simulation(seed: int, law: Law) -> None:
    """With a task for everybody a client completes one task per round trip, whatever its work."""
    fleet = each_client(network_of(random_fleet(seed, links=seed % 2 == 1), 1)).fleet
    work = np.random.default_rng(seed).integers(1, 9, fleet.size).astype(float)
    network = network_of(fleet, fleet.size)
    found = simulated_rates(network, policy="never-queue", law=law, work=work)
    check(found, round_trip_rates(fleet, work))
    check(found, never_queue(network, work=work).rates)


@pytest.mark.parametrize("links", [False, True])
def test_local_work_with_fewer_tasks_than_clients_follows_the_targets(links: bool) -> None:
    fleet = each_client(network_of(random_fleet(5, links=links), 1)).fleet
    assert fleet.size >= 4
    work = np.arange(1.0, fleet.size + 1.0)
    schedule = simulate(
        network_of(fleet, 2), rounds=40_000, policy="never-queue", work=work, law="erlang", seed=1
    )
    targets = target_rates(fleet, 2, work)
    np.testing.assert_allclose(rates_of(schedule, 4000), targets, rtol=0.03)
    np.testing.assert_allclose(schedule.shares, targets / targets.sum(), rtol=1e-9)
    found = noise_rate(fleet, rates_of(schedule, 4000), work)
    assert found == pytest.approx(noise_rate(fleet, targets, work), rel=0.03)
    assert found > 0.97 * noise_floor(fleet, 2, work=work)


def test_work_is_one_number_per_client_and_survives_files(tmp_path) -> None:
    fleet = sj.Fleet([1.0, 2.0], counts=[2, 1])
    network = network_of(fleet, 3)
    same = simulate(network, rounds=500, seed=1, work=2.5, law="gamma")
    each = simulate(network, rounds=500, seed=1, work=[2.5] * 3, law="gamma")
    np.testing.assert_array_equal(same.time, each.time)
    simulate(network, rounds=50, seed=1, work=[1.0, 2.0, 3.0], folder=tmp_path / "s")
    read = sj.Schedule.read(tmp_path / "s")
    assert read.scenario.work == (1.0, 2.0, 3.0) and hash(read.scenario)
    with pytest.raises(sj.InvalidInput, match="one for each of the 3 clients; there are 2"):
        simulate(network, rounds=5, work=[1.0, 2.0])
    with pytest.raises(sj.InvalidInput, match="work must be positive"):
        simulate(network, rounds=5, work=[1.0, 0.0, 2.0])


def test_the_floor_with_work_goes_from_the_wire_to_the_fleet_without_links() -> None:
    fleet = sj.Fleet([1.0, 4.0], counts=[3, 2], downlink=[2.0, 1.0], uplink=[1.0, 3.0])
    bare = sj.Fleet([1.0, 4.0], counts=[3, 2])
    floors = [noise_floor(fleet, 5, work=h) for h in (1.0, 3.0, 30.0, 1e9)]
    assert floors == sorted(floors, reverse=True)
    assert floors[-1] == pytest.approx(noise_floor(bare, 5), rel=1e-6)
    balanced = noise_floor(fleet, 5, work=balanced_work(fleet))
    assert balanced < 2.0 * noise_floor(bare, 5) + 1e-12


@pytest.mark.parametrize(("seed", "law"), cases(HEAVY))
def test_patience_beside_simulation(seed: int, law: Law) -> None:
    fleet = random_fleet(seed)
    network, patience = network_of(fleet, fleet.size), 0.4 + 0.2 * seed
    policy = {"name": "never-queue", "patience": patience}
    runs = [simulate(network, rounds=1200, policy=policy, law=law, seed=s) for s in range(20)]
    theory = sj.analyze(network, policy, law=law)
    of = Estimate.from_samples(np.array([rates_of(run, 300) for run in runs]))
    check(of, fleet.expand(theory.rates))
    if fleet.size > 1:
        stale = np.array([run.staleness(warm_up=300) for run in runs])
        heard = np.isfinite(stale).all(axis=0)  # slow clients may complete nothing in a short run
        assert heard.any()
        check(Estimate.from_samples(stale[:, heard]), fleet.expand(theory.staleness)[heard])


@pytest.mark.parametrize("law", HEAVY, ids=str)
def test_best_patience_is_the_best_of_many(law: Law) -> None:
    cost = 0.1
    found = best_patience(law, restart_cost=cost)
    tried = np.geomspace(0.01, 30.0, 60)
    times = law.sample(np.random.default_rng(1), 400_000)
    rates = [
        (times <= a).mean() / (cost + np.minimum(times, a).mean()) for a in [found.patience, *tried]
    ]
    assert rates[0] == pytest.approx(found.rate, rel=0.02)
    assert max(rates) <= found.rate * 1.02


def test_patience_of_other_laws() -> None:
    assert best_patience("exponential") == (math.inf, 1.0)
    assert best_patience("erlang").patience == math.inf
    mixed = Trace([1.0] * 9 + [91.0])
    found = best_patience(mixed)
    assert found.patience == pytest.approx(0.1) and found.rate == pytest.approx(9.0)
    smallest = best_patience(Trace([1.0, 100.0]))
    assert smallest.patience == pytest.approx(1.0 / 50.5) and smallest.rate == pytest.approx(25.25)
    assert best_patience({"name": "lognormal", "sigma": 10.0}).rate > 1e40
    assert best_patience({"name": "erlang", "stages": 10**9}).patience == math.inf
    with pytest.raises(sj.InvalidInput, match="no task of the law"):
        stopped_times("deterministic", 0.5)


@pytest.mark.parametrize("scv", [1.5, 4.0, 8.0, 100.0])
def test_hyperexponential_tasks_are_stopped_the_sooner_the_better(scv: float) -> None:
    """Free starts: the rate rises to the density at 0 as attempts grow shorter, and never exceeds it."""
    law = Law("hyperexponential", scv=scv)
    fast = 0.5 * (1.0 + math.sqrt((scv - 1.0) / (scv + 1.0)))
    limit = best_patience(law)
    assert limit.patience == 0.0
    assert limit.rate == pytest.approx(2.0 * fast**2 + 2.0 * (1.0 - fast) ** 2)
    rates = [stopped_times(law, a).rate for a in (1e-6, 1e-3, 0.1, 1.0, 10.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(limit.rate, rel=1e-4) and rates[0] <= limit.rate * (1 + 1e-9)
    costly = best_patience(law, restart_cost=1e-6)
    assert 0.0 < costly.patience < 0.1 and costly.rate == pytest.approx(limit.rate, rel=1e-2)
    fleet = sj.Fleet([0.1, 1.0], counts=[5, 5])
    assert noise_floor(fleet, 10, stopping=law) == pytest.approx(
        noise_floor(fleet, 10) / limit.rate
    )


def test_the_floor_of_hyperexponential_tasks_is_approached_by_short_attempts() -> None:
    fleet, law = sj.Fleet([0.1, 1.0], counts=[5, 5]), Law("hyperexponential", scv=8.0)
    floor, found = noise_floor(fleet, 10, stopping=law), []
    for patience in (10.0, 0.02):
        policy = {"name": "never-queue", "patience": patience}
        run = simulate(network_of(fleet, 10), rounds=40_000, policy=policy, law=law, seed=1)
        found.append(noise_rate(each_client(run.network).fleet, rates_of(run, 4000)))
    assert found[0] > 1.1 * floor
    assert found[1] == pytest.approx(floor, rel=0.03)


@pytest.mark.parametrize("name", ["weibull", "gamma"])
def test_free_starts_of_times_with_infinite_density_at_zero_have_no_floor_but_with_links(
    name: str,
) -> None:
    law = Law(name, shape=0.5)
    bare, linked = sj.Fleet([1.0, 4.0]), sj.Fleet([1.0, 4.0], uplink=[0.1, 0.05])
    for refused in (lambda: best_patience(law), lambda: noise_floor(bare, 2, stopping=law)):
        with pytest.raises(
            sj.InvalidInput, match=r"the noise has no floor above 0. Give a restart"
        ):
            refused()
    partly = sj.Fleet([1.0, 4.0], uplink=[0.0, 2.0])
    with pytest.raises(sj.InvalidInput, match="no floor above 0"):
        noise_floor(partly, 2, stopping=law)
    assert 0.0 < noise_floor(bare, 2, stopping=law, restart_cost=0.1) < noise_floor(bare, 2)
    # A place delivers one update per uplink at most, however many tasks a client completes.
    floors = [noise_floor(linked, m, stopping=law) for m in (2, 20, 200)]
    assert floors[0] < noise_floor(linked, 2)
    np.testing.assert_allclose(floors, [floors[0], floors[0] / 10, floors[0] / 100])
    mixed = noise_floor(linked, 200, stopping=[law, Law("exponential")])
    assert floors[-1] < mixed < noise_floor(linked, 200)


def test_a_sampled_law_is_stopped_only_if_that_is_significantly_faster() -> None:
    class Own:
        def __init__(self, law: Law) -> None:
            self.name, self.sample = "own", law.sample

    assert best_patience(Own(Law("exponential"))) == (math.inf, 1.0)
    assert best_patience(Own(Law("erlang"))) == (math.inf, 1.0)
    for law, near in [("lognormal", 1.1208), ("hyperexponential", 1.6)]:
        assert best_patience(Own(Law(law))).rate == pytest.approx(near, rel=0.02)


def check_against_the_loop(fleet: sj.Fleet, tasks: int, law: Law, **parts) -> None:
    """Completions of every client, in the simulator and in a loop that shares no code with it."""
    rounds, runs = 1500, 20
    patience = parts.get("patience", math.inf)
    work = parts.get("work", 1.0)
    policy = sj.NeverQueue(None if patience == math.inf else patience)
    found = simulated_rates(
        network_of(fleet, tasks), runs=runs, rounds=rounds, policy=policy, law=law, work=work
    )
    due = fleet.expand(intervals(fleet, tasks, work))
    loops = [
        completion_rates(
            fleet,
            tasks,
            law=law,
            interval=due,
            rounds=rounds,
            warm_up=rounds // 4,
            seed=seed,
            **parts,
        )
        for seed in range(runs)
    ]
    loop = Estimate.from_samples(np.array(loops))
    check(found, loop.mean, loop.standard_error)


@pytest.mark.parametrize(
    "seed", [*SOME, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 10))]
)
@pytest.mark.parametrize("patience", [math.inf, 0.7])
def test_the_simulator_and_an_independent_loop_agree(seed: int, patience: float) -> None:
    fleet = each_client(network_of(random_fleet(seed, links=True), 1)).fleet
    work = np.random.default_rng(seed).integers(1, 5, fleet.size).astype(float)
    law = Law("lognormal", sigma=1.0)
    check_against_the_loop(fleet, fleet.size, law, work=work, patience=patience)


@pytest.mark.parametrize(("seed", "law"), cases(LAWS))
def test_absences_and_an_independent_loop_agree(seed: int, law: Law) -> None:
    """Also with fewer tasks than clients, where the policy must choose among those that are there."""
    fleet = each_client(network_of(random_fleet(seed, away=True), 1)).fleet
    check_against_the_loop(fleet, max(1, fleet.size // 2), law)


@pytest.mark.parametrize(("seed", "law"), cases(LAWS))
def test_absences_beside_simulation(seed: int, law: Law) -> None:
    """With a task for everybody a client is busy whenever it is there."""
    fleet = random_fleet(seed, away=True)
    network = network_of(fleet, fleet.size)
    found = simulated_rates(network, policy="never-queue", law=law, rounds=6000)
    check(found, fleet.expand(never_queue(network).rates))


def test_never_queue_asks_only_who_is_present() -> None:
    """Ten clients, half of the time away for a thousand tasks: the floor, where it was sixty times it."""
    fleet = sj.Fleet([1.0], counts=[10], mean_up=[1000.0], mean_down=[1000.0])
    network = network_of(fleet, 2)
    noise = []
    for seed in range(8):
        run = simulate(network, time=400_000.0, policy="never-queue", seed=seed)
        rates = np.bincount(run.client, minlength=10) / run.duration
        noise.append(noise_rate(each_client(network).fleet, rates))
    found = Estimate.from_samples(np.array(noise))
    assert found.mean < 1.2 * noise_floor(fleet, 2)
    assert sj.analyze(network, "never-queue").caution
    assert not sj.analyze(network_of(fleet, 10), "never-queue").caution


def test_approximations_say_where_they_are_not_to_be_trusted() -> None:
    network = network_of(sj.Fleet([1.0, 2.0]), 3)
    assert not sj.analyze(network).caution
    assert not sj.analyze(network, law="lognormal").caution
    assert "53.6" in sj.analyze(network, law={"name": "lognormal", "sigma": 2.0}).caution
    away = sj.Fleet([1.0, 2.0], mean_up=[99.0, 9.0], mean_down=[50.0, 1.0])
    assert "away for up to 50" in sj.analyze(network_of(away, 3)).caution


def undercuts(seed: int) -> tuple[float, str]:
    """Noise over the floor of the times that were drawn in one random run; infinite if one is unheard.

    The bound holds path by path: what clients computed and what travelled is at most the time there
    was, for every client and for all places.
    """
    random = np.random.default_rng(seed)
    fleet = each_client(network_of(random_fleet(seed, links=bool(random.integers(2))), 1)).fleet
    name = ["routed", "never-queue", "idle", "shuffled", "synchronous"][random.integers(5)]
    most = fleet.size if name in ("idle", "synchronous") else 2 * fleet.size
    tasks = int(random.integers(1, most + 1))
    routing = random.dirichlet(np.full(fleet.size, 5.0))
    network = sj.Network(fleet, routing, tasks)
    law = LAWS[random.integers(5)]
    run = simulate(network, rounds=400, policy=name, law=law, seed=seed)
    completed = np.bincount(run.client, minlength=fleet.size)
    if not completed.all():
        return math.inf, name
    spent = time_spent(run)
    columns = {} if fleet.downlink is None else {
        "downlink": spent[:, 1] / completed, "uplink": spent[:, 2] / completed
    }  # fmt: skip
    drawn = sj.Fleet(completed / spent[:, 0], **columns)
    return noise_rate(fleet, completed / run.duration) / noise_floor(drawn, tasks), name


def test_no_policy_that_finishes_its_tasks_is_below_the_floor() -> None:
    found = [undercuts(seed) for seed in range(1000)]
    ratios = np.array([ratio for ratio, _ in found])
    assert np.isfinite(ratios).sum() > 700
    assert ratios.min() > 1.0 - 1e-9
    assert min(ratio for ratio, name in found if name == "never-queue") < 1.02


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 50))]
)
def test_stopping_is_below_the_floor_of_finishing_but_not_below_its_own(
    seed: int, links: bool
) -> None:
    """`restart` and patience, best or not, on fleets with and without links.

    Weibull times have a floor only with links: without, tasks complete as fast as one likes.
    """
    laws = HEAVY if links else [law for law in HEAVY if law.name != "weibull"]
    fleet, law = random_fleet(seed, links=links), laws[seed // 2 % len(laws)]
    patience = best_patience(law, restart_cost=0.0 if law.name != "weibull" else 0.1).patience
    policy = (
        {"name": "restart", "max-staleness": 1 + seed % 12}
        if seed % 2
        else {"name": "never-queue", "patience": max(patience, 0.02) * (1 + seed // 2 % 4)}
    )
    tasks = max(1, fleet.size - seed % 3)
    noise = []
    for s in range(12):
        run = simulate(network_of(fleet, tasks), rounds=600, policy=policy, law=law, seed=s)
        completed = np.bincount(run.client, minlength=fleet.size)
        noise.append(
            noise_rate(each_client(run.network).fleet, np.maximum(completed, 1e-9) / run.duration)
        )
    found = Estimate.from_samples(np.array(noise))
    floor = noise_floor(fleet, tasks, stopping=law)
    assert found.mean + 4.0 * found.standard_error > floor


def test_stopping_undercuts_the_floor_of_policies_that_finish() -> None:
    fleet, law = sj.Fleet([0.1, 1.0], counts=[5, 5]), Law("pareto", shape=1.5)
    policy = {"name": "never-queue", "patience": best_patience(law).patience}
    run = simulate(network_of(fleet, 10), rounds=40_000, policy=policy, law=law, seed=1)
    noise = noise_rate(each_client(run.network).fleet, rates_of(run, 4000))
    assert noise < 0.8 * noise_floor(fleet, 10)
    assert noise == pytest.approx(noise_floor(fleet, 10, stopping=law), rel=0.03)


@pytest.mark.parametrize("law", [Law("lognormal", sigma=2.0), Law("weibull", shape=0.5)], ids=str)
def test_with_links_a_stopped_attempt_costs_the_downlink_alone(law: Law) -> None:
    """The best patience for it attains the floor; were the uplink paid again, the floor would be higher."""
    fleet = sj.Fleet([2.0], counts=[5], downlink=[0.05], uplink=[1.0])
    best = best_patience(law, restart_cost=0.1)
    policy = {"name": "never-queue", "patience": best.patience}
    run = simulate(network_of(fleet, 5), rounds=40_000, policy=policy, law=law, seed=1)
    noise = noise_rate(each_client(run.network).fleet, rates_of(run, 4000))
    assert noise == pytest.approx(noise_floor(fleet, 5, stopping=law), rel=0.03)
    assert noise < 0.9 * noise_floor(fleet, 5)
    dearer = 1.0 / (2.0 * 5 * best_patience(law, restart_cost=2.1).rate)
    assert noise < 0.9 * dearer


def test_duty_cycles_with_work_are_optimal() -> None:
    fleet = sj.Fleet([0.5, 1.0, 4.0], counts=[2, 3, 1], uplink=[1.0, 0.5, 2.0])
    work = np.array([1.0, 4.0, 8.0])
    cycles = duty_cycles(fleet, 3, work)
    gain = 1.0 / (cycles**2 * work * round_trip_rates(fleet, work))
    free = cycles < 1.0
    assert fleet.counts @ cycles == pytest.approx(3.0)
    assert gain[free].max() == pytest.approx(gain[free].min()) and free.any()
