"""Variables and mirrored values compute like the array that they hold; per-replica values refuse to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import PerReplicaUseError


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(params=["variable", "copy", "mirrored"])
def value(request, strategy):
    with strategy.scope():
        variable = rx.Variable([[1.0, 2.0], [3.0, 4.0]])
    if request.param == "mirrored":
        return strategy.extended.reduce_to("MEAN", strategy.run(lambda: variable * 1), variable)
    return variable if request.param == "variable" else strategy.local_results(variable)[1]


def test_array_methods_and_attributes(value):
    assert value.sum() == 10.0
    assert value.T.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert value.reshape(-1).shape == (4,)
    assert value.at[0, 0].set(9.0).tolist() == [[9.0, 2.0], [3.0, 4.0]]
    assert isinstance(value.astype(jnp.int32), jax.Array)
    assert (value.shape, value.ndim, value.size, value.dtype) == ((2, 2), 2, 4, np.float32)


def test_numpy_scalars_leave_the_arithmetic_to_it(value):
    assert isinstance(np.float32(2) * value, jax.Array)
    assert (np.ones(2) @ value).tolist() == [4.0, 6.0]


def test_unknown_attributes_name_the_class_and_the_attribute(value):
    with pytest.raises(AttributeError, match=f"'{type(value).__name__}' object has no attribute 'sums'"):
        value.sums  # noqa: B018


def test_per_replica_values_say_what_to_write_instead(strategy):
    value = strategy.run(lambda: jnp.ones(2) * rx.get_replica_context().replica_id_in_sync_group)
    with pytest.raises(PerReplicaUseError, match=r"strategy\.reduce"):
        value + 1
    with pytest.raises(AttributeError, match=r"strategy\.reduce"):
        value.sum()
