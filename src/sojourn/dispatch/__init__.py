r"""Dispatch policies: who gets the next task.

A policy is a small frozen value. What it decides by, it sees through a `View` of the clients; its
memory during one run is a `Chooser`. The same choosers serve the simulator's plain event loop and
the server of a deployment; the compiled kernel has forms of its own for the first five policies
here, which the tests hold against the plain loop.

===============  =================================================================================
policy           the next task goes to
===============  =================================================================================
``routed``       a client drawn from the routing, busy or not (the paper)
``never-queue``  the idle client that is furthest behind its target rate; nobody ever waits
``idle``         a client drawn uniformly among the idle ones
``shuffled``     clients in a fresh random order every n dispatches
``synchronous``  a cohort of m distinct clients, drawn when the last of the cohort before is done
``restart``      as ``never-queue``; a running task that has become too stale begins anew
``first-of``     a cohort; after its first results the rest are stopped and the next one begins
``attempts``     whoever has attempts left in this round, each of which may be cut short
===============  =================================================================================
"""

from sojourn.dispatch.policies import (
    POLICIES as POLICIES,
    Attempts as Attempts,
    FirstOf as FirstOf,
    Idle as Idle,
    NeverQueue as NeverQueue,
    Restart as Restart,
    Routed as Routed,
    Shuffled as Shuffled,
    Synchronous as Synchronous,
    as_policy as as_policy,
    intervals as intervals,
    policy_to_table as policy_to_table,
)
from sojourn.dispatch.policy import (
    Chooser as Chooser,
    Policy as Policy,
    View as View,
    not_deployable as not_deployable,
)
