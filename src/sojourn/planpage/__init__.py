"""What a plan's page shows, and why the plan is as it is."""

from sojourn.planpage.report import plan_report

__all__ = ["plan_report"]
