"""TensorFlow's partitioners: the examples of its reference, their guarantees, and wrong arguments."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx
import replicax.tf as tf


@pytest.mark.parametrize(
    ("partitioner", "shape", "expected"),
    [
        (rx.FixedShardsPartitioner(num_shards=2), (10, 3), [2, 1]),
        (rx.FixedShardsPartitioner(num_shards=5), (3,), [3]),
        (rx.MinSizePartitioner(min_shard_bytes=4, max_shards=2), (6, 1), [2, 1]),
        (rx.MinSizePartitioner(min_shard_bytes=4, max_shards=10), (6, 1), [6, 1]),
        (rx.MinSizePartitioner(), (1 << 20, 4), [1, 1]),
        (rx.MinSizePartitioner(max_shards=8), (1 << 20, 1), [8, 1]),
        (rx.MaxSizePartitioner(max_shard_bytes=4), (6, 1), [6, 1]),
        (rx.MaxSizePartitioner(max_shard_bytes=4, max_shards=2), (6, 1), [2, 1]),
        (rx.MaxSizePartitioner(max_shard_bytes=1024), (6, 1), [1, 1]),
    ],
)
def test_the_examples_of_the_reference(partitioner, shape, expected):
    assert partitioner(shape, jnp.float32) == expected


def test_another_axis():
    assert rx.FixedShardsPartitioner(2)((10, 3), jnp.float32, axis=1) == [1, 2]
    assert rx.FixedShardsPartitioner(2)((10, 3), jnp.float32, axis=-1) == [1, 2]
    assert rx.MaxSizePartitioner(40)((10, 3), jnp.float32, 1) == [1, 3]


def test_the_dtype_counts():
    small = rx.MaxSizePartitioner(8)
    assert [small((8,), dtype) for dtype in (jnp.int8, jnp.bfloat16, "float32")] == [[1], [2], [4]]


@pytest.mark.parametrize("dtype", [str, "string", tf.string, np.dtype("U3")])
def test_strings_have_an_assumed_size(dtype):
    assert rx.MaxSizePartitioner(32)((8,), dtype) == [4]
    assert rx.MinSizePartitioner(32, max_shards=9, bytes_per_string=8)((8,), dtype) == [2]


def test_variables_without_elements_are_not_divided():
    for partitioner in (
        rx.FixedShardsPartitioner(2),
        rx.MinSizePartitioner(4, 2),
        rx.MaxSizePartitioner(4, 2),
    ):
        assert partitioner((0, 3), jnp.float32) == [1, 1]
    assert rx.MaxSizePartitioner(4)((3, 0), jnp.float32) == [1, 1]


@given(
    st.integers(1, 200), st.integers(1, 8), st.integers(1, 300), st.integers(1, 20), st.sampled_from("fd")
)
def test_parts_have_the_documented_size(rows, columns, limit, most, code):
    """Rows are divided evenly, so that the parts differ by one row at most."""
    row = columns * np.dtype(code).itemsize
    (parts, _) = rx.MinSizePartitioner(limit, most)((rows, columns), np.dtype(code))
    assert 1 <= parts <= min(most, rows)
    assert parts == 1 or rows // parts * row >= limit
    assert parts == min(most, rows) or rows // (parts + 1) * row < limit
    (parts, _) = rx.MaxSizePartitioner(limit)((rows, columns), np.dtype(code))
    assert math.ceil(rows / parts) * row <= limit or parts == rows
    (fewer, _) = rx.MaxSizePartitioner(limit, most)((rows, columns), np.dtype(code))
    assert fewer == min(parts, most)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rx.FixedShardsPartitioner(0),
        lambda: rx.MinSizePartitioner(min_shard_bytes=0),
        lambda: rx.MinSizePartitioner(max_shards=0),
        lambda: rx.MinSizePartitioner(bytes_per_string=-1),
        lambda: rx.MaxSizePartitioner(max_shard_bytes=0),
        lambda: rx.MaxSizePartitioner(4, max_shards=0),
        lambda: rx.MaxSizePartitioner(4, bytes_per_string=0),
    ],
)
def test_numbers_must_be_positive(make):
    with pytest.raises(ValueError, match="pass a whole number, 1 or more"):
        make()


def test_wrong_arguments_are_explained():
    with pytest.raises(TypeError, match=r"num_shards=1\.5"):
        rx.FixedShardsPartitioner(1.5)
    with pytest.raises(ValueError, match=r"can't split axis 2 of a variable of shape \(10, 3\)"):
        rx.FixedShardsPartitioner(2)((10, 3), jnp.float32, axis=2)
    with pytest.raises(ValueError, match=r"can't split axis 0 of a variable of shape \(\)"):
        rx.MinSizePartitioner()((), jnp.float32)


def test_tensorflow_names():
    assert tf.distribute.experimental.partitioners.MinSizePartitioner is rx.MinSizePartitioner
