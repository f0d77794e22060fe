"""Workers on a Ray cluster: `run` places, connects and, after a failure, restarts them.

    from replicax.integrations import ray as rx_ray

    losses = rx_ray.run(train, num_workers=4, resources_per_worker={"GPU": 1}, max_failures=3)

Programs that use Ray Train's `JaxTrainer` need nothing from here: a `MultiWorkerMirroredStrategy()` in the
trainer's function finds the workers.
"""

from replicax.integrations.ray._run import run

__all__ = ["run"]
