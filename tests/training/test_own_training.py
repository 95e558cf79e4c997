"""Training as people bring it: optimisers, buffers, datasets, devices; one client is a plain loop."""

import inspect
import pickle
import random
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import sojourn as sj
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Fleet, Network
from sojourn.rules import AsyncSGD, FedAvg, FedBuff
from sojourn.simulation.simulate import simulate
from sojourn.training import Checkpoint, Problem
from sojourn.training.experiment.calibrate import curvature
from sojourn.training.problem import autograd, samples
from sojourn.training.replay.run import Replay
from tests.training.small import ran, small_problem, small_schedule

CLASSES, TASKS, RATE = 3, 7, 0.05


def normalised():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 6, 6, generator=generator)
    return x, torch.arange(count) % CLASSES


class Noisy(Dataset):
    """Samples with random transforms that draw from every generator there is."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        shift = torch.randn((), device="cpu") + np.random.standard_normal() + random.gauss(0.0, 1.0)  # noqa: NPY002
        return self.x[index] + 0.1 * shift.float(), self.y[index]


def problem_of(*, clients=1, dataset=False, model=normalised, **options):
    sets = [images(20 + 3 * i, i) for i in range(clients)]
    if dataset:
        sets = [Noisy(*pair) for pair in sets]
    return Problem(model(), sets, images(30, 99), batch_size=8, **options)


def alone(rounds=TASKS, work=1.0):
    fleet = Fleet([1.0])
    return simulate(Network(fleet, [1.0], 1), rounds=rounds, seed=1, work=work)


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-3)


class Decaying(torch.optim.SGD):
    """Keeps its schedule where others keep settings: in its groups of parameters."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] *= 0.9


OPTIMIZERS = {"SGD": sgd, "momentum": momentum, "AdamW": torch.optim.AdamW, "decaying": Decaying}


def plain_loop(problem, make, steps, *, keeps, seed=3):
    """What anybody writes in PyTorch, on the same batches."""
    model = problem.trained_model(problem.initial_weights()).train()
    optimizer = make(model.parameters(), lr=RATE)
    for task in range(TASKS):
        if not keeps:
            optimizer = make(model.parameters(), lr=RATE)
        for number in range(task * steps, (task + 1) * steps):
            x, y = problem.batch(0, number, seed)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


@pytest.mark.parametrize("dataset", [False, True], ids=["tensors", "dataset with transforms"])
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "reset"])
@pytest.mark.parametrize("buffers", ["average", "client", "recompute"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "rule", [FedBuff(buffer_size=1, local_steps=2), FedAvg(local_steps=2), AsyncSGD(local_steps=2)]
)
def test_one_client_and_one_task_in_flight_is_a_plain_loop(rule, name, buffers, keeps, dataset):
    make = OPTIMIZERS[name]
    problem = problem_of(
        dataset=dataset,
        optimizer=make,
        optimizer_state="client" if keeps else "reset",
        buffers=buffers,
    )
    schedule = alone(work=2.0)
    history = sj.replay(schedule, problem, rule, learning_rate=RATE, seed=3)
    model = plain_loop(problem, make, 2, keeps=keeps)
    trained = problem.trained_model(history.weights)
    np.testing.assert_array_equal(flat(trained), flat(model))
    x, y = problem.test_set
    if buffers == "recompute":
        norm = model[1]
        norm.reset_running_stats()
        norm.momentum = None
        with torch.no_grad():
            for number in range(16):
                model(problem.batch(0, number, 0)[0])
    else:
        for ours, theirs in zip(trained.buffers(), model.buffers(), strict=True):
            assert torch.equal(ours, theirs)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model.eval()(x), y).item()
    assert history.test_loss[-1] == loss


@pytest.mark.parametrize("buffers", ["average", "client"])
def test_plain_steps_with_buffers_are_a_plain_loop_too(buffers):
    problem = problem_of(buffers=buffers)
    history = sj.replay(alone(), problem, AsyncSGD(), learning_rate=RATE, seed=3)
    model = problem.trained_model(problem.initial_weights()).train()
    for number in range(TASKS):
        x, y = problem.batch(0, number, 3)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
    trained = problem.trained_model(history.weights)
    np.testing.assert_allclose(flat(trained), flat(model), rtol=1e-6, atol=1e-8)
    for ours, theirs in zip(trained.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class MaxNorm(nn.Linear):
    """Limits the norm of its rows whenever it is called, as EEGNet does: by a new tensor."""

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, 2, 0, maxnorm=0.3)
        return super().forward(x)


class Clipped(nn.Linear):
    """The same in place."""

    def forward(self, x):
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


@pytest.mark.parametrize("optimizer", [None, torch.optim.AdamW], ids=["plain", "AdamW"])
@pytest.mark.parametrize("layer", [MaxNorm, Clipped])
def test_a_model_that_changes_its_own_weights_is_a_plain_loop(layer, optimizer):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), layer(36, 8), nn.ReLU(), nn.Linear(8, 3))
    problem = Problem(model, [images(30, 1)], images(30, 99), batch_size=8, optimizer=optimizer)
    problem = pickle.loads(pickle.dumps(problem))
    rule = FedBuff(buffer_size=1, local_steps=2)
    history = sj.replay(alone(work=2.0), problem, rule, learning_rate=RATE, seed=3)
    expected = plain_loop(problem, optimizer or sgd, 2, keeps=False)
    np.testing.assert_allclose(
        flat(problem.trained_model(history.weights)), flat(expected), atol=1e-6
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_learns_what_the_module_does():
    """Parameters of its copy are no leaves, so that they had no gradient."""
    pairs = small_problem()
    model = pairs.trained_model(pairs.initial_weights())
    scripted = Problem(torch.jit.script(model), pairs.train_sets, pairs.test_set, batch_size=8)
    weights = pairs.initial_weights()
    found, expected = (p.gradient(weights, 0, 0, 1) for p in (scripted, pairs))
    torch.testing.assert_close(found, expected)
    assert all(parameter.is_leaf for parameter in scripted.trained_model(weights).parameters())


class Labels:
    """Labels in an object whose size is not known."""

    def __init__(self, batch: list) -> None:
        self.labels = torch.tensor([y for _, y in batch])


def with_labels(batch: list) -> tuple[torch.Tensor, Labels]:
    return torch.stack([x for x, _ in batch]), Labels(batch)


class Fetched(Dataset):
    """Ten samples with noise, of which it is counted how often they are fetched."""

    def __init__(self) -> None:
        self.fetched = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        self.fetched += 1
        return k + torch.rand(3), k % 2


@pytest.mark.parametrize(
    ("limit", "collate", "fetched"),
    [
        (samples.KEPT_BYTES, None, 0),
        (10 * (3 * 4 + 8), None, 0),
        (10 * (3 * 4 + 8) - 1, None, 20),
        (samples.KEPT_BYTES, with_labels, 20),
    ],
    ids=["kept", "just", "too large", "unknown size"],
)
def test_the_batches_of_a_test_set_are_fetched_once_if_they_are_small(
    limit, collate, fetched, monkeypatch
):
    monkeypatch.setattr(samples, "KEPT_BYTES", limit)
    test = Fetched()

    def loss(outputs, wanted):
        labels = wanted if isinstance(wanted, torch.Tensor) else wanted.labels
        return nn.functional.cross_entropy(outputs, labels)

    problem = Problem(nn.Linear(3, 2), [Fetched()], test, loss, collate=collate)
    weights = problem.initial_weights()
    first = problem.measures(weights).loss
    before = test.fetched
    assert [problem.measures(weights).loss for _ in range(2)] == [first, first]
    assert test.fetched - before == fetched
    again = pickle.loads(pickle.dumps(problem.test_samples))
    assert not again._kept
    assert len(again.test_batch(0, 10)[0]) == 10


class Centred(nn.Linear):
    """A model that changes its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 0.5
        return super().forward(x)


@pytest.mark.parametrize("kind", [TensorDataset, lambda *pair: pair], ids=["dataset", "tensors"])
def test_a_model_that_changes_its_input_is_given_the_samples_as_they_are(kind):
    x, y = torch.rand(20, 3), torch.arange(20) % 2
    problem = Problem(Centred(3, 2), [kind(x, y)], kind(x, y), batch_size=4)
    usual = Problem(nn.Linear(3, 2), [(x - 0.5, y)], (x - 0.5, y), batch_size=4)
    weights = usual.initial_weights()
    for _ in range(2):
        assert problem.measures(weights) == usual.measures(weights)
        held = problem.held_out([5], 0), usual.held_out([5], 0)
        assert held[0].measures(weights) == held[1].measures(weights)
        ours, plain = (p.loss_and_gradient(weights, 0, 0, 1)[1] for p in (problem, usual))
        torch.testing.assert_close(ours, plain, rtol=0.0, atol=0.0)


def test_lazy_layers_must_have_been_called():
    x, y = images(20, 1)
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(InvalidInput, match=r"lazy layers .* call it once with a batch"):
        Problem(lazy, [(x, y)], (x, y))
    lazy(x)
    assert Problem(lazy, [(x, y)], (x, y)).dimension == 111


def test_datasets_and_pairs_of_tensors_give_the_same_bits():
    pairs = small_problem()
    sets = [TensorDataset(*pair) for pair in pairs.train_sets]
    model = pairs.trained_model(pairs.initial_weights())
    datasets = Problem(model, sets, TensorDataset(*pairs.test_set), batch_size=8)
    lazy = Problem(model, [lambda own=own: own for own in sets], pairs.test_set, batch_size=8)
    runs = [
        sj.replay(small_schedule(), p, AsyncSGD(), learning_rate=0.1, seed=2, batched=False)
        for p in (pairs, datasets, lazy)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.weights, runs[0].weights)
        np.testing.assert_array_equal(run.test_loss, runs[0].test_loss)
        np.testing.assert_array_equal(run.test_accuracy, runs[0].test_accuracy)


def test_transforms_depend_on_seed_client_and_ordinal_alone():
    problem = problem_of(clients=2, dataset=True)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    first = problem.batch(1, 4, seed=7)[0]
    problem.batch(0, 0, seed=7)
    torch.manual_seed(1)
    random.seed(1)
    assert torch.equal(problem.batch(1, 4, seed=7)[0], first)
    for other in ((0, 4, 7), (1, 5, 7), (1, 4, 8)):
        assert not torch.equal(problem.batch(*other)[0], first)
    random.setstate(before[0])
    torch.set_rng_state(before[2])
    problem.batch(1, 4, seed=7)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_thousand_clients_that_load_lazily_are_not_all_in_memory():
    loaded, alive = [], set()

    class Own(TensorDataset):
        def __init__(self, client):
            super().__init__(*images(10, client))
            self.client = client
            loaded.append(client)
            alive.add(client)

        def __del__(self):
            alive.discard(self.client)

    clients = [lambda i=i: Own(i) for i in range(1000)]
    problem = Problem(normalised(), clients, images(10, 0), batch_size=4)
    assert loaded == [0]
    fleet = Fleet([1.0], counts=[1000])
    schedule = simulate(Network(fleet, [1e-3], 20), rounds=300, seed=1)
    sj.replay(schedule, problem, AsyncSGD(), learning_rate=0.01, seed=1, evaluate_every=300)
    assert len(set(loaded)) > 200
    assert len(alive) <= samples.LAZY_CLIENTS + 1


def everything(**options):
    return problem_of(
        clients=4,
        dataset=True,
        optimizer=torch.optim.AdamW,
        optimizer_state="client",
        buffers="average",
        **options,
    )


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("buffers", ["average", "client"])
def test_an_interrupted_run_with_optimisers_buffers_and_transforms_resumes_to_the_bit(
    tmp_path, monkeypatch, buffers
):
    monkeypatch.setattr("sojourn.training.replay.stack.SECONDS_PER_PROGRESS", 0.0)
    monkeypatch.setattr("sojourn.training.replay.checkpoint.LEAST_SECONDS_PER_WRITE", 0.0)
    rule = FedBuff(buffer_size=2, local_steps=2)
    schedule = small_schedule(rounds=30, concurrency=4, work=2.0, policy="idle")
    options = {"learning_rate": 0.01, "seed": 4, "evaluate_every": 10}

    def problem():
        return problem_of(
            clients=4,
            dataset=True,
            optimizer=torch.optim.AdamW,
            optimizer_state="client",
            buffers=buffers,
        )

    def stop(done, total):
        if done >= 17:
            raise Interrupted

    checkpoint = Checkpoint(tmp_path / "run.checkpoint", seconds=0.0)
    with pytest.raises(Interrupted):
        sj.replay(schedule, problem(), rule, progress=stop, checkpoint=checkpoint, **options)
    resumed = sj.replay(schedule, problem(), rule, checkpoint=checkpoint, **options)
    whole = sj.replay(schedule, problem(), rule, **options)
    assert repr(resumed.to_records()) == repr(whole.to_records())
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    changed = problem_of(clients=4, dataset=True, optimizer=momentum, buffers=buffers)
    with pytest.raises(InvalidFile, match="its problem differs"):
        sj.replay(schedule, changed, rule, checkpoint=checkpoint, **options)


def test_averaged_buffers_stay_between_those_that_clients_saw():
    problem = problem_of(clients=4)
    schedule = small_schedule(rounds=400, concurrency=40)
    history = sj.replay(schedule, problem, AsyncSGD(), learning_rate=0.01, seed=1)
    norm = problem.trained_model(history.weights)[1]
    assert 0 < norm.running_var.min() < norm.running_var.max() < 10
    assert norm.num_batches_tracked.item() > 1


class Mixing(TorchDispatchMode):
    """Refuses operations on tensors of two devices, which torch often mixes in silence."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        devices = {t.device.type for t in tensors if t.dim() or t.device.type == "meta"}
        assert len(devices) <= 1, f"{function} mixes {devices}"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": torch.optim.AdamW, "optimizer_state": "client"}, {"buffers": "client"}],
    ids=["plain", "AdamW", "own buffers"],
)
def test_nothing_is_made_without_naming_its_device(options):
    """Under a default device of ``meta`` whatever is made without one is found."""
    problem = problem_of(clients=4, dataset=True, device="cpu", **options)
    problem = pickle.loads(pickle.dumps(problem))
    schedule = small_schedule(rounds=12)
    expected = sj.replay(schedule, problem, AsyncSGD(), learning_rate=0.01, seed=1)
    torch.set_default_device("meta")
    try:
        with Mixing():
            found = sj.replay(schedule, problem, AsyncSGD(), learning_rate=0.01, seed=1)
    finally:
        torch.set_default_device(None)
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_array_equal(found.test_loss, expected.test_loss)


def test_bfloat16_is_autocast_and_weights_stay_single():
    problem = problem_of(precision="bfloat16")
    single = problem_of()
    weights = single.initial_weights()
    loss, gradient = problem.loss_and_gradient(weights, 0, 0, 1)
    exact, other = single.loss_and_gradient(weights, 0, 0, 1)
    assert gradient.dtype == torch.float32
    assert loss != exact
    assert loss == pytest.approx(exact, rel=0.05)
    assert torch.nn.functional.cosine_similarity(gradient, other, dim=0) > 0.98


def test_frozen_parameters_are_not_trained_and_not_sent():
    model = normalised()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    problem = Problem(model, [images(20, 0)], images(20, 1), optimizer=torch.optim.AdamW)
    assert problem.dimension == sum(p.numel() for p in model.parameters() if p.requires_grad)
    history = sj.replay(alone(), problem, FedBuff(buffer_size=1), learning_rate=0.01, seed=1)
    trained = problem.trained_model(history.weights)
    assert torch.equal(trained[0].weight, model[0].weight)
    assert not torch.equal(trained[4].weight, model[4].weight)


def test_every_argument_survives_in_a_variant_and_a_pickle():
    given = {
        "batch_size": 5,
        "collate": torch.utils.data.default_collate,
        "optimizer": torch.optim.AdamW,
        "optimizer_state": "client",
        "buffers": "client",
        "device": "cpu",
        "precision": "bfloat16",
        "metrics": {"zero": nothing_at_all},
        "primary": "zero",
        "higher_is_better": False,
        "channels_last": True,
        "augment": None,
    }
    usual = set(inspect.signature(Problem).parameters) - {"model", "train_sets", "test_set", "loss"}
    assert set(given) == usual, "a new argument belongs here, too"
    sets = [TensorDataset(*images(9, 0)), TensorDataset(*images(9, 1))]
    problem = Problem(normalised(), sets, TensorDataset(*images(9, 2)), **given)
    for other in (problem.held_out([2, 2], seed=1), pickle.loads(pickle.dumps(problem))):
        assert other._options == problem._options
        assert other.channels_last and other.measure == problem.measure
        assert torch.equal(other.initial_weights(), problem.initial_weights())
    assert problem.held_out([2, 3], seed=1).train_sizes == [7, 6]
    assert problem.held_out([2, 3], seed=1).test_size == 5


def nothing_at_all(outputs, y):
    return 0.0


def test_held_out_samples_of_datasets_are_no_longer_trained_on():
    x, y = torch.arange(12.0)[:, None], torch.zeros(12, dtype=torch.long)
    sets = [TensorDataset(x[:5], y[:5]), TensorDataset(x[5:], y[5:])]
    problem = Problem(nn.Linear(1, 2), sets, TensorDataset(x, y), batch_size=4).held_out([2, 3], 1)
    seen = {v for i in (0, 1) for k in range(60) for v in problem.batch(i, k, 1)[0][:, 0].tolist()}
    held = problem.test_samples.batch(0, range(5), 0)[0][:, 0].tolist()
    assert len(set(held)) == 5
    assert seen | set(held) == set(range(12))
    assert not seen & set(held)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Counted(Stream):
    """A length does not make samples that can be indexed."""

    def __len__(self):
        return 5


class Negative:
    def __len__(self):
        return -1


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, self.seen])
        return self.layer(x)


X, Y = torch.randn(6, 2), torch.arange(6) % 2
PAIR = TensorDataset(X, Y)


@pytest.mark.parametrize(
    ("sets", "options", "message"),
    [
        ([PAIR, Stream()], {}, r"train set of client 1 has no length.*map-style dataset"),
        ([PAIR, TensorDataset(X[:0], Y[:0])], {}, "client 1 is empty: leave out clients"),
        ([PAIR, lambda: []], {"ask": True}, "client 1 is empty: leave out clients"),
        ([PAIR], {"collate": lambda samples: None}, "collate returned nothing.*a pair"),
        ([PAIR], {"collate": lambda samples: X}, "collate returned a Tensor"),
        ([(X, Y)], {"collate": lambda samples: None}, "collate makes batches of .* a dataset"),
        ([PAIR, (X, Y)], {}, "client 1 is a pair of tensors and .* client 0 is not"),
        (
            [PAIR],
            {"optimizer": lambda p: torch.optim.SGD([nn.Parameter(X)], lr=1.0)},
            "keeps none of the parameters",
        ),
        ([PAIR], {"optimizer": lambda p: None}, "it returned a NoneType"),
        ([PAIR], {"optimizer": 5}, "or a function of parameters .* this is of type int$"),
        (
            [PAIR],
            {"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)},
            "of type SGD, and every client needs one of its own",
        ),
        (
            [PAIR],
            {"optimizer": lambda p: torch.optim.SGD(p, lr=-1)},
            "called: Invalid learning rate",
        ),
        ([PAIR], {"optimizer": torch.optim.LBFGS}, "LBFGS computes the loss several times"),
        ([PAIR], {"collate": 7}, "collate must be a function .* it is a int"),
        ([PAIR, Counted()], {}, "client 1 is a Counted, which has no samples to index"),
        ([PAIR, Negative()], {}, "client 1 has no length"),
        ([lambda client: PAIR], {}, r"without arguments .*'client'\). Give functools.partial"),
        ([PAIR], {"device": "cuda"}, "device 'cuda' is not on this machine.*Leave out device"),
        ([PAIR], {"device": "meta"}, "device 'meta' is not on this machine"),
        ([PAIR], {"device": "abacus"}, "device 'abacus': PyTorch knows no such device"),
        ([PAIR], {"precision": "float16"}, "precision 'float16': choose among float32, bfloat16"),
        ([PAIR], {"buffers": "lost"}, "buffers must be one of average, client, recompute"),
        ([PAIR], {"optimizer_state": "lost"}, "optimizer_state must be one of reset, client"),
        ([PAIR], {"model": Growing()}, r"buffer 'seen' had the shape \(1,\) and has \(2,\)"),
    ],
)
def test_what_cannot_be_is_said(sets, options, message):
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one here")
    options = dict(options)
    ask, model = options.pop("ask", False), options.pop("model", nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match=message):
        problem = Problem(model, sets, (X, Y), batch_size=2, **options)
        assert ask
        problem.train_sizes  # noqa: B018


class Marked(nn.Module):
    """A buffer that only batches of far samples change: ``how`` it does."""

    def __init__(self, how, moves):
        super().__init__()
        self.layer, self.how, self.moves = nn.Linear(2, 2), how, moves
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        if self.training and self.moves:
            self.seen += 1
        if self.training and x.mean() > 50:
            self.seen = self.how(self.seen)
        return self.layer(x)


@pytest.mark.parametrize("buffers", ["average", "client", "recompute"])
@pytest.mark.parametrize(
    ("how", "moves", "message"),
    [
        (lambda seen: seen.add_(1), False, "'seen' stayed as it was .* of client 1 changed it"),
        (lambda seen: torch.ones(3), False, "'seen' stayed as it was .* of client 1 changed it"),
        (lambda seen: torch.ones(3), True, r"'seen' had the shape \(2,\) and has \(3,\)"),
    ],
    ids=["in place", "another", "another shape"],
)
def test_buffers_that_differ_between_clients_are_refused(how, moves, message, buffers):
    sets = [PAIR, TensorDataset(X + 100, Y)]
    problem = Problem(Marked(how, moves), sets, (X, Y), batch_size=2, buffers=buffers)
    schedule = small_schedule(clients=2, concurrency=2, rounds=20)
    with pytest.raises(InvalidInput, match=message):
        sj.replay(schedule, problem, FedBuff(buffer_size=1), learning_rate=0.01, seed=1)


def test_a_buffer_made_anew_with_the_same_values_may_stay():
    sets = [PAIR, TensorDataset(X + 100, Y)]
    problem = Problem(Marked(torch.clone, False), sets, (X, Y), batch_size=2)
    schedule = small_schedule(clients=2, concurrency=2, rounds=20)
    sj.replay(schedule, problem, FedBuff(buffer_size=1), learning_rate=0.01, seed=1)


class FrozenNorm(nn.BatchNorm2d):
    """Always in evaluation mode, as backbones that were trained before are kept."""

    def train(self, mode=True):
        return super().train(False)


def test_recomputed_statistics_repeat_with_dropout_and_leave_frozen_norms_alone():
    frozen = FrozenNorm(1)
    frozen.running_mean += 3.0
    model = nn.Sequential(frozen, nn.Dropout(0.5), *normalised())
    problem = Problem(model, [images(20, 0)], images(20, 1), batch_size=8, buffers="recompute")
    weights = problem.initial_weights()
    torch.manual_seed(1)
    first = problem.evaluate(weights)
    torch.manual_seed(2)
    assert problem.evaluate(weights) == first
    assert problem.model[0].running_mean.item() == 3.0


class Remembering(torch.optim.SGD):
    """Keeps a list, which is no array."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = [1, 2]


def test_optimisers_whose_state_is_neither_tensors_nor_numbers_are_refused():
    problem = problem_of(optimizer=Remembering, optimizer_state="client")
    with pytest.raises(InvalidInput, match="Remembering holds 'seen' as a list"):
        sj.replay(alone(), problem, FedBuff(buffer_size=1), learning_rate=0.01, seed=1)


def test_a_list_of_samples_and_a_pair_made_lazily_are_datasets():
    samples = [(X[k], Y[k]) for k in range(len(X))]
    of_pairs = Problem(nn.Linear(2, 2), [PAIR, PAIR], (X, Y), batch_size=3)
    weights = of_pairs.initial_weights()
    for sets in ([samples, samples], [samples[:2], samples[:2]], [lambda: (X, Y)] * 2):
        problem = Problem(nn.Linear(2, 2), sets, (X, Y), batch_size=3)
        loss, _ = problem.loss_and_gradient(weights, 1, 0, 5)
        if problem.train_sizes == of_pairs.train_sizes:
            assert loss == of_pairs.loss_and_gradient(weights, 1, 0, 5)[0]


class Broken(TensorDataset):
    """Its samples ``broken`` cannot be read."""

    broken = ()

    def __getitem__(self, k):
        if k in self.broken:
            raise KeyError("pixels")
        return super().__getitem__(k)


def test_errors_of_ones_own_code_say_whose_samples_it_was_given():
    own = Broken(X, Y)
    problem = Problem(nn.Linear(2, 2), [PAIR, own], (X, Y), batch_size=len(X))
    held = problem.held_out([0, 3], 0)
    own.broken = {1}
    with pytest.raises(KeyError, match="pixels") as caught:
        problem.batch(1, 0, 1)
    assert caught.value.__notes__ == ["in a batch of the train set of client 1: sample 1"]
    own.broken = set(range(len(X)))
    with pytest.raises(KeyError) as caught:
        pickle.loads(pickle.dumps(held.test_samples)).test_batch(0, 3)
    given_up, place = caught.value.__notes__
    assert re.fullmatch("sample [0-5] of the train set of client 1", given_up)
    assert place == "in a batch of the held-out samples: sample 0"
    with pytest.raises(ZeroDivisionError) as found:
        Problem(nn.Linear(2, 2), [lambda: 1 // 0], (X, Y))
    assert found.value.__notes__ == ["in the function that makes the train set of client 0"]


def test_a_batch_that_does_not_fit_says_whose_it_is():
    x, y = torch.rand(8, 2), torch.arange(8) % 2
    problem = Problem(
        nn.Linear(2, 2),
        [TensorDataset(x, y), TensorDataset(x, y + 2)],
        TensorDataset(x, y),
        batch_size=8,
    )
    with pytest.raises(IndexError, match="out of bounds") as caught:
        problem.loss_and_gradient(problem.initial_weights(), 1, 0, 1)
    assert caught.value.__notes__ == [
        "in a batch of the train set of client 1, x (8, 2) torch.float32 and y (8,) torch.int64. "
        "Labels of a cross-entropy are 0 to the number of outputs minus one"
    ]


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss()])
def test_labels_that_no_output_stands_for_are_refused_with_client_and_sample(loss):
    x, y = torch.rand(8, 2), torch.arange(8) % 2
    wrong = y.clone()
    wrong[5] = 2
    words = "has the label 2 in sample 5, and the model has 2 outputs: labels are 0 to 1$"
    with pytest.raises(InvalidInput, match=f"^the train set of client 1 {words}"):
        Problem(nn.Linear(2, 2), [(x, y), (x, wrong)], (x, y), loss, batch_size=2)
    with pytest.raises(InvalidInput, match=f"^the test set {words}"):
        Problem(nn.Linear(2, 2), [(x, y)], (x, wrong), loss, batch_size=2)
    wrong[5] = -100  # what a cross-entropy leaves out
    assert Problem(nn.Linear(2, 2), [(x, y), (x, wrong)], (x, y), loss, batch_size=2).clients == 2


class Read(nn.Module):
    """A recurrent network for packed sequences."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, packed):
        return self.head(self.rnn(packed)[1][-1])


def packed(items):
    x, y = zip(*items, strict=True)
    return nn.utils.rnn.pack_sequence(x, enforce_sorted=False), torch.tensor(y)


def after_one(outputs, y):
    return nn.functional.cross_entropy(outputs, y - 1)


def test_packed_sequences_have_a_curvature_and_labels_from_one_have_no_accuracy():
    torch.manual_seed(3)
    own = [[(torch.randn(2 + k % 3, 2), 1 + k % 3) for k in range(9)] for _ in range(2)]
    problem = Problem(Read(), own, own[0], after_one, batch_size=3, collate=packed)
    weights = problem.initial_weights()
    measures = problem.measures(weights)
    assert np.isnan(measures.accuracy)
    assert problem.measure.name == "loss"
    whole = Problem(Read(), [own[0] + own[1]], own[0], after_one, batch_size=3, collate=packed)
    # Of the mean over both clients and over their samples together.
    found, expected = (curvature(p, weights, seed=1) for p in (problem, whole))
    assert found == pytest.approx(expected, rel=0.02)
    assert found > 0.0


def test_a_number_format_that_the_model_does_not_have_is_said_with_what_to_do():
    x, y = torch.rand(8, 2, dtype=torch.float64), torch.arange(8) % 2
    with pytest.raises(
        InvalidInput, match=r"give x.to\(torch.float32\), or a model of torch.float64"
    ):
        Problem(nn.Linear(2, 2), [(x, y)], (x, y))


def test_the_engine_and_the_public_backward_give_the_same_bits(monkeypatch):
    problem = problem_of()
    weights = problem.initial_weights()
    _, fast = problem.loss_and_gradient(weights, 0, 0, 1)
    monkeypatch.setattr(torch.autograd, "Variable", object())
    public = autograd._engine_backward()
    assert public is torch.autograd.backward
    monkeypatch.setattr("sojourn.training.problem.flat.backward", public)
    _, slow = problem.loss_and_gradient(weights, 0, 0, 1)
    assert torch.equal(fast, slow)


def test_what_stays_with_clients_is_there_after_a_run():
    problem = everything()
    position = ran(
        Replay(
            small_schedule(rounds=20, concurrency=4, policy="idle"),
            problem,
            FedBuff(buffer_size=1, local_steps=1),
            learning_rate=0.01,
            seed=1,
        )
    )
    assert position.clients
    assert all("optimizer/0/tensor/exp_avg" in state for state in position.clients.values())
    assert position.buffers.dtype == np.float32
