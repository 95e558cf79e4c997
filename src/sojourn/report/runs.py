"""The page of a run: verdict, timelines and curves first, the results by group, the rest folded."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sojourn._support.estimate import Estimate
from sojourn._support.numbers import UNKNOWN, number
from sojourn.dispatch import Routed
from sojourn.errors import InvalidFile, SojournError
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.figures.palette import inks
from sojourn.figures.timeline import OPENING_ROWS, TITLE, Timeline
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.fleet.named import read_fleet
from sojourn.report.deployment import Prediction, deployment_of, deployment_sections, verdict_on
from sojourn.report.outcomes import (
    by_strategy,
    final,
    final_text,
    finished,
    learning_figure,
    mean_time,
    measures_of,
    seen_staleness,
    time_text,
)
from sojourn.report.page import Drawing, Report, Section
from sojourn.report.privacy import privacy_section
from sojourn.report.tuned import conditions_section, factors_section, halving_section
from sojourn.report.verdict import REFERENCES, Verdict, run_verdict
from sojourn.runs.folder import Run, RunFolder
from sojourn.runs.history import History
from sojourn.simulation.simulate import previews, simulate
from sojourn.strategy import Strategy
from sojourn.theory.jackson import Analysis, analyze
from sojourn.types import FloatArray, IntArray

TIMELINE_WIDTH = 400.0
"""Of a timeline among others: as wide as a phone, so that it is whole there too."""
_DEPTH = 3
FEW_CLASSES = 6
BESIDE = 0.05
"""How far right of the theory a simulation is drawn, so that both are seen."""
UNKNOWN_TO_THEORY = {"hours", "drift"}
"""Keys of an experiment that only simulations take into account."""
SIMULATED_ROUNDS = 200_000
PREDICTIONS = 8
FIRST_SEED = 10_000
"""Of the predictions, so that they are not the run's own."""


def report_of(folders: Iterable[str | Path], *, title: str | None = None) -> Report:
    """A report on every run in these folders, or up to three levels below them."""
    runs = [run for folder in folders for run in runs_in(Path(folder))]
    sections = [section for i, run in enumerate(runs, 1) for section in run_sections(run, i)]
    origins = {run.name: run.summary.get("provenance", {}) for run in runs}
    alone = verdict_on(runs[0]) if len(runs) == 1 else None
    return Report(
        title or (f"{len(runs)} runs" if alone is None else alone.title),
        tuple(sections),
        because="" if alone is None else alone.because,
        command="" if alone is None else alone.next_command,
        origins={name: values for name, values in origins.items() if values},
    )


def runs_in(folder: Path) -> list[Run]:
    """Every run in ``folder`` or up to three levels below it; it is an error if there is none."""
    if not folder.is_dir():
        raise InvalidFile(f"{folder}: not a folder. Give folders that a command wrote.")
    runs = _walk(folder, _DEPTH)
    if not runs:
        raise InvalidFile(
            f"{folder}: nothing to report: no {RunFolder(folder).history_path.name} in it. Give a "
            "folder written by 'sojourn train', 'tune', 'reproduce', 'demo' or 'deploy'."
        )
    return runs


def run_sections(run: Run, index: int) -> list[Section]:
    """What there is to show of a run: the first screen, then folded how it came about."""
    if (deployed := deployment_of(run)) is not None:
        return deployment_sections(run, index, deployed)
    strategies, unreadable = strategies_of(run)
    verdict = run_verdict(run)
    fleet = read_fleet(str(run.experiment["fleet"]), run.path) if strategies else None
    opening = opening_section(run, index, verdict)
    if fleet is not None and verdict.pick in strategies:
        shown = beside_uniform(strategies[verdict.pick], fleet)
        drawing = Drawing.of_timelines(f"timeline-{index}", TITLE, shown, OPENING_ROWS)
        opening = replace(opening, drawings=(drawing,))
    notes = [*opening.notes, *plan_notes(strategies), *([unreadable] if unreadable else [])]
    sections = [replace(opening, notes=tuple(notes))]
    made = [make(run, index) for make in (privacy_section, factors_section, conditions_section)]
    sections += [section for section in made if section is not None]
    if run.tuning:
        sections.append(halving_section(run, index))
    if strategies and fleet is not None:
        sections.append(timeline_section(index, of_every_strategy(strategies, fleet)))
    if run.networks or strategies:
        sections.append(fleet_section(run, index, strategies, fleet))
    return sections


def opening_section(run: Run, index: int, verdict: Verdict) -> Section:
    """Curves, and the table of results; timelines of the pick and of uniform routing come beside them."""
    names = list(by_strategy(run.histories))
    figure = learning_figure(
        f"learning-{index}",
        f"{run.histories[0].measure.label.capitalize()} over time",
        run.histories,
        horizon=run.horizon,
        strong=verdict.strong,
    )
    seeds = len({history.seed for history in run.histories})
    lead = (
        f"{len(names)} strateg{'y' if len(names) == 1 else 'ies'}, {seeds} seed"
        f"{'' if seeds == 1 else 's'}, virtual time."
    )
    if seeds > 1:
        lead += " ± and the band are one standard error over seeds; groups are by paired t-tests at 5 %."
    return Section(
        anchor=f"run-{index}",
        title=run.name,
        lead=lead,
        notes=tuple(
            f"{history.strategy}, seed {history.seed}: diverged at round {history.diverged_at:,} "
            f"with learning rate {history.learning_rate:g}; the rows before are shown."
            for history in run.histories
            if history.diverged_at is not None
        ),
        figures=(replace(figure, palette=inks(names)),),
        tables=(results_table(run, verdict),),
        opening=True,
    )


def results_table(run: Run, verdict: Verdict) -> Table:
    """The strategies by group: primary measure, one loss, times to targets, each on a common scale."""
    from sojourn.report.html import dot_cells

    runs = by_strategy(run.histories)
    measure = run.histories[0].measure
    names = [name for group in verdict.groups.values() for name in group]
    groups = [runs.get(name, []) for name in names]
    columns: dict[str, list[str]] = {
        "learning rate": [
            f"{histories[0].learning_rate:g}" if histories else "–" for histories in groups
        ]
    }
    measures = measures_of(run.histories)
    targets = [measure.time_to(target) for target in run.targets]
    criterion = str(run.tuning["criterion"]) if run.tuning else ""
    if criterion and criterion not in [*targets, *(f"final {other.label}" for other in measures)]:
        rows = {str(entry["name"]): entry["score"] for entry in run.tuning["confirmed"]}
        scores = [Estimate.from_table(rows[name]) for name in names]
        columns[criterion] = dot_cells(scores, [f"{score:.3g}" for score in scores])
    for other in measures:
        estimates = [final(histories, other) for histories in groups]
        texts = [final_text(histories, other) if histories else "–" for histories in groups]
        columns[f"final {other.label}"] = dot_cells(estimates, texts)
    for target in run.targets:
        times = [mean_time(histories, target) for histories in groups]
        texts = [time_text(histories, target) for histories in groups]
        columns[f"time units to {measure.target(target)}"] = dot_cells(times, texts)
    shown = {
        heading: cells
        for heading, cells in columns.items()
        if heading != "learning rate" or len(set(cells)) > 1
    }
    return Table(
        ("strategy", *shown),
        tuple(zip(names, *shown.values(), strict=True)),
        title="Results",
        groups=tuple((heading, len(group)) for heading, group in verdict.groups.items()),
    )


def timeline_section(index: int, drawn: Mapping[str, Timeline]) -> Section:
    """The beginning of a run under each of its strategies, over the same time."""
    until = next(iter(drawn.values())).until
    return Section(
        anchor=f"timelines-{index}",
        title=f"{TITLE}, under every strategy",
        lead=f"The first {until:.3g} time units, simulated. A row per client; a bar is a task being "
        "computed, the stronger its shade the staler its gradient; a gap is an idle client; orange "
        "below a bar are tasks that wait for this client.",
        drawings=tuple(
            Drawing(
                name=f"timeline-{index}-{k}",
                title=strategy,
                svg=timeline.to_svg(styled=False, width=TIMELINE_WIDTH),
                file=timeline.to_svg(strategy),
                caption=timeline.in_words() + ".",
            )
            for k, (strategy, timeline) in enumerate(drawn.items(), start=1)
        ),
        folded=True,
    )


def beside_uniform(pick: Strategy, fleet: Fleet) -> dict[str, Timeline]:
    """A strategy and uniform routing with as many tasks, simulated over one time axis."""
    m = pick.network.concurrency
    rate = pick.network.server_rate
    uniform = Network(fleet, uniform_routing(fleet), m, server_rate=rate)
    ways = {
        pick.name: (pick.network, pick.scenario),
        REFERENCES[1]: (uniform, replace(pick.scenario, policy=Routed(), start="spread")),
    }
    if pick.name in REFERENCES:
        del ways[REFERENCES[1]]
    return previews(ways, classes=_classes(fleet))


def of_every_strategy(strategies: Mapping[str, Strategy], fleet: Fleet) -> dict[str, Timeline]:
    """The beginning of every strategy's schedule, over one time for all.

    As long as the fastest strategy needs for some tasks of every client. Strategies that send tasks
    alike, and differ only in what the server does with them, share one.
    """
    alike: dict[str, list[str]] = {}
    for name, s in strategies.items():
        routed = s.network.to_table() if s.scenario.policy.routes else s.network.concurrency
        alike.setdefault(repr((routed, s.scenario.to_table())), []).append(name)
    first = {"; ".join(names): strategies[names[0]] for names in alike.values()}
    runs = {names: (s.network, s.scenario) for names, s in first.items()}
    return previews(runs, classes=_classes(fleet))


def _classes(fleet: Fleet) -> list[tuple[str, int]]:
    return [(fleet.label(k), int(fleet.counts[k])) for k in range(fleet.classes)]


def strategies_of(run: Run) -> tuple[dict[str, Strategy], str | None]:
    """The strategies of a run in virtual time, and why there are none where they cannot be read."""
    try:
        return RunFolder(run.path).strategies(by_strategy(run.histories)), None
    except SojournError as error:
        return {}, f"Timelines, fleet and theory are left out: {error}"


def plan_notes(strategies: Mapping[str, Strategy]) -> list[str]:
    """Where a strategy departs from the plan that it is named after."""
    notes = []
    for name, strategy in strategies.items():
        planned, rates = strategy.origin.planned, strategy.learning_rates
        for what, run_with, meant in (
            ("concurrency", strategy.concurrency, planned.concurrency),
            ("learning rate", rates[0] if rates else None, planned.learning_rate),
        ):
            if len(rates) == 1 and meant is not None and run_with != meant:
                notes.append(
                    f"{name} was run with {what} {run_with:g}, not with its plan's {meant:g}."
                )
    return notes


def _walk(folder: Path, depth: int) -> list[Run]:
    run = RunFolder(folder)
    if run.has_histories:
        return [run.read()]
    if not depth:
        return []
    children = sorted(path for path in folder.iterdir() if path.is_dir())
    return [run for child in children for run in _walk(child, depth - 1)]


def fleet_section(
    run: Run, index: int, strategies: Mapping[str, Strategy], fleet: Fleet | None = None
) -> Section:
    """Who the clients are, who is sent how much, and theory against what was measured.

    ``strategies`` and ``fleet`` are those that the run's experiment names, as far as it can be read.
    Cost: a simulation of 200,000 rounds per network, and eight of the run's length per strategy.
    """
    networks = run.networks
    fleets = ([] if fleet is None else [fleet]) + [n.fleet for n in networks.values()]
    names = names_by_rate(fleets)
    rates = fleets[0].service_rates
    span = f"from {number(rates.min())} to {number(rates.max())} tasks per time unit."
    lead = " ".join(
        [f"{fleets[0].size:,} clients, which finish {span}", *conditions(fleets[0], run.experiment)]
    )
    policies = {name: s.scenario.policy.shares(s.network) for name, s in strategies.items()}
    given = {name: shares for name, shares in policies.items() if shares is not None}
    given |= {name: network.client_routing for name, network in networks.items()}
    shares = {name: given[name] for name in by_strategy(run.histories) if name in given}
    figures = []
    if len({share.tobytes() for share in shares.values()}) > 1:
        figures.append(routing_figure(f"routing-{index}", fleets[0], alike(shares), names))
    theory = {name: analyze(network) for name, network in networks.items()}
    if len(networks) > 1:
        figure = staleness_figure(f"staleness-{index}", theory, names)
        left_out = sorted(UNKNOWN_TO_THEORY & run.experiment.keys())
        if left_out:
            caption = f"{figure.caption} The steady state is that without {' and '.join(left_out)}."
            figure = replace(figure, caption=caption)
        figures.append(figure)
    palette = inks(by_strategy(run.histories))
    return Section(
        anchor=f"fleet-{index}",
        title="Theory against measurement",
        lead=lead,
        figures=tuple(replace(figure, palette=palette) for figure in figures),
        tables=(
            measured_table(run, theory, {n: predicted(run, s) for n, s in strategies.items()}),
        ),
        folded=True,
    )


def alike(shares: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The same with one entry for strategies that send tasks alike, named after the first of them.

    >>> list(alike({"a": np.ones(2), "b": np.zeros(2), "c": np.ones(2)}))
    ['a and 1 like it', 'b']
    """
    groups: dict[bytes, list[str]] = {}
    for name, parts in shares.items():
        groups.setdefault(parts.tobytes(), []).append(name)
    return {
        names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} like it": shares[
            names[0]
        ]
        for names in groups.values()
    }


def conditions(fleet: Fleet, experiment: Mapping[str, object]) -> list[str]:
    """What matters of the clients beside their speeds, in sentences.

    >>> conditions(Fleet([1.0, 2.0], uplink=[0.5, 3.0], mean_up=[9.0, 1.0], mean_down=[1.0, 0.0]), {})
    ['A task takes 0.5 to 3 time units on the links of its client.', 'Clients are intermittent: \
available 90% to 100% of the time.']
    """
    sentences = []
    links = fleet.link_times
    if links is not None:
        low, high = number(float(links.min())), number(float(links.max()))
        span = low if low == high else f"{low} to {high}"
        sentences.append(f"A task takes {span} time units on the links of its client.")
    if fleet.is_intermittent:
        low, high = (
            f"{100 * share:.3g}%" for share in (fleet.availability.min(), fleet.availability.max())
        )
        span = low if low == high else f"{low} to {high}"
        sentences.append(f"Clients are intermittent: available {span} of the time.")
    if "hours" in experiment:
        sentences.append("They are available at given hours.")
    if "drift" in experiment:
        sentences.append("Their speeds drift.")
    if "server-rate" in experiment:
        sentences.append(f"The server makes {experiment['server-rate']:g} updates per time unit.")
    if "offline" in experiment:
        sentences.append("The task of a client that becomes unavailable is lost and sent again.")
    return sentences


def names_by_rate(fleets: Iterable[Fleet]) -> dict[float, str]:
    """What to call the clients of each service rate: the names of their classes, if they have any."""
    names_of: dict[float, list[str]] = {}
    for fleet in fleets:
        for k, rate in enumerate(fleet.service_rates.tolist()):
            names = names_of.setdefault(rate, [])
            name = "" if fleet.names is None else fleet.names[k]
            if name and name not in names:
                names.append(name)
        if all(names_of.values()):
            break
    return {
        rate: ", ".join(names) or f"rate {number(rate)}" for rate, names in sorted(names_of.items())
    }


def routing_figure(
    name: str, fleet: Fleet, shares: Mapping[str, FloatArray], names: Mapping[float, str]
) -> Figure:
    """Where tasks go: bars per class of speed, or a curve over clients when there are many.

    ``shares`` are parts of all tasks for every client.
    """
    rates, where = np.unique(fleet.expand(fleet.service_rates), return_inverse=True)
    by_rate = {strategy: _sums(where, parts, rates.size) for strategy, parts in shares.items()}
    words = [f"{strategy} {parts[0]:.1%}" for strategy, parts in by_rate.items()]
    alt = "Share of all tasks sent to the slowest clients: " + "; ".join(words) + "."
    if rates.size <= FEW_CLASSES:
        bars = [
            Series(s, np.arange(rates.size), parts, kind="bars") for s, parts in by_rate.items()
        ]
        classes = tuple(names[rate] for rate in rates.tolist())
        view = View("clients", "share of all tasks", tuple(bars), percent=True, categories=classes)
    else:
        curves = [
            Series(strategy, np.arange(1, parts.size + 1), np.sort(parts)[::-1])
            for strategy, parts in shares.items()
        ]
        view = View("client, most tasks first", "share of all tasks", tuple(curves), log_y=True)
    return Figure(name, "Where tasks go", alt, (view,))


def staleness_figure(
    name: str, theory: Mapping[str, Analysis], names: Mapping[float, str]
) -> Figure:
    """Rounds that a task waits, per class of speed: theory, and a simulation beside it."""
    series, words = [], []
    rates: FloatArray = np.empty(0)
    places, simulated = [], []
    for k, (strategy, analysis) in enumerate(theory.items()):
        rates, expected = staleness_by_rate(analysis)
        place = np.arange(rates.size) + (k - (len(theory) - 1) / 2) * 0.72 / len(theory)
        series.append(Series(strategy, place, expected, kind="points"))
        places.append(place + BESIDE)
        simulated.append(simulated_staleness(analysis.network))
        words.append(
            f"{strategy} {expected[0]:,.0f} for the slowest, {expected[-1]:,.0f} for the fastest"
        )
    seen = Series("simulation", np.concatenate(places), np.concatenate(simulated), kind="points")
    view = View(
        "clients",
        "staleness of their gradients, rounds",
        (*series, seen),
        log_y=True,
        categories=tuple(names[rate] for rate in rates.tolist()),
    )
    exact = "exact" if all(analysis.is_exact for analysis in theory.values()) else "approximate"
    return Figure(
        name,
        "Staleness: theory and simulation",
        "Mean staleness in rounds by theory: " + "; ".join(words) + ".",
        (view,),
        f"Symbols: {exact} steady state. Crosses: one simulation of {SIMULATED_ROUNDS:,} rounds "
        "from a stationary start.",
    )


def staleness_by_rate(theory: Analysis) -> tuple[FloatArray, FloatArray]:
    """Distinct rates, and by theory the mean staleness of the tasks that are sent there."""
    rates, where = np.unique(theory.network.fleet.service_rates, return_inverse=True)
    weight = theory.network.fleet.counts * theory.network.routing
    return rates, _sums(where, weight * theory.staleness) / _sums(where, weight)


def simulated_staleness(network: Network) -> FloatArray:
    """Mean staleness of simulated tasks by the service rate of their client, slowest first."""
    rates, where = np.unique(network.fleet.service_rates, return_inverse=True)
    schedule = simulate(network, rounds=SIMULATED_ROUNDS, start="stationary", seed=0)
    of_client = np.repeat(where, network.fleet.counts)[schedule.client]
    waited = _sums(of_client, schedule.relative_delay, rates.size)
    tasks = _sums(of_client, np.ones(schedule.rounds), rates.size)
    staleness = np.full(rates.size, math.nan)
    np.divide(waited, tasks, out=staleness, where=tasks > 0)
    return staleness


def predicted(run: Run, strategy: Strategy) -> Prediction:
    """Throughput and staleness of completed tasks, simulated with the start and length of the run."""
    runs = [history for history in run.histories if history.strategy == strategy.name]
    rounds = max(int(history.round[-1]) for history in runs if history.rows)
    schedules = [
        simulate(
            strategy.network,
            strategy.scenario,
            rounds=max(1, rounds) if run.horizon is None else None,
            time=run.horizon,
            seed=seed,
        )
        for seed in range(FIRST_SEED, FIRST_SEED + PREDICTIONS)
    ]
    some = [schedule for schedule in schedules if schedule.rounds]
    return Prediction.of([schedule.throughput() for schedule in some], some)


def measured_table(
    run: Run, theory: Mapping[str, Analysis], predictions: Mapping[str, Prediction]
) -> Table:
    """Updates per time unit and staleness: predicted for this run, measured in it, in steady state."""
    rows = []
    for strategy, runs in by_strategy(run.histories).items():
        steady, before = theory.get(strategy), predictions.get(strategy)
        if steady is None and before is None:
            continue
        spans = [_span(h, run) for h in finished(runs)]
        ends = [int(h.round[-1]) for h in finished(runs)]
        speeds = [end / span for end, span in zip(ends, spans, strict=True) if span > 0]
        waits = [wait for h in runs if math.isfinite(wait := seen_staleness(h))]
        every_task_counts = all(h.rows and h.updates[-1] == h.round[-1] for h in runs)
        rows.append(
            (
                strategy,
                UNKNOWN if before is None else f"{before.throughput:.3g}",
                _mean(speeds),
                UNKNOWN if steady is None else number(steady.throughput),
                UNKNOWN if before is None or not every_task_counts else f"{before.staleness:.3g}",
                _mean(waits),
                UNKNOWN if steady is None else str(steady.network.concurrency - 1),
            )
        )
    columns = (
        "strategy",
        "rounds per time unit: predicted",
        "measured",
        "steady state",
        "staleness, updates: predicted",
        "measured ",
        "steady state ",
    )
    known = [0] + [k for k in range(1, 7) if any(row[k] != UNKNOWN for row in rows)]
    return Table(
        tuple(columns[k] for k in known),
        tuple(tuple(row[k] for k in known) for row in rows),
        title="Predicted and measured",
        note="Predicted: simulated with the start and the length of this run, and other seeds. Steady "
        "state: of a long run. A short run is faster and less stale: it begins with fresh tasks spread "
        "over the clients, and ends while some still wait. Where a rule gathers several gradients for "
        "an update, staleness is counted in updates and not predicted here.",
    )


def _span(history: History, run: Run) -> float:
    """How long tasks were computed: to the horizon of the run, unless it stopped at a target."""
    end, stop_at = float(history.time[-1]), run.experiment.get("stop-at")
    stopped = stop_at is not None and math.isfinite(history.time_to(stop_at))
    return end if stopped else max(end, run.horizon or 0.0)


def _sums(groups: IntArray, values: FloatArray | IntArray, size: int = 0) -> FloatArray:
    """The sum of the values of every group; at least ``size`` groups."""
    return np.asarray(np.bincount(groups, weights=values, minlength=size), dtype=np.float64)


def _mean(values: list[float]) -> str:
    return f"{Estimate.from_samples(values):.3g}" if values else UNKNOWN
