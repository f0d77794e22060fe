"""`tf.GradientTape` against the recorded results of TensorFlow, for its documented uses."""

import json

import jax
import numpy as np
import pytest

from replicax import tf

from .tape_examples import EXAMPLES, RECORDED, plain

TENSORFLOW = json.loads(RECORDED.read_text())


def test_every_example_is_recorded():
    assert [*TENSORFLOW] == ["tensorflow", *EXAMPLES]


@pytest.mark.parametrize("name", EXAMPLES)
def test_as_in_tensorflow(name):
    ours, recorded = plain(EXAMPLES[name](tf)), TENSORFLOW[name]
    ours, structure = jax.tree.flatten(ours, is_leaf=lambda x: x is None)
    recorded, expected = jax.tree.flatten(recorded, is_leaf=lambda x: x is None)
    assert structure == expected
    for mine, theirs in zip(ours, recorded, strict=True):
        if isinstance(theirs, float):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
        else:
            assert mine == theirs
