"""A training program that may be killed at any moment, and goes on from its newest checkpoint.

python killed_trainer.py FOLDER STRATEGY NUM_STEPS INTERVAL NUM_FLOATS

It saves to FOLDER/checkpoints every INTERVAL steps, and appends one line to FOLDER/log for everything that
others should know: `start STEP`, `save STEP` before a save and `saved STEP` once it is there, `STEP LOSS`
with the bits of the loss after every step, `end`. NUM_FLOATS more numbers are saved, so that saving takes
time; they are checked after every restore.

The data is shuffled, has a last batch that does not divide, and carries the index of each example, from
which dropout is drawn.
"""

import os
import pathlib
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

NUM_EXAMPLES, BATCH = 23, 6

STRATEGIES = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    **{f"mirrored{n}": lambda n=n: rx.MirroredStrategy([f"CPU:{i}" for i in range(n)]) for n in (1, 2, 3)},
    "sharded3": lambda: rx.ShardedStrategy(["CPU:0", "CPU:1", "CPU:2"], shard="all", min_shard_bytes=1),
}


def dataset():
    random = np.random.default_rng(1)
    x = random.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    y = np.sin(x @ np.float32([1.0, -2.0, 0.5, 0.3]))
    index = np.arange(NUM_EXAMPLES, dtype=np.int32)
    return rx.from_arrays({"x": x, "y": y, "index": index}).shuffle(seed=2).batch(BATCH).repeat()


class Trainer:
    """A network, its optimizer, a metric, the position in the data, a key and a count of steps."""

    def __init__(self, strategy, num_floats=0, compiled=True):
        self.strategy = strategy
        random = np.random.default_rng(0)

        def weight(name, *shape):
            value = random.normal(0, 0.5, shape).astype(np.float32)
            return rx.Variable(value, name=name)

        with strategy.scope():
            self.weights = [weight("w1", 4, 16), weight("b1", 16), weight("w2", 16, 1), weight("b2", 1)]
            self.steps = rx.Variable(0, name="steps", trainable=False)
            self.ballast = rx.Variable(np.zeros(num_floats, np.float32), name="ballast", trainable=False)
            self.optimizer = rx.Optimizer(optax.adam(1e-2))
            self.metric = rx.Mean("mean_loss")
        self.batches = iter(strategy.distribute_dataset(dataset()))
        self.checkpoint = rx.Checkpoint(
            model={"weights": self.weights, "ballast": self.ballast},
            optimizer=self.optimizer,
            iterator=self.batches,
            metric=self.metric,
            rng=jax.random.key(5),
            steps=self.steps,
        )
        self._step = rx.function(self._whole_step) if compiled else self._whole_step

    def _whole_step(self, key, batch):
        losses = self.strategy.run(self._replica_step, args=(key, batch))
        return self.strategy.reduce("SUM", losses, axis=None)

    def _replica_step(self, key, batch):
        keys = rx.example_keys(key, batch["index"])
        masks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (16,)))(keys)

        def loss_fn():
            w1, b1, w2, b2 = (w.value for w in self.weights)
            hidden = jnp.tanh(batch["x"] @ w1 + b1) * masks / 0.8
            errors = ((hidden @ w2 + b2)[:, 0] - batch["y"]) ** 2
            return rx.compute_average_loss(errors)

        loss, gradients = rx.value_and_grad(loss_fn, self.weights)()
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
        self.metric.update_state(loss)
        return loss

    def step(self):
        """Train on one batch; the loss."""
        self.checkpoint.rng, key = jax.random.split(self.checkpoint.rng)
        loss = np.float32(self._step(key, next(self.batches)))
        self.steps.assign_add(1)
        if self.ballast.size:
            self.ballast.assign(jnp.full(self.ballast.shape, self.num_steps, jnp.float32), read_value=False)
        return loss

    @property
    def num_steps(self):
        return int(self.steps.read_value())

    def check(self):
        """That what was restored belongs together."""
        ballast = np.asarray(self.ballast.read_value())
        assert (ballast == self.num_steps).all(), "the checkpoint is of two moments"
        assert int(self.optimizer.iterations.read_value()) == self.num_steps


def bits(loss):
    return np.float32(loss).tobytes().hex()


def main(folder, strategy, num_steps, interval, num_floats):
    folder = pathlib.Path(folder)
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(text):
        os.write(log, f"{text}\n".encode())

    trainer = Trainer(STRATEGIES[strategy](), num_floats)
    manager = rx.CheckpointManager(trainer.checkpoint, folder / "checkpoints", max_to_keep=3)
    manager.restore_or_initialize()
    trainer.check()
    note(f"start {trainer.num_steps}")
    ended = threading.Event()

    def watch():
        """Note when checkpoints are there."""
        there = set(manager.checkpoints)
        while not ended.wait(0.002):
            for step in sorted(set(manager.checkpoints) - there):
                there.add(step)
                note(f"saved {step}")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    while trainer.num_steps < num_steps:
        loss = trainer.step()
        note(f"{trainer.num_steps} {bits(loss)}")
        if trainer.num_steps % interval == 0:
            note(f"save {trainer.num_steps}")
            manager.save(trainer.num_steps)
        time.sleep(0.005)
    manager.close()
    trainer.batches.close()
    ended.set()
    watcher.join()
    note("end")


if __name__ == "__main__":
    rx.set_cpu_devices(3)
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
