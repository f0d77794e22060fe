"""Checkpoints that TensorFlow has written; `data/tensorflow_checkpoint` is one of version 2.21.

It was written by `tf.train.Checkpoint(step=..., layers=[w, half], more={...}).write(...)`.
"""

import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.errors import CheckpointError

PATH = Path(__file__).parent / "data" / "tensorflow_checkpoint" / "small"
W = np.arange(12, dtype=np.float32).reshape(3, 4)


def variables(w_shape=(3, 4)):
    layers = [tf.Variable(np.zeros(w_shape, np.float32)), tf.Variable(jnp.zeros(2, jnp.bfloat16))]
    more = {"flag": tf.Variable([False, False]), "empty": tf.Variable(np.zeros((0, 3), np.float32))}
    return {"step": tf.Variable(0), "layers": layers, "more": more}


def test_the_reader_has_every_number():
    reader = tf.train.load_checkpoint(PATH)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    np.testing.assert_array_equal(reader.get_tensor(f"layers/0{suffix}"), W)
    assert reader.get_tensor(f"layers/1{suffix}").tolist() == [1.5, -2.0]
    assert reader.get_tensor(f"more/flag{suffix}").tolist() == [True, False]
    assert reader.get_tensor(f"more/scalar{suffix}") == 7
    assert reader.get_tensor(f"more/empty{suffix}").shape == (0, 3)
    assert reader.get_tensor(f"step{suffix}") == 3


def test_variables_are_restored_on_replicas():
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        own = variables()
    status = tf.train.Checkpoint(**own).restore(PATH)
    np.testing.assert_array_equal(own["layers"][0].numpy(), W)
    assert own["layers"][1].numpy().tolist() == [1.5, -2.0]
    assert own["more"]["flag"].numpy().tolist() == [True, False] and int(own["step"].numpy()) == 3
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="more/scalar"):
        status.assert_consumed()


def test_another_shape_is_refused_and_nothing_is_restored():
    own = variables(w_shape=(4, 3))
    with pytest.raises(CheckpointError, match=r"layers/0 with the shape \[3, 4\].*Nothing was restored"):
        tf.train.Checkpoint(**own).restore(PATH)
    assert int(own["step"].numpy()) == 0


def test_a_damaged_index_is_an_error(tmp_path):
    for file in PATH.parent.iterdir():
        shutil.copy(file, tmp_path)
    index = tmp_path / "small.index"
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="damaged"):
        tf.train.load_checkpoint(tmp_path / "small")
