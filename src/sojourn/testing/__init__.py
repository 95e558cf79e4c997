"""Checks that whoever extends Sojourn can run on what they have written."""

from sojourn.testing.policies import check_policy_conforms
from sojourn.testing.rules import check_rule_conforms
from sojourn.testing.stateless import check_law_conforms, check_objective_conforms

__all__ = [
    "check_law_conforms",
    "check_objective_conforms",
    "check_policy_conforms",
    "check_rule_conforms",
]
