"""Checks that whoever extends Sojourn can run on what they have written."""

from sojourn.testing.policies import check_policy_conforms as check_policy_conforms
from sojourn.testing.rules import check_rule_conforms as check_rule_conforms
from sojourn.testing.stateless import (
    check_law_conforms as check_law_conforms,
    check_objective_conforms as check_objective_conforms,
)
