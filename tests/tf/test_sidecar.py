"""`tf.keras.utils.SidecarEvaluator`, beside a training that saves in its own ways."""

import threading
import time

import keras
import numpy as np
import pytest

from replicax import tf


@pytest.fixture
def data():
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def make_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def evaluated_beside(data, folder, train):
    """The losses that an evaluator finds while `train` trains in this thread."""
    evaluator = tf.keras.utils.SidecarEvaluator(make_model(), data, folder, max_evaluations=3)
    thread = threading.Thread(target=evaluator.start, daemon=True)
    thread.start()
    train()
    thread.join(60)
    assert not thread.is_alive()
    return [found["loss"] for found in evaluator.results]


def test_it_evaluates_what_a_checkpoint_manager_saves(data, tmp_path):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = make_model()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(tmp_path), max_to_keep=1)
    losses = []

    def train():
        for _ in range(3):
            model.fit(*data, epochs=1, verbose=0)
            losses.append(model.evaluate(*data, verbose=0))
            manager.save()

    found = evaluated_beside(data, tmp_path, train)
    assert found[-1] == pytest.approx(losses[-1], rel=1e-5)


def test_it_evaluates_the_files_of_model_checkpoint(data, tmp_path):
    model = make_model()
    path = str(tmp_path / "ckpt-{epoch}.weights.h5")
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    found = evaluated_beside(
        data, tmp_path, lambda: model.fit(*data, epochs=3, verbose=0, callbacks=[save])
    )
    assert found[-1] == pytest.approx(model.evaluate(*data, verbose=0), rel=1e-5)


def test_a_checkpoint_that_is_written_again_is_evaluated_again(data, tmp_path):
    evaluator = tf.keras.utils.SidecarEvaluator(make_model(), data, tmp_path, max_evaluations=2)
    thread = threading.Thread(target=evaluator.start, daemon=True)
    thread.start()
    for i, number in enumerate([1, 1, 2]):
        make_model().save_weights(tmp_path / f"ckpt-{number}.weights.h5")
        deadline = time.monotonic() + 60
        while len(evaluator.results) <= i and time.monotonic() < deadline:
            time.sleep(0.05)
    thread.join(60)
    assert not thread.is_alive() and len(evaluator.results) == 3


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_left_out(data, tmp_path, monkeypatch):
    model = make_model()
    evaluator = tf.keras.utils.SidecarEvaluator(model, data, tmp_path, max_evaluations=2)
    first, second = (tmp_path / f"ckpt-{i}.weights.h5" for i in (1, 2))
    model.save_weights(first)
    load = model.load_weights

    def load_slowly(path):
        if path == first:
            first.unlink()
            model.save_weights(second)
            raise OSError("truncated file")
        load(path)

    monkeypatch.setattr(model, "load_weights", load_slowly)
    evaluator.start()
    assert len(evaluator.results) == 1


def test_a_damaged_checkpoint_is_an_error(data, tmp_path):
    (tmp_path / "ckpt-1.weights.h5").write_bytes(b"damaged")
    evaluator = tf.keras.utils.SidecarEvaluator(make_model(), data, tmp_path)
    with pytest.raises(OSError, match="signature"):
        evaluator.start()


def test_a_model_must_be_compiled(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"call `model.compile"):
        tf.keras.utils.SidecarEvaluator(model, None, tmp_path)


def test_keras_own_names_are_there():
    assert tf.keras.utils.set_random_seed is keras.utils.set_random_seed
    from replicax.tf.keras.utils import to_categorical

    assert to_categorical is keras.utils.to_categorical
