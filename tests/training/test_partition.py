"""Partitions: who holds what, and what cannot be."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sojourn.errors import InvalidInput, UnknownName
from sojourn.training.data.partition import (
    dirichlet,
    labels_each,
    make_partition,
    parse_partition,
    partition_table,
)
from sojourn.training.data.sets import load_dataset

SORTED = ["by-speed", "by-speed(0)", "by-speed(0.3)"]


def balanced_labels(per_class, classes=10, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), per_class))


def made(text, labels, clients, seed=0, rates=None):
    speeds = np.arange(clients) % 3 + 1.0 if rates is None else rates
    return make_partition(text, labels, clients, np.random.default_rng(seed), service_rates=speeds)


@given(
    text=st.sampled_from(
        ["homogeneous", "dirichlet", "dirichlet(0.05)", "labels(3)", "disjoint", *SORTED]
    ),
    clients=st.integers(10, 40),
    per_class=st.integers(40, 60),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_nobody_is_empty_and_nothing_is_held_twice(text, clients, per_class, seed):
    labels = balanced_labels(per_class)
    partition = made(text, labels, clients, seed)
    everyone = np.concatenate(partition.clients)
    assert len(partition.clients) == clients
    assert min(map(len, partition.clients)) >= 1
    assert len(set(everyone.tolist())) == everyone.size
    assert everyone.max() < labels.size
    again = made(text, labels, clients, seed)
    assert all(map(np.array_equal, partition.clients, again.clients))


def test_homogeneous_gives_equal_numbers_per_class():
    labels = balanced_labels(43)
    partition = made("homogeneous", labels, 20)
    assert (partition_table(partition, labels) == 2).all()
    assert partition.notes == (
        "30 of 430 samples are left out, so that all clients hold equally many",
    )


def test_labels_are_dealt_sequentially_and_cyclically_with_equal_volume():
    labels = balanced_labels(600)
    table = partition_table(made("labels(3)", labels, 20), labels)
    held = [np.flatnonzero(row).tolist() for row in table]
    assert held[:4] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 9]]
    assert (table[table > 0] == 100).all()
    assert table.sum() == labels.size


def test_equal_volume_where_labels_have_different_numbers_of_holders():
    labels = balanced_labels(500, classes=100)
    partition = made("labels(31)", labels, 30)
    table = partition_table(partition, labels)
    assert (table[table > 0] == 50).all()
    assert "3500 of 50000 samples are left out" in partition.notes[0]


def test_disjoint_is_one_label_each():
    labels = balanced_labels(60)
    table = partition_table(made("disjoint", labels, 20), labels)
    assert ((table > 0).sum(1) == 1).all()
    assert (table.argmax(1) == np.arange(20) % 10).all()


THREE_CLUSTERS = np.repeat([0.01, 0.1, 1.0], 10)


def test_labels_that_go_with_speed_on_digits():
    labels = load_dataset("digits").train_labels
    table = partition_table(made("by-speed(1.0)", labels, 30, rates=THREE_CLUSTERS), labels)
    held = [np.flatnonzero(row).tolist() for row in table]
    assert held == [[0, 1, 2, 3]] * 10 + [[4, 5, 6]] * 10 + [[7, 8, 9]] * 10
    assert len(set(table.sum(axis=1))) == 1
    assert table.sum() > 0.8 * labels.size


def test_labels_that_ignore_speed_are_homogeneous():
    labels = load_dataset("digits").train_labels
    sorted_not_at_all = made("by-speed(0)", labels, 30, rates=THREE_CLUSTERS)
    even = partition_table(made("homogeneous", labels, 30), labels)
    np.testing.assert_array_equal(partition_table(sorted_not_at_all, labels), even)


@pytest.mark.parametrize("sorting", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_the_sorting_moves_labels_in_proportion(sorting):
    labels = balanced_labels(3000)
    fast_first = THREE_CLUSTERS[::-1]
    table = partition_table(made(f"by-speed({sorting})", labels, 30, rates=fast_first), labels)
    assert len(set(table.sum(axis=1))) == 1
    own = table[:10, 7:].sum(axis=1) / table[:10].sum(axis=1)
    evenly, entirely = 1000, 900  # per client: of all labels, and of three labels shared by ten
    expected = ((1 - sorting) * 300 + sorting * entirely) / (
        (1 - sorting) * evenly + sorting * entirely
    )
    np.testing.assert_allclose(own, expected, atol=0.01)


def test_clients_that_all_differ_hold_labels_in_the_order_of_their_speed():
    labels = balanced_labels(300)
    rates = np.random.default_rng(3).permutation(np.exp(np.linspace(-3, 3, 30)))
    table = partition_table(made("by-speed", labels, 30, rates=rates), labels)
    assert ((table > 0).sum(axis=1) == 1).all()
    assert table.argmax(axis=1)[rates.argsort()].tolist() == np.repeat(np.arange(10), 3).tolist()


def test_every_label_is_held_by_someone_whatever_the_groups():
    labels = balanced_labels(120)
    for counts in ([1, 29], [29, 1], [1, 1, 1], [2, 5, 13], [1] * 17, [40]):
        rates = np.repeat(np.arange(1.0, len(counts) + 1), counts)
        table = partition_table(made("by-speed", labels, rates.size, rates=rates), labels)
        assert (table.sum(axis=0) > 0).all()
        assert len(set(table.sum(axis=1))) == 1


def test_labels_by_speed_need_the_speeds():
    with pytest.raises(InvalidInput, match="needs the service rate of each of the 5 clients"):
        make_partition("by-speed", balanced_labels(10), 5, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="20 samples are too few to be dealt by speed to 19"):
        made("by-speed", balanced_labels(2), 19, rates=np.repeat([1.0, 2.0], [18, 1]))


def test_dirichlet_shares_have_the_mean_and_variance_of_the_law():
    n, beta, per_class, replicates = 5, 0.5, 4000, 300
    labels = balanced_labels(per_class, classes=2)
    generator = np.random.default_rng(7)
    shares = np.array(
        [
            partition_table(dirichlet(labels, n, generator, beta=beta), labels)[0, 0] / per_class
            for _ in range(replicates)
        ]
    )
    mean, variance = 1 / n, (1 / n) * (1 - 1 / n) / (n * beta + 1)
    assert abs(shares.mean() - mean) < 4 * np.sqrt(variance / replicates)
    spread = (shares - mean) ** 2
    assert abs(spread.mean() - variance) < 4 * spread.std() / np.sqrt(replicates)


def test_a_dirichlet_draw_that_empties_a_client_is_drawn_again_and_said():
    labels = balanced_labels(30)
    notes = [made("dirichlet(0.1)", labels, 20, seed).notes for seed in range(20)]
    assert any("left a client empty" in note for said in notes for note in said)


def test_a_hopeless_dirichlet_draw_is_repaired_and_said():
    labels = balanced_labels(20)
    partition = made("dirichlet(0.001)", labels, 50)
    assert min(map(len, partition.clients)) == 1
    assert sum(map(len, partition.clients)) == labels.size
    assert "were given one sample each" in partition.notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("labels(11)", "11 labels per client cannot be: the data set has 10"),
        ("labels(0)", "whole number >= 1"),
        ("labels(2.5)", "whole number >= 1"),
        ("labels", "how many labels per client"),
        ("labels(x)", "'x' is not a number"),
        ("dirichlet(0)", "must be positive"),
        ("dirichlet(nan)", "must be positive"),
        ("disjoint(2)", "takes no parameter"),
        ("by-speed(1.5)", "must be between 0 and 1"),
        ("by-speed(-0.1)", "must be between 0 and 1"),
        ("by-speed(nan)", "must be between 0 and 1"),
    ],
)
def test_partitions_that_cannot_be(text, message):
    with pytest.raises(InvalidInput, match=message):
        made(text, balanced_labels(10), 10)


def test_too_many_clients_for_the_samples():
    labels = balanced_labels(5)
    with pytest.raises(InvalidInput, match="50 samples cannot be shared among 51 clients"):
        made("dirichlet", labels, 51)
    with pytest.raises(InvalidInput, match="class 0 has 5 samples"):
        made("homogeneous", labels, 6)
    with pytest.raises(InvalidInput, match=r"hold only 6 of 10 labels. Give at least 4"):
        made("labels(2)", labels, 3)
    with pytest.raises(InvalidInput, match="fewer samples than the 6 clients"):
        labels_each(labels, 20, np.random.default_rng(0), labels_per_client=3)


def test_unknown_partitions_name_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'dirichlet'"):
        parse_partition("dirichelt(0.5)")
