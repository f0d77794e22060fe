"""Preempts training on several workers at random moments, and compares its losses with an undisturbed run.

    python -m tests.multiprocess.preemptions 50

prints how often workers got SIGTERM, in what they were doing, and whether every training, restarted after
each preemption, gave the losses of an undisturbed one. Workers that do not end with status 0 within the
grace period, or whose losses differ, make it fail.
"""

import collections
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
from tests.environment import xla_flags

import replicax as rx
from replicax import testing

STEPS, EVALUATE_EVERY, SAVE_EVERY = 24, 8, 6
GRACE_SECONDS = 30.0  # on an idle machine it takes two

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(50, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [3.0]]) + 0.5).astype(np.float32)


class Saving:
    """A part of the checkpoint that says when it is saved."""

    def state(self):
        testing.point("saving")
        return 0

    def restore(self, state):
        pass


class Losses:
    """The losses by step, in a file of the first worker."""

    def __init__(self, folder):
        self._path = Path(folder, "losses")

    def add(self, kind, step, loss):
        if testing.rank() == 0:
            with self._path.open("a") as file:
                file.write(json.dumps([kind, step, loss]) + "\n")

    def read(self):
        lines = self._path.read_text().splitlines()
        return {(kind, step): loss for kind, step, loss in map(json.loads, lines)}


def train(folder):
    """Train, evaluate and save; continue where an earlier call was preempted."""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        params = rx.create_variables({"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)})
        optimizer, mean = rx.Optimizer(optax.adam(0.05)), rx.Mean("loss")
        step, evaluated = rx.Variable(0), rx.Variable(0)

    def loss_fn(x, y):
        testing.point("compiling")
        p = rx.read_values(params)
        return rx.compute_average_loss(jnp.sum((x @ p["w"] + p["b"] - y) ** 2, axis=-1))

    def replica_step(x, y):
        mean.update_state(jnp.sum(x, axis=-1))
        loss, gradients = rx.value_and_grad(loss_fn, params)(x, y)
        optimizer.apply_gradients(zip(gradients.values(), params.values(), strict=True))
        return loss

    @rx.function
    def train_step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    @rx.function
    def evaluate_step(x, y):
        return strategy.reduce("SUM", strategy.run(loss_fn, args=(x, y)), axis=None)

    rows = rx.from_arrays((X, Y))
    batches = iter(strategy.distribute_dataset(rows.shuffle(seed=1).repeat().batch(8)))
    every_row = strategy.distribute_dataset(rows.batch(25))
    checkpoint = rx.Checkpoint(
        params=params, optimizer=optimizer, mean=mean, step=step, evaluated=evaluated, batches=batches
    )
    manager = rx.CheckpointManager(checkpoint, Path(folder, "checkpoints"), max_to_keep=2)
    handler = rx.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)
    checkpoint.saving = Saving()  # after restoring: it is in no hurry
    losses = Losses(folder)
    testing.point("ready")

    while (done := int(step.read_value())) < STEPS:
        if done % EVALUATE_EVERY == 0 and int(evaluated.read_value()) < done:
            total = 0.0
            for x, y in every_row:
                testing.point("evaluating")
                total += float(evaluate_step(x, y))
                handler.save_checkpoint_if_preempted()
            losses.add("evaluation", done, total)
            evaluated.assign(done)
        loss = float(train_step(*next(batches)))
        step.assign_add(1)
        losses.add("training", done, loss)
        testing.point(f"step {done}")
        if (done + 1) % SAVE_EVERY == 0:
            manager.save()
        handler.save_checkpoint_if_preempted()
    manager.wait()
    losses.add("mean", STEPS, float(mean.result()))


class Preempted(Exception):
    """The workers did not end as they should."""


def run_until(folder, moment, rank, num_workers):
    """Start the workers, send SIGTERM at `moment`; what they did, and how long they took to end."""
    environment = {"XLA_FLAGS": xla_flags()}
    with testing.start(train, (str(folder),), num_workers=num_workers, environment=environment) as workers:
        workers.wait_for("ready", rank)
        try:
            if isinstance(moment, str):
                workers.wait_for(moment, rank)
            else:
                time.sleep(moment)
        except RuntimeError:  # it has ended
            moment = "the end"
        began = time.monotonic()
        workers.send(rank, signal.SIGTERM)
        outcomes = workers.wait(timeout_seconds=GRACE_SECONDS + 120)
        seconds = time.monotonic() - began
    statuses = [outcome.status for outcome in outcomes]
    if statuses != [0] * num_workers:
        raise Preempted(f"{statuses=}\n" + "\n".join(f"{o}\n{o.output}" for o in outcomes))
    preempted = any(isinstance(outcome.error, SystemExit) for outcome in outcomes)
    return preempted, seconds


def train_undisturbed(folder, num_workers):
    testing.run(train, (str(folder),), num_workers=num_workers, environment={"XLA_FLAGS": xla_flags()})
    return Losses(folder).read()


def moments(generator):
    """Random moments: some seconds after the start, or what the worker does."""
    while True:
        kind = generator.choice(["time", "compiling", "step", "evaluating", "saving"])
        if kind == "time":
            yield kind, generator.uniform(0, 2)
        elif kind == "step":
            yield kind, f"step {generator.randrange(STEPS)}"
        else:
            yield kind, kind


def difference(expected, folder):
    """The largest difference of a loss to that of the undisturbed run."""
    found = Losses(folder).read()
    if found.keys() != expected.keys():
        raise Preempted(f"losses of {sorted(found.keys() ^ expected.keys())} are missing or too many")
    return max(abs(found[key] - expected[key]) for key in expected)


def main(count, num_workers=2, seed=0):
    generator, tally = random.Random(seed), collections.Counter()
    largest = slowest = 0.0
    num_runs = num_preemptions = 0
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "undisturbed")
        folder.mkdir()
        expected = train_undisturbed(folder, num_workers)
        choices = moments(generator)
        while num_preemptions < count:
            folder = Path(parent, str(num_runs))
            folder.mkdir()
            preempted = True
            while preempted:
                (kind, moment), rank = next(choices), generator.randrange(num_workers)
                if num_preemptions >= count:
                    moment = "never"
                preempted, seconds = run_until(folder, moment, rank, num_workers)
                if preempted:
                    num_preemptions += 1
                    tally[f"rank {rank}, {kind}"] += 1
                    slowest = max(slowest, seconds)
                    print(f"{num_preemptions}: {kind} {moment}, rank {rank}: {seconds:.1f} s", flush=True)
            num_runs += 1
            largest = max(largest, difference(expected, folder))
    for what, times in sorted(tally.items()):
        print(f"{what:24} {times}")
    print(
        f"{num_preemptions} preemptions in {num_runs} runs on {num_workers} workers: all ended with status "
        f"0 after {slowest:.1f} s at most; largest difference to a loss of the undisturbed run: {largest:g}"
    )


if __name__ == "__main__":
    # The workers import `train` by the name of its module, which here is `__main__`.
    from tests.multiprocess import preemptions

    preemptions.main(*map(int, sys.argv[1:]))
