"""Checks that whoever extends Sojourn can run on what they have written."""

from sojourn.testing.rules import check_rule_conforms

__all__ = ["check_rule_conforms"]
