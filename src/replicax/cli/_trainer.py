"""The demo's training program: a model, its optimizer and its input, for any strategy.

Nothing here depends on the number or kind of devices.
"""

from __future__ import annotations

import os
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from replicax.cli._digits import Digits, class_scores, initial_weights, shift_image

__all__ = ["Trainer"]


@final
class Trainer:
    """Trains, tests and saves a classifier of digits, and resumes from a checkpoint.

    Args:
        strategy: the strategy to train with.
        digits: the training data.
        num_epochs: the number of passes over the data.
        batch_size: the global batch size.
        folder: the folder for checkpoints.
        seed: the seed of the initial weights.
    """

    def __init__(
        self,
        strategy: rx.Strategy,
        digits: Digits,
        *,
        num_epochs: int,
        batch_size: int,
        folder: str | os.PathLike[str],
        seed: int,
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.weights = rx.create_variables(initial_weights(seed))
            self.optimizer = rx.Optimizer(optax.adam(1e-3))
        self.variables = jax.tree.leaves(self.weights, is_leaf=lambda x: isinstance(x, rx.Variable))

        arrays = (np.arange(len(digits)), digits.images, digits.labels)
        examples = rx.from_arrays(arrays).shuffle(seed=0).repeat(num_epochs)
        dataset = strategy.distribute_dataset(examples.batch(batch_size, drop_remainder=True))
        self.batches = iter(dataset)

        checkpoint = rx.Checkpoint(weights=self.weights, optimizer=self.optimizer, batches=self.batches)
        self.checkpoints = rx.CheckpointManager(checkpoint, folder)
        self.step = 0
        self.num_examples = np.zeros(strategy.num_replicas_in_sync, int)  # per replica

    def train(self, until_step: int, tracker: rx.Tracker) -> None:
        """Train up to a step and wait until it is computed."""
        loss = None
        while self.step < until_step:
            batch = next(self.batches)
            loss, accuracy = self._train_step(batch)
            self.step += 1
            self.num_examples += [len(indices) for indices, *_ in self.strategy.local_results(batch)]
            waited = self.batches.stats().wait_fraction
            tracker.log(self.step, loss=loss, accuracy=accuracy, input_wait=waited)
        jax.block_until_ready(loss)
        tracker.flush()

    @rx.function
    def _train_step(self, batch: Any) -> Any:
        losses, hits = self.strategy.run(self._replica_step, args=batch)
        return self.strategy.reduce("SUM", losses, axis=None), self.strategy.reduce("MEAN", hits, axis=0)

    def _replica_step(self, indices: Any, images: Any, labels: Any) -> Any:
        # One key per example and step: the random numbers do not depend on the number of replicas.
        key = jax.random.fold_in(jax.random.key(0), self.optimizer.iterations.read_value())
        images = jax.vmap(shift_image)(rx.example_keys(key, indices), images)

        def loss_fn() -> Any:
            scores = class_scores(rx.read_values(self.weights), images)
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            return rx.compute_average_loss(losses), scores

        (loss, scores), gradients = rx.value_and_grad(loss_fn, self.weights, has_aux=True)()
        self.optimizer.apply_gradients(zip(jax.tree.leaves(gradients), self.variables, strict=True))
        return loss, (scores.argmax(1) == labels).astype(jnp.float32)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """The predicted digit of each image."""
        dataset = self.strategy.distribute_dataset(rx.from_arrays(images).batch(len(images)))
        return np.concatenate([np.asarray(self._predict_step(batch)) for batch in dataset])

    @rx.function
    def _predict_step(self, images: Any) -> Any:
        def best(images: Any) -> Any:
            return class_scores(rx.read_values(self.weights), images).argmax(1)

        return self.strategy.gather(self.strategy.run(best, args=(images,)), axis=0)

    def save(self) -> str:
        """Write a checkpoint and return its path."""
        self.checkpoints.save(self.step)
        self.checkpoints.wait()
        return str(self.checkpoints.latest_checkpoint)

    def resume(self) -> None:
        """Continue from the latest checkpoint."""
        step = self.checkpoints.restore_or_initialize()
        assert step is not None
        self.step = step

    def close(self) -> None:
        """Stop reading, and close the checkpoint manager."""
        self.batches.close()
        self.checkpoints.close()
