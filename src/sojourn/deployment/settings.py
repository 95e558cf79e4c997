"""What a deployment is asked to do, as Flower's run configuration says it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from sojourn._support.configuration import Table
from sojourn._support.files import exists
from sojourn.deployment.guard.guard import POINTS_AWAY, Guard, screens_named
from sojourn.deployment.guard.norm import LARGEST_RATIO
from sojourn.deployment.guard.pacing import LARGEST_SPEED
from sojourn.deployment.router import Replan
from sojourn.deployment.transport import Wire
from sojourn.dispatch import Routed
from sojourn.errors import InvalidFile, reading
from sojourn.fleet import ROUTINGS, Fleet, Network, named_routing
from sojourn.rules.privacy import Privacy
from sojourn.rules.state import client_steps, with_local_steps
from sojourn.types import FloatArray, IntArray

if TYPE_CHECKING:
    from sojourn.planning.objectives import Objective
    from sojourn.strategy import Strategy

PARTITION = "partition-id"
"""What a node's configuration calls the number of its client, here as in Flower's simulation."""

DEVICE = "device"
"""What a node's configuration calls the name that the fleet gives its client."""

PAUSE = "pause-seconds"
"""A node configured with this sleeps as long in every task, to play a slower client."""

Admit: TypeAlias = Literal["listed", "any"]
"""Which devices may take part: those that the fleet names, or all that come."""

MOST_CLIENTS = 100_000
"""One server looks at every client several times a second."""

WHERE = "[tool.flwr.app.config]"
OWN_TABLE = "task."
"""Keys of the table ``[tool.flwr.app.config.task]`` are the user's own."""
DEFAULT_LEARNING_RATE = 0.1
"""Where neither the configuration nor a plan says one."""


def _option(
    default: Any = MISSING, *, least: float | None = None, choices: Sequence[str] = ()
) -> Any:
    """A field of `Settings` that the configuration gives by itself: ``least`` or more, or a choice."""
    metadata = {"option": True, "least": least, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """Every choice of a run: the configuration has these and a strategy's as keys, hyphenated.

    ``updates`` is how many tasks are used before the run ends. ``routing`` names a closed-form
    routing over ``fleet``, or a file with a column ``routing`` (both CSV). ``strategy`` (or ``plan``)
    names a strategy or plan file, which then gives fleet, routing, concurrency, learning rate, policy
    and rule, unless the configuration names its own. Files lie beside ``task.py``. ``policy`` is the
    rule's if not given; one that does not route takes neither, and goes by the speeds that are seen
    while running. With ``adapt`` the routing is computed again from these. What all this makes is the
    `Strategy` that is run, of whose scenario a server follows the policy alone; in a rehearsal
    ``rehearsed_of`` is the network with all its clients.

    Deadlines are in seconds, and ``longest_deadline`` 0 means that none is too long. ``admit`` "any"
    lets devices in that the fleet does not name, up to ``clients`` in all; ``listed`` is how many it
    does name, ``None`` meaning all. Weights and updates travel as ``wire`` says. ``depth`` 0 means 2,
    or 1 in Flower's simulation, which would work on two messages of a client at once. With
    ``local-epochs`` a client goes through its samples so many times in a task, in place of the rule's
    local steps: how many steps that is, it knows itself.
    """

    clients: int
    strategy: "Strategy"
    learning_rate: float
    rates_known: bool
    guard: Guard = Guard()
    privacy: Privacy | None = None
    rehearsed_of: Network | None = None
    listed: int | None = None
    run_folder: Path = Path("run")
    task: Mapping[str, object] = field(default_factory=dict)
    updates: int = _option(least=1)
    admit: Admit = _option("listed", choices=get_args(Admit))
    adapt: bool = _option(False)
    replan_every: int = _option(50, least=1)
    depth: int = _option(0, least=0)
    patience: int = _option(3, least=1)
    shortest_deadline: float = _option(10.0, least=0.1)
    first_deadline: float = _option(30.0, least=0.1)
    longest_deadline: float = _option(0.0, least=0.0)
    join_seconds: float = _option(60.0, least=0.0)
    evaluate_every: int = _option(10, least=1)
    checkpoint_seconds: float = _option(30.0, least=0.0)
    wire: Wire = _option("full", choices=get_args(Wire))
    export_model: bool = _option(False)
    rehearse: bool = _option(False)
    json_log: bool = _option(False)
    metrics_port: int = _option(0, least=0)
    metrics_host: str = _option("127.0.0.1")
    seed: int = _option(0, least=0)
    resume: bool = _option(False)
    predict: bool = _option(True)

    def replan(self) -> Replan | None:
        """How routing is computed from service rates while running; ``None`` if it is not."""
        if not (self.adapt and self.strategy.policy.routes):
            return None
        fleet, origin = self.strategy.network.fleet, self.strategy.origin
        if origin.objective is not None:
            steps = client_steps(self.strategy.rule, self.clients)
            weights = fleet.expand(fleet.relative_weights)
            return _replan(origin.objective, self.strategy.concurrency, steps, weights)
        name = origin.routing if isinstance(origin.routing, str) else "uniform"
        return lambda rates: named_routing(Fleet(rates), name)


def own_settings(config: Mapping[str, object]) -> dict[str, object]:
    """What a configuration says to ``task.py`` alone.

    >>> own_settings({"clients": 3, "task.folder": "/data", "task.model.width": 64})
    {'folder': '/data', 'model.width': 64}
    """
    return {
        key.removeprefix(OWN_TABLE): value
        for key, value in config.items()
        if key.startswith(OWN_TABLE)
    }


def read_settings(config: Mapping[str, object], folder: Path) -> Settings:
    """Check a run configuration; files that it names are looked for in ``folder``.

    Flower's configuration has no way to leave a key out on the command line, so that empty text and 0
    mean that nothing is said.
    """
    given = {key: value for key, value in config.items() if not key.startswith(OWN_TABLE)}
    for part in ("rule", "policy"):
        named = _flat_table(given, part)
        given |= {part: named} if named else {}
    unsaid = ("fleet", "plan", "strategy", "routing", "concurrency", "learning-rate")
    given = {
        key: value for key, value in given.items() if key not in unsaid or value not in ("", 0)
    }
    table = Table(given, WHERE)
    clients = table.take("clients", int, least=1, most=MOST_CLIENTS)
    options = _take_options(table)
    guard, privacy = _guard(table), _privacy(table)
    run_folder = Path(table.take("run-folder", str, default="") or "run")
    file = table.take("strategy", str, default=None) or table.take("plan", str, default=None)
    fleet_name = table.take("fleet", str, default=None)
    with reading(WHERE):
        strategy = _strategy(table, file, fleet_name, clients, folder, adapt=options["adapt"])
    table.close()
    whole, listed = strategy.network, None
    if options["rehearse"] and whole.size > clients:
        strategy = _rehearsed(strategy, clients)
    if options["admit"] == "any":
        listed = strategy.network.size if file or fleet_name else 0
        strategy = _with_any(strategy, clients)
    if strategy.network.size != clients:
        raise InvalidFile(
            f"{WHERE}: 'clients' is {clients}; the {'plan' if file else 'fleet'} has "
            f"{strategy.network.size}. To try it out with fewer, set rehearse = true."
        )
    reason = strategy.not_deployable()
    if reason is not None:
        raise InvalidFile(f"{WHERE}: {reason}")
    rates = strategy.learning_rates
    if file and not rates:
        raise InvalidFile(
            f"{WHERE}: the plan gives no learning rate: write 'learning-rate', such as 0.1, or use the "
            "strategy.toml of `sojourn tune`, which has one"
        )
    return Settings(
        clients=clients,
        strategy=strategy,
        learning_rate=rates[0] if rates else DEFAULT_LEARNING_RATE,
        rehearsed_of=whole if whole.size > clients else None,
        listed=listed,
        rates_known=bool(file or fleet_name),
        task=own_settings(config),
        guard=guard,
        privacy=privacy or getattr(strategy.rule, "privacy", None),
        run_folder=run_folder,
        **options,
    )


def _rehearsed(strategy: "Strategy", clients: int) -> "Strategy":
    """What is run of a strategy for more clients: `rehearsal`, and the local steps of those chosen."""
    network, rule = strategy.network, strategy.rule
    if isinstance(rule.local_steps, tuple):
        chosen = _rehearsing(network, clients).tolist()
        rule = with_local_steps(rule, tuple(rule.local_steps[i] for i in chosen))
    return replace(strategy, network=rehearsal(network, clients), rule=rule)


def _with_any(strategy: "Strategy", clients: int) -> "Strategy":
    """`with_places`, if the rule has something to say to clients that nobody named."""
    if isinstance(strategy.rule.local_steps, tuple):
        raise InvalidFile(
            f'{WHERE}: local-steps has a number for each client, and admit = "any" lets in clients '
            "that nobody named. Write one number, or local-epochs."
        )
    return replace(strategy, network=with_places(strategy.network, clients))


def rehearsal(network: Network, clients: int) -> Network:
    """``clients`` of the network's clients, evenly chosen in the order of their speeds, with their p.

    Concurrency is reduced in proportion, to one task at least.

    >>> network = Network(Fleet([1.0, 2.0, 4.0], counts=[2, 2, 2]), np.full(3, 1 / 6), 12)
    >>> small = rehearsal(network, 3)
    >>> small.fleet.service_rates.tolist(), small.concurrency
    ([1.0, 2.0, 4.0], 6)
    """
    fleet, chosen = network.fleet, _rehearsing(network, clients)
    classes = np.repeat(np.arange(fleet.classes), fleet.counts)[chosen]
    names = [client_names(fleet)[client] for client in chosen.tolist()]
    small = fleet.select(classes, counts=np.ones(clients, dtype=int), names=names)
    share = network.client_routing[chosen]
    concurrency = max(1, round(network.concurrency * clients / network.size))
    return Network(small, share / share.sum(), concurrency)


def with_places(network: Network, clients: int) -> Network:
    """The network with places for devices that it does not name, of median speed, ``clients`` in all.

    >>> larger = with_places(Network(Fleet([1.0, 3.0], names=["a", "b"]), np.full(2, 0.5), 2), 4)
    >>> client_names(larger.fleet), larger.fleet.service_rates.tolist()
    (['a', 'b', 'place 2', 'place 3'], [1.0, 3.0, 2.0, 2.0])
    """
    more = clients - network.size
    if more <= 0:
        return network
    fleet = network.fleet
    rates = fleet.expand(fleet.service_rates)
    names = [*client_names(fleet), *(f"place {i}" for i in range(network.size, clients))]
    larger = Fleet(
        np.append(rates, np.full(more, np.median(rates))),
        names=names,
        weight=np.append(fleet.expand(fleet.relative_weights), np.ones(more)),
    )
    routing = np.append(network.client_routing, np.full(more, 1.0 / network.size))
    return Network(larger, routing / routing.sum(), network.concurrency)


def _rehearsing(network: Network, clients: int) -> IntArray:
    """The clients that take part in a rehearsal, in order."""
    fleet = network.fleet
    order = np.argsort(fleet.expand(fleet.service_rates), kind="stable")
    places = (np.arange(clients) + 0.5) * network.size / clients
    return np.sort(order[places.astype(int)])


def client_names(fleet: Fleet) -> list[str]:
    """What to call every client: after its class, numbered from 1 if the class has several.

    >>> client_names(Fleet([1.0, 2.0], counts=[2, 1], names=["old", "new"]))
    ['old 1', 'old 2', 'new']
    >>> client_names(Fleet([1.0], counts=[2]))
    ['client 0', 'client 1']
    """
    if fleet.names is None:
        return [f"client {i}" for i in range(fleet.size)]
    of = np.repeat(np.asarray(fleet.names, dtype=object), fleet.counts).tolist()
    total, seen = Counter(of), Counter[str]()
    names = []
    for client, name in enumerate(of):
        seen[name] += 1
        numbered = f"{name} {seen[name]}" if total[name] > 1 else name
        names.append(numbered if name else f"client {client}")
    return names


def _strategy(
    table: Table,
    file: str | None,
    fleet_name: str | None,
    clients: int,
    folder: Path,
    *,
    adapt: bool,
) -> "Strategy":
    """What the configuration says is run; without a fleet, clients that are alike."""
    # Imported here: a client's process reads settings and never needs what this loads.
    from sojourn.fleet.named import read_fleet
    from sojourn.strategy import Strategy, read_strategy_file
    from sojourn.strategy.choices import DECISIONS, Choices

    if file and (fleet_name or "routing" in table.values):
        raise InvalidFile(f"{WHERE}: 'plan' holds fleet and routing; leave these two out")
    if file:
        read = read_strategy_file(folder / file, folder)
        choices = Choices.take(table, read.fleet, folder, DECISIONS)
        found = Strategy.resolve(choices, file=read, folder=folder, name=file)
        meant = read.choices.policy
        _check_followed(found, routed=meant is None or meant == Routed.name)
        return found
    for named in (fleet_name, table.values.get("routing")):
        _check_is_there(named, folder)
    fleet = read_fleet(fleet_name, folder) if fleet_name else Fleet(np.ones(clients))
    choices = Choices.take(table, fleet, folder, DECISIONS)
    by_speed = choices.routing not in (None, "uniform")
    without = Strategy.resolve(
        replace(choices, routing=None), fleet=fleet, folder=folder, name="deployment"
    )
    _check_followed(without, routed=by_speed)
    if not without.policy.routes:
        return without
    if by_speed and not (fleet_name or adapt):
        raise InvalidFile(
            f"{WHERE}: routing '{choices.routing}' needs the clients' speeds. Name a 'fleet' file, or "
            "set adapt = true to learn them while running."
        )
    found = Strategy.resolve(choices, fleet=fleet, folder=folder, name="deployment")
    if adapt and not isinstance(found.origin.routing, str):
        raise InvalidFile(
            f"{WHERE}: adapt = true computes the routing again from speeds, and the file "
            f"'{choices.routing}' does not say how. Name {', '.join(ROUTINGS)}, or a plan."
        )
    return found


def _check_is_there(name: object, folder: Path) -> None:
    """Refuse a CSV file that is not where the server runs: Flower does not send any."""
    if isinstance(name, str) and name.endswith(".csv") and not exists(folder / name):
        raise InvalidFile(
            f"'{name}' cannot be read: there is no such file beside task.py. Flower packs no CSV files "
            "into an app: give the full path of the file on the server"
        )


def _check_followed(strategy: "Strategy", *, routed: bool) -> None:
    """A routing must have an effect."""
    if routed and not strategy.policy.routes:
        raise InvalidFile(
            f"{WHERE}: with the policy '{strategy.policy.name}' clients are not chosen by a routing. "
            "Leave out 'routing' and 'plan' (speeds may be in a 'fleet' file), or set policy = "
            '"routed".'
        )


def _take_options(table: Table) -> dict[str, Any]:
    """Those fields of `Settings` that the configuration gives by themselves; empty text says nothing."""
    found: dict[str, Any] = {}
    for option in fields(Settings):
        if "option" not in option.metadata:
            continue
        key, least = option.name.replace("_", "-"), option.metadata["least"]
        default = {} if option.default is MISSING else {"default": option.default}
        kind = option.type if isinstance(option.type, type) else str
        value = table.take(key, kind, least=least, **default)
        if (choices := option.metadata["choices"]) and value not in ("", *choices):
            offered = " or ".join(f'"{choice}"' for choice in choices)
            raise InvalidFile(f"{WHERE}: '{key}' is {offered}; it is '{value}'")
        found[option.name] = option.default if value == "" else value
    return found


def _guard(table: Table) -> Guard:
    return Guard(
        screens=screens_named(
            table.take("screen", str, default=""),
            largest_ratio=table.take("largest-update", float, default=LARGEST_RATIO, least=1.0),
        ),
        largest_speed=table.take("largest-speed", float, default=LARGEST_SPEED, least=0.0),
        refused=table.take("quarantine-refused", int, default=10, least=0),
        agreement=table.take("quarantine-agreement", float, default=POINTS_AWAY, least=-1.0),
    )


def _privacy(table: Table) -> Privacy | None:
    """Noise and clipping, if both are given."""
    clip, noise, budget = (
        table.take(f"privacy-{what}", float, default=0.0, least=0.0)
        for what in ("clip", "noise", "epsilon")
    )
    delta = table.take("privacy-delta", float, default=1e-5, least=1e-12)
    if not clip and not noise and not budget:
        return None
    if not (clip and noise):
        raise InvalidFile(
            f"{WHERE}: privacy takes both 'privacy-clip', the largest norm of an update, and "
            f"'privacy-noise', in units of it; they are {clip:g} and {noise:g}"
        )
    privacy = Privacy(clip, noise, delta, budget or math.inf)
    if privacy.answers() == 0:
        raise InvalidFile(
            f"{WHERE}: one answer of a client with privacy-noise = {noise:g} costs an epsilon of "
            f"{privacy.epsilon(1):.3g}, more than privacy-epsilon = {budget:g}. Use more noise."
        )
    return privacy


def _flat_table(given: dict[str, object], what: str) -> dict[str, object]:
    """A rule or policy is a name, or a table ``[tool.flwr.app.config.rule]``; takes its keys away.

    Flower hands tables over flat: ``rule.server.name`` is the key ``name`` of the table ``server``.
    """
    flat = {key: given.pop(key) for key in [*given] if key.startswith(f"{what}.")}
    name = given.pop(what, None)
    if name is not None and not isinstance(name, str):
        raise InvalidFile(f"{WHERE}: '{what}' must be text; it is {name!r}")
    table: dict[str, Any] = {"name": name} if name else {}
    for key, value in flat.items():
        *path, last = key.split(".")[1:]
        place = table
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise InvalidFile(f"{WHERE}: '{key}' is given, and '{part}' as {place!r}, too")
        place[last] = value
    return table


def _replan(
    objective: "Objective", concurrency: int, local_steps: IntArray, weights: FloatArray
) -> Replan:
    """The plan's own objective, minimised again at other speeds; those of plans are per gradient."""
    from sojourn.planning.search import optimize_routing

    def replan(rates: FloatArray) -> FloatArray:
        fleet = Fleet(local_steps * rates, weight=weights)
        solution = optimize_routing(fleet, concurrency, objective)
        return solution.network.client_routing

    return replan
