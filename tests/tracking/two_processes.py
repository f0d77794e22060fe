"""Run in each of two processes: they log the same steps, and see whether they are the first."""

import logging
import sys
from pathlib import Path

import replicax as rx


def main():
    sys.path.insert(0, str(Path(__file__).parents[1] / "multiprocess"))
    from launch import join_cluster

    assert rx.on_first_process()  # JAX has not started yet
    join_cluster(devices_per_process=2)
    logging.basicConfig(format="logged %(message)s", stream=sys.stdout)
    logging.getLogger("training").addFilter(rx.on_first_process)

    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        iterations = rx.Variable(0, aggregation="ONLY_FIRST_REPLICA")

    @rx.function
    def step():
        def replica_step():
            iterations.assign_add(1)
            return iterations * 1.0

        return strategy.reduce("SUM", strategy.run(replica_step), axis=None)

    with rx.Tracker(console=True, every=2) as tracker:
        for _ in range(4):
            tracker.log(iterations, loss=step())
    logging.getLogger("training").warning("done")
    print("first", rx.on_first_process())


if __name__ == "__main__":
    main()
