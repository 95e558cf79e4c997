"""The simulator side by side with Ciw, SimPy and LINE, and its growth with the size of the network.

    python benchmarks/simulate.py [--repeats 5] [--only policies|links]

The peers run as separate processes in an environment of their own. All simulate the same closed
network: n = m = 30 clients in three clusters with rates 0.01, 0.1 and 1, uniform routing, first in first
out. Runs are interleaved, and the best of ``--repeats`` counts for everyone, since noise on a
shared machine only ever slows a run down; so time is processor time, or time on the clock where that
is less. Start-up is not counted: every tool is timed inside its own
process, and LINE, which is a separate program, by the difference of a long and a short run.

Sojourn records every completion (client, dispatch, time); SimPy is made to record the same; Ciw
keeps its own records; LINE returns averages only, and its confidence intervals and transient
filter are switched off to favour it.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import product

from peers import call, environment, machine

RATES = [0.01] * 10 + [0.1] * 10 + [1.0] * 10
POLICY_SIZES = (100, 1_000, 10_000, 100_000)
POLICY_TARGET = 2.0
LINKS_TARGET = 10.0
GROWTH = (100, 1_000, 10_000, 100_000, 1_000_000)
TARGETS = {"ciw": 500.0, "simpy": 80.0, "line": 5.0, "line, lognormal": 3.0}


def ciw_rate(rates: list[float]) -> float:
    import time

    import ciw  # type: ignore[import-not-found]

    n = len(rates)
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([1e-9, float("inf")]) for _ in rates],
        service_distributions=[ciw.dists.Exponential(rate) for rate in rates],
        routing=[[1.0 / n] * n for _ in rates],
        number_of_servers=[1] * n,
    )
    ciw.seed(1)
    simulation = ciw.Simulation(network)
    begun = time.process_time()
    simulation.simulate_until_max_time(40_000.0)
    elapsed = time.process_time() - begun
    tasks = (task for node in simulation.transitive_nodes for task in node.all_individuals)
    return sum(len(task.data_records) for task in tasks) / elapsed


def simpy_rate(rates: list[float]) -> float:
    import random
    import time

    import simpy  # type: ignore[import-not-found]

    rounds = 40_000
    env = simpy.Environment()
    draw = random.Random(1)
    stores = [simpy.Store(env) for _ in rates]
    completions: list[tuple[int, int, float]] = []
    finished = env.event()

    def client(index: int):  # type: ignore[no-untyped-def]
        while True:
            dispatched = yield stores[index].get()
            yield env.timeout(draw.expovariate(rates[index]))
            completions.append((index, dispatched, env.now))
            if len(completions) == rounds:
                finished.succeed()
            stores[draw.randrange(len(rates))].put(len(completions))

    for index, store in enumerate(stores):
        store.put(0)
        env.process(client(index))
    begun = time.process_time()
    env.run(until=finished)
    return rounds / (time.process_time() - begun)


def line_rate(rates: list[float], law: str) -> float:
    import math
    import os
    import time

    from line_solver import (  # type: ignore[import-not-found]
        LDES,
        ClosedClass,
        Exp,
        GlobalConstants,
        Lognormal,
        Network,
        Queue,
        SchedStrategy,
        VerboseLevel,
    )

    GlobalConstants.set_verbose(VerboseLevel.SILENT)
    n = len(rates)
    model = Network("clusters")
    queues = [Queue(model, f"client{i}", SchedStrategy.FCFS) for i in range(n)]
    tasks = ClosedClass(model, "tasks", n, queues[0])
    for queue, rate in zip(queues, rates, strict=True):
        spread = math.exp(1.0) - 1.0  # sigma = 1
        service = Exp(rate) if law == "exponential" else Lognormal.fitMeanAndSCV(1 / rate, spread)
        queue.setService(tasks, service)
    routing = model.initRoutingMatrix()
    for a in queues:
        for b in queues:
            routing.set(tasks, tasks, a, b, 1.0 / n)
    model.link(routing)

    def seconds(rounds: int) -> float:
        solver = LDES(model, samples=rounds, seed=1, cimethod="none", tranfilter="none")
        clocks = [time.perf_counter(), sum(os.times()[:4])]
        solver.getAvgTable()
        return min(time.perf_counter() - clocks[0], sum(os.times()[:4]) - clocks[1])

    short, long = 500_000, 5_500_000
    return (long - short) / (seconds(long) - seconds(short))


def sojourn_rate(law: str) -> float:
    import sojourn as sj

    fleet = sj.Fleet(RATES)
    network = sj.Network(fleet, sj.uniform_routing(fleet), len(RATES))
    rounds = 10_000_000
    return rounds / _seconds(lambda: sj.simulate(network, rounds=rounds, law=law, seed=1))


def growth(repeats: int) -> dict[int, float]:
    """Best nanoseconds per round at n = m, three classes of clients, stationary start."""
    import sojourn as sj

    rounds = 5_000_000
    best = dict.fromkeys(GROWTH, float("inf"))
    for _ in range(repeats):
        for n in GROWTH:
            fleet = sj.Fleet([0.5, 1.0, 2.0], counts=[n // 4, n // 4, n - 2 * (n // 4)])
            network = sj.Network(fleet, sj.balanced_routing(fleet), n)
            run = partial(sj.simulate, network, rounds=rounds, start="stationary")
            best[n] = min(best[n], _seconds(run) / rounds * 1e9)
    return best


def policies(repeats: int) -> dict[tuple[str, int, int], tuple[float, float]]:
    """Best nanoseconds per round, routed and never-queue, by law, clients and tasks.

    With exponential service a routed round has a kernel of its own; with lognormal service both
    run in the same one, so that the policy is all that differs. Three classes of clients, balanced
    routing, tasks dealt round-robin, m = n and m = n/2.
    """
    import sojourn as sj

    rounds = 2_000_000
    best: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(repeats):
        for law, n, halves in product(("exponential", "lognormal"), POLICY_SIZES, (2, 1)):
            fleet = sj.Fleet([0.5, 1.0, 2.0], counts=[n // 4, n // 4, n - 2 * (n // 4)])
            network = sj.Network(fleet, sj.balanced_routing(fleet), n * halves // 2)
            times = best.setdefault((law, n, network.concurrency), [float("inf")] * 2)
            for place, policy in enumerate(("routed", "never-queue")):
                run = partial(sj.simulate, network, rounds=rounds, law=law, policy=policy)
                times[place] = min(times[place], _seconds(run) / rounds * 1e9)
    return {key: (routed, busy) for key, (routed, busy) in best.items()}


def links(repeats: int) -> tuple[float, float]:
    """Best nanoseconds per round of clients alone, and where every task also travels both ways."""
    import sojourn as sj

    rounds, n = 500_000, len(RATES)
    best = [float("inf")] * 2
    for _ in range(repeats):
        for place, times in enumerate((None, [1.0] * n)):
            fleet = sj.Fleet(RATES, downlink=times, uplink=times)
            network = sj.Network(fleet, sj.uniform_routing(fleet), n)
            run = partial(sj.simulate, network, rounds=rounds, law="lognormal")
            run()  # compile
            best[place] = min(best[place], _seconds(run) / rounds * 1e9)
    return best[0], best[1]


def report_links(repeats: int) -> None:
    alone, travelling = links(repeats)
    print(
        f"\nlognormal, n = m = {len(RATES)}: {alone:.1f} ns per round, {travelling:.1f} with links: "
        f"{travelling / alone:.1f}x (target: at most {LINKS_TARGET:.0f}x)"
    )


def report_policies(repeats: int) -> None:
    print(f"\nnanoseconds per round, balanced routing; best of {repeats}")
    print(f"{'law':14}{'n':>10}{'m':>10}{'routed':>10}{'never-queue':>14}{'ratio':>8}")
    worst: dict[str, float] = {}
    for (law, n, m), (routed, busy) in policies(repeats).items():
        print(f"{law:14}{n:>10,}{m:>10,}{routed:10.1f}{busy:14.1f}{busy / routed:8.2f}")
        if m == n:
            worst[law] = max(worst.get(law, 0.0), busy / routed)
    for law, ratio in worst.items():
        print(f"worst at m = n, {law}: {ratio:.2f}x (target: at most {POLICY_TARGET:.0f}x)")


def _seconds(run: Callable[[], object]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


PEERS: dict[str, tuple[Callable[..., float], dict[str, str]]] = {
    "ciw": (ciw_rate, {}),
    "simpy": (simpy_rate, {}),
    "line": (line_rate, {"law": "exponential"}),
    "line, lognormal": (line_rate, {"law": "lognormal"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulator benchmark")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only", choices=["policies", "links"], help="this section alone, without peers"
    )
    options = parser.parse_args()
    repeats = options.repeats
    if options.only:
        print(machine())
        {"policies": report_policies, "links": report_links}[options.only](repeats)
        return
    python = environment("ciw==3.2.7", "simpy==4.1.2", "line-solver==3.0.8.0")
    for law in ("exponential", "lognormal"):
        sojourn_rate(law)  # compile
    best = dict.fromkeys(["sojourn", "sojourn, lognormal", *PEERS], 0.0)
    for _ in range(repeats):
        best["sojourn"] = max(best["sojourn"], sojourn_rate("exponential"))
        best["sojourn, lognormal"] = max(best["sojourn, lognormal"], sojourn_rate("lognormal"))
        for peer, (function, arguments) in PEERS.items():
            rate = call(python, function, timeout=600, rates=RATES, **arguments)
            best[peer] = max(best[peer], rate)

    print(machine())
    print(f"\nn = m = {len(RATES)}, three clusters, uniform routing; best of {repeats}")
    print(f"{'':22}{'rounds/s':>14}{'Sojourn is':>14}{'target':>10}")
    for name, rate in best.items():
        ours = best["sojourn, lognormal" if "lognormal" in name else "sojourn"]
        target = f"{TARGETS[name]:.0f}x" if name in TARGETS else ""
        print(f"{name:22}{rate:14,.0f}{ours / rate:13.1f}x{target:>10}")
    print("\nn = m, balanced routing, stationary start")
    sizes = growth(repeats)
    for n, nanoseconds in sizes.items():
        print(f"{n:>10,}{nanoseconds:10.1f} ns per round")
    ratio = sizes[GROWTH[-1]] / sizes[GROWTH[0]]
    print(f"growth from {GROWTH[0]:,} to {GROWTH[-1]:,}: {ratio:.1f}x (target: at most 40x)")
    report_policies(repeats)
    report_links(repeats)


if __name__ == "__main__":
    main()
