"""Draw ``docs/images/timeline.svg``: a routed fleet beside one that never queues.

Run it from the top of the repository: ``python docs/timeline.py``.
"""

from pathlib import Path

import sojourn as sj
from sojourn.figures.timeline import save_timelines

UNTIL = 60.0
POLICIES = {
    "Uniform routing: tasks queue at slow clients": "routed",
    "Never queue: the next task goes to an idle client": "never-queue",
}

fleet = sj.built_in_fleet("three-clusters")
network = sj.Network(fleet, sj.uniform_routing(fleet), 30)
panels = [
    (title, sj.simulate(network, policy=policy, time=8 * UNTIL, seed=1).timeline(UNTIL))
    for title, policy in POLICIES.items()
]
print(save_timelines(panels, Path(__file__).parent / "images" / "timeline.svg"))
