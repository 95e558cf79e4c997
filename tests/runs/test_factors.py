"""Main effects of a factorial experiment: known effects are found, absent ones are not significant."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sojourn.errors import InvalidInput
from sojourn.runs.factors import levels_of, main_effects
from sojourn.runs.history import History

SERVERS = {"plain": 0.0, "adam": 0.05}
STEPS = {1: 0.0, 10: 0.2}
WEIGHTINGS = {0.0: 0.0, 1.0: 0.0}


def history(name, seed, final):
    return History(
        strategy=name,
        seed=seed,
        learning_rate=0.1,
        clock="virtual",
        round=[0, 10],
        time=[0.0, 10.0],
        test_loss=[2.3, 1.0],
        test_accuracy=[0.1, final],
        train_loss=[2.3, 1.0],
        staleness=[0.0, 0.0],
        gradients=[0, 10],
        updates=[0, 10],
    )


def factorial(seeds=6, noise=0.01):
    """All combinations, accuracies being sums of effects, a seed's luck common to all, and noise."""
    rng = np.random.default_rng(3)
    levels, histories = {}, []
    luck = rng.normal(0.0, 0.05, seeds)
    for server, of_server in SERVERS.items():
        for steps, of_steps in STEPS.items():
            for debias, of_debias in WEIGHTINGS.items():
                name = f"{server} {steps} {debias}"
                rule = {"name": "async-sgd", "server": {"name": server}, "local-steps": steps}
                rule |= {"debias": debias}
                levels[name] = levels_of({"policy": "never-queue", "rule": rule})
                for seed in range(seeds):
                    final = 0.5 + of_server + of_steps + of_debias + luck[seed]
                    histories.append(history(name, seed, final + rng.normal(0.0, noise)))
    return histories, levels


def test_the_effects_that_were_put_in_are_found():
    effects = {effect.factor: effect for effect in main_effects(*factorial())}
    assert set(effects) == {"weighting", "optimiser", "local steps"}
    for factor, truth in (("optimiser", 0.05), ("local steps", 0.2), ("weighting", 0.0)):
        effect = effects[factor]
        assert effect.low < truth < effect.high
        assert effect.significant == (truth != 0.0)
        assert (effect.pairs, effect.seeds) == (4, 6)


def test_strategies_that_differ_in_two_factors_are_no_pair():
    histories, levels = factorial(seeds=2)
    names = ("plain 1 0.0", "adam 10 0.0")
    chosen = [run for run in histories if run.strategy in names]
    assert main_effects(chosen, levels) == []


def test_effects_on_the_time_to_a_target_count_the_end_where_it_is_not_reached():
    histories, levels = factorial(noise=0.0)
    names = [name for name in levels if name.endswith("0.0")]
    effects = main_effects([h for h in histories if h.strategy in names], levels, target=5.0)
    assert all(effect.ratio and effect.value == 1.0 for effect in effects), (
        "no run reached it: all end alike"
    )


def test_a_run_that_diverged_early_is_as_late_as_the_latest():
    histories, levels = factorial(noise=0.0)
    names = [name for name in levels if name.endswith("0.0")]
    chosen = [h for h in histories if h.strategy in names]
    lost = [
        replace(h, time=[0.0, 0.1], diverged_at=10) if h.strategy.startswith("adam") else h
        for h in chosen
    ]
    (effect,) = [e for e in main_effects(lost, levels, target=5.0) if e.factor == "optimiser"]
    assert effect.value == 1.0, "no run reached it: all end alike"


def test_one_seed_has_no_interval_and_no_common_seed_is_refused():
    histories, levels = factorial(seeds=1)
    assert all(math.isinf(effect.high) for effect in main_effects(histories, levels))
    lonely = [history("plain 1 0.0", 0, 0.5), history("adam 1 0.0", 1, 0.5)]
    with pytest.raises(InvalidInput, match="no seed in common"):
        main_effects(lonely, levels)
