"""Every policy conforms, and the suite finds what does not."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from sojourn.dispatch import POLICIES, Chooser, Policy
from sojourn.testing import check_policy_conforms


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_conforms(name):
    check_policy_conforms(POLICIES[name]())


@dataclass(frozen=True)
class Own(Policy):
    """To the first living client, unless a test says otherwise."""

    name: ClassVar[str] = "own"

    def chooser(self, random):
        return FirstLiving()


class FirstLiving(Chooser):
    def choose(self, view, finisher):
        return view.living[0]


def test_the_simplest_conforms():
    check_policy_conforms(Own())


@dataclass(frozen=True)
class Informed(Own):
    """What it is told of each client is a plain tuple."""

    losses: tuple = (1.0, 2.0)


def test_a_parameter_may_be_a_plain_tuple():
    check_policy_conforms(Informed())


def test_a_class_is_no_policy():
    with pytest.raises(AssertionError, match=r"not its class: Own\(\)"):
        check_policy_conforms(Own)


@dataclass(frozen=True)
class Erratic(Own):
    def chooser(self, random):
        class AnyLiving(Chooser):
            def choose(self, view, finisher):
                return int(np.random.default_rng().choice(view.living))

        return AnyLiving()


@dataclass(frozen=True)
class Stubborn(Own):
    def chooser(self, random):
        class Always(Chooser):
            def choose(self, view, finisher):
                return 0

        return Always()


@dataclass(frozen=True)
class Forgetful(Own):
    def chooser(self, random):
        class Turn(Chooser):
            turn = 0

            def choose(self, view, finisher):
                self.turn += 1
                return view.living[self.turn % len(view.living)]

        return Turn()


@dataclass(frozen=True)
class Crowding(Own):
    one_task_each: ClassVar[bool] = True


@dataclass(frozen=True)
class Shy(Own):
    def chooser(self, random):
        class Nobody(Chooser):
            def choose(self, view, finisher):
                return None

        return Nobody()


@dataclass(frozen=True)
class Stopping(Own):
    def chooser(self, random):
        class Impatient(FirstLiving):
            def stops(self, view, finisher):
                return [client for client in view.living if view.tasks(client)]

        return Impatient()


class Unequal(Own):
    def __init__(self, knob=1):
        self.__dict__["knob"] = knob

    def __eq__(self, other):
        return self is other

    __hash__ = None


@dataclass(frozen=True)
class Greedy(Own):
    def shares(self, network):
        return np.ones(network.size)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Erratic(), "the same choices"),
        (Stubborn(), r"client 0 was chosen; \[.*\] are living"),
        (Forgetful(), "from then on"),
        (Crowding(), "a busy client must not be chosen"),
        (Shy(), "somebody must be chosen"),
        (Stopping(), "say deployable = False"),
        (Unequal(), "read back as the same policy"),
        (Greedy(), "sum to 1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Policy) else "",
)
def test_what_does_not_conform_is_found(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_policy_conforms(policy)
