"""One run of the digits app in Flower's simulation; run it where only loopback can be reached."""

import sys
from pathlib import Path

from sojourn.deployment.local import LocalFlower, follow
from tests.deployment.flower_sessions import LEARNING_RATE, make_app


def main(folder: Path) -> None:
    app, run = make_app(folder / "app", "hostile_client_app"), folder / "run"
    with LocalFlower(folder / "logs", environment={"RAY_USAGE_STATS_ENABLED": "0"}) as flower:
        flower.start_superlink(("--insecure", "--simulation"))
        config = {
            "clients": 3,
            "updates": 40,
            "learning-rate": LEARNING_RATE,
            "run-folder": str(run),
            "predict": False,
        }
        number = flower.run(app, config, ("--federation-config", "num-supernodes=3"))
        follow(flower, number, run, lambda status: None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
