"""A small training program, and the ways in which one of its workers can fail at a chosen moment."""

import os
import signal
import sys
import time

import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax import testing
from replicax.cluster import ClusterOptions

KINDS = ("raise", "interrupt", "exit", "kill", "abort", "stop", "sleep")
MOMENTS = ("start", "compilation", "step", "input", "checkpoint", "shutdown")
FAULT = "fault at "
NUM_STEPS = 30
BAD_STEP = 10


def fail(kind):
    """Fail in this way; the time of it is printed for the test."""
    print(f"\n{FAULT}{time.time()}", flush=True)
    match kind:
        case "raise":
            raise LookupError("no such row")
        case "interrupt":
            signal.raise_signal(signal.SIGINT)
        case "exit":
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(600)


def train(kind, rank, moment, seconds, folder):
    """Train with a checkpoint in the middle; worker `rank` fails in one way at one moment.

    `seconds` is the limit for starting, for waiting, and for ending after the others.
    """
    failing = testing.rank() == rank

    def now(here, step=BAD_STEP):
        if failing and here == moment and step == BAD_STEP:
            fail(kind)

    now("start")
    options = ClusterOptions(
        start_timeout_seconds=seconds if moment == "start" else 120.0,
        stuck_timeout_seconds=seconds,
        shutdown_timeout_seconds=seconds,
    )
    strategy = rx.MultiWorkerMirroredStrategy(cluster_options=options)
    with strategy.scope():
        weights = rx.Variable(jnp.zeros(8), aggregation="SUM")
    checkpoint = rx.Checkpoint(weights=weights)

    def rows():
        for step in range(NUM_STEPS):
            now("input", step)
            yield np.full((4 * strategy.num_replicas_in_sync, 8), step, np.float32)

    @rx.function
    def train_step(batch):
        now("compilation")

        def replica(batch):
            weights.assign_add(0.01 * batch.mean(0))
            return batch.mean()

        return strategy.reduce("SUM", strategy.run(replica, (batch,)), axis=None)

    for step, batch in enumerate(strategy.distribute_dataset(rows)):
        now("step", step)
        loss = train_step(batch)
        if step == BAD_STEP:
            now("checkpoint")
            checkpoint.save(folder)
    now("shutdown")
    return float(loss)
