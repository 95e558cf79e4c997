"""Screens: what a server does with an update before it lets the update move the model.

A screen is a frozen value; its memory during one run is a `Guard`. Several are applied one after
the other. What each of them guarantees, and what it costs, is in ``docs/security.md``.

=============  ===================================================================================
screen         what it does
=============  ===================================================================================
``norm``       clips every update to a multiple of the clients' typical norm; on unless ``none``
``reference``  accepts what agrees with the gradient of the server's own samples
``median``     steps along the coordinate-wise median of a buffer with places for groups of clients
``none``       nothing: only what is no update at all is refused
=============  ===================================================================================
"""

from sojourn.deploy.screening.base import Guard, Screen, Submission, Verdict
from sojourn.deploy.screening.chain import SCREENS, Chain, screens_named
from sojourn.deploy.screening.median import Median
from sojourn.deploy.screening.norm import Norm
from sojourn.deploy.screening.reference import Reference

__all__ = [
    "SCREENS",
    "Chain",
    "Guard",
    "Median",
    "Norm",
    "Reference",
    "Screen",
    "Submission",
    "Verdict",
    "screens_named",
]
