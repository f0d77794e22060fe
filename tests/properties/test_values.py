"""Smaller properties: reductions equal NumPy's, splitting undoes assembling, totals are exact."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import replicax as rx
from replicax.topology import ReplicaMesh

from .budget import examples

COUNTS = (1, 2, 3, 8)
DTYPES = ("float32", "int32", "int8", "uint8", "float16", "bfloat16")


@functools.cache
def mirrored(num_replicas):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


@functools.cache
def mesh(num_replicas):
    return ReplicaMesh(jax.devices()[:num_replicas])


def per_replica(strategy, parts):
    return strategy.distribute_values_from_function(lambda ctx: parts[ctx.replica_id_in_sync_group])


@st.composite
def parts_of_replicas(draw, dtypes=DTYPES, uneven=True, min_ndim=0):
    """An array for each replica; `uneven` ones may differ in the size of their first axis."""
    count = draw(st.sampled_from(COUNTS))
    shape = draw(hnp.array_shapes(min_dims=min_ndim, max_dims=3, min_side=1, max_side=3))
    dtype = jnp.dtype(draw(st.sampled_from(dtypes)))
    low = 0 if dtype == jnp.uint8 else -3
    sizes = [shape[0]] * count if shape else []
    if uneven and shape and draw(st.booleans()):
        sizes = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    parts = []
    for i in range(count):
        full = (sizes[i], *shape[1:]) if shape else ()
        values = draw(hnp.arrays(np.int32, full, elements=st.integers(low, 3)))
        parts.append(values.astype(dtype))
    return parts


def wide(array):
    """The reference: a sum in a type that can hold it."""
    return np.asarray(array).astype(np.float64)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@examples(30)
@given(data=st.data())
def test_reduce_over_axes_is_numpys(mode, data):
    parts = data.draw(parts_of_replicas(min_ndim=1))
    ndim = parts[0].ndim
    alike = len({part.shape for part in parts}) == 1
    one = st.integers(-ndim, ndim - 1) if alike else st.sampled_from((0, -ndim))
    several = st.sets(st.integers(0, ndim - 1), min_size=1).map(lambda s: tuple(sorted({0, *s})))
    axis = data.draw(one | several)
    strategy = mirrored(len(parts))
    value = per_replica(strategy, parts)
    reduce = rx.function(strategy.reduce) if mode == "compiled" else strategy.reduce

    total = sum(np.sum(wide(part), axis) for part in parts)
    got = reduce("SUM", value, axis)
    assert got.shape == total.shape
    np.testing.assert_array_equal(wide(got), total)

    axes = axis if isinstance(axis, tuple) else (axis,)
    count = sum(int(np.prod([part.shape[a] for a in axes])) for part in parts)
    if count:
        got = reduce("MEAN", value, axis)
        exact = parts[0].dtype in (np.float32, np.int32, np.int8, np.uint8)
        assert jnp.issubdtype(got.dtype, jnp.floating)
        np.testing.assert_allclose(wide(got), total / count, rtol=1e-6 if exact else 1e-2)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@examples(30)
@given(parts=parts_of_replicas(uneven=False))
def test_reduce_across_replicas_is_numpys(mode, parts):
    strategy = mirrored(len(parts))
    value = per_replica(strategy, parts)
    reduce = rx.function(strategy.reduce) if mode == "compiled" else strategy.reduce
    total = sum(map(wide, parts))
    got = reduce("SUM", value, None)
    assert got.dtype == parts[0].dtype
    np.testing.assert_array_equal(wide(got), total)
    mean = reduce("MEAN", value, None)
    integer = jnp.issubdtype(parts[0].dtype, jnp.integer)
    assert mean.dtype == (jnp.float32 if integer else parts[0].dtype)
    np.testing.assert_allclose(wide(mean), total / len(parts), rtol=1e-2)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@examples(30)
@given(data=st.data())
def test_gather_is_concatenation(mode, data):
    parts = data.draw(parts_of_replicas(min_ndim=1))
    ndim = parts[0].ndim
    alike = len({part.shape for part in parts}) == 1
    axis = data.draw(st.integers(-ndim, ndim - 1) if alike else st.sampled_from((0, -ndim)))
    strategy = mirrored(len(parts))
    gather = rx.function(strategy.gather) if mode == "compiled" else strategy.gather
    got = gather(per_replica(strategy, parts), axis)
    assert got.dtype == parts[0].dtype
    np.testing.assert_array_equal(wide(got), np.concatenate(list(map(wide, parts)), axis))


@examples(30)
@given(parts=parts_of_replicas(uneven=False))
def test_split_undoes_assemble(parts):
    on = mesh(len(parts))
    array = on.assemble(parts)
    assert array.sharding == on.sharded
    back = on.split(array, scalar=parts[0].ndim == 0)
    assert len(back) == len(parts)
    for i, (part, other) in enumerate(zip(parts, back, strict=True)):
        assert other.dtype == part.dtype and other.shape == part.shape
        assert other.devices() == {jax.devices()[i]}
        np.testing.assert_array_equal(wide(other), wide(part))


@examples(30)
@given(parts=parts_of_replicas(uneven=False))
def test_assemble_undoes_split(parts):
    on = mesh(len(parts))
    array = on.assemble(parts)
    again = on.assemble(on.split(array, scalar=parts[0].ndim == 0))
    assert again.sharding == array.sharding
    np.testing.assert_array_equal(wide(again), wide(array))


@examples(30)
@given(parts=parts_of_replicas(uneven=False))
def test_split_undoes_assemble_replicated(parts):
    on = mesh(len(parts))
    array = on.assemble_replicated([parts[0]] * len(parts))
    assert array.shape == parts[0].shape
    for other in on.split_replicated(array):
        np.testing.assert_array_equal(wide(other), wide(parts[0]))


def flattened_and_back(value):
    leaves, treedef = jax.tree.flatten(value)
    return jax.tree.unflatten(treedef, leaves)


def check_components(before, after):
    assert type(before) is type(after)
    for part, other in zip(before, after, strict=True):
        assert np.shape(part) == np.shape(other)
        np.testing.assert_array_equal(wide(part), wide(other))


@examples(30)
@given(parts=parts_of_replicas())
def test_per_replica_survives_flattening(parts):
    value = per_replica(mirrored(len(parts)), parts)
    if len(parts) == 1 and not isinstance(value, rx.PerReplica):
        value = rx.PerReplica(parts)
    back = flattened_and_back(value)
    assert isinstance(back, rx.PerReplica)
    check_components(tuple(parts), tuple(back.values))
    check_components(tuple(back.values), tuple(flattened_and_back(back).values))
    assert jax.tree.structure(back) == jax.tree.structure(value)


@examples(30)
@given(parts=parts_of_replicas())
def test_loose_per_replica_survives_flattening(parts):
    back = flattened_and_back(rx.PerReplica(parts))
    check_components(tuple(parts), tuple(back.values))


@examples(30)
@given(parts=parts_of_replicas(uneven=False))
def test_mirrored_survives_flattening(parts):
    strategy = mirrored(len(parts))
    loose = rx.Mirrored([parts[0]] * len(parts))
    check_components(tuple(loose.values), tuple(flattened_and_back(loose).values))
    value = per_replica(strategy, parts)
    reduced = strategy.extended.reduce_to("SUM", value, value)
    back = flattened_and_back(reduced)
    assert type(back) is type(reduced)
    if isinstance(reduced, rx.Mirrored):
        check_components(tuple(reduced.values), tuple(back.values))


@examples(30)
@given(
    rows=hnp.arrays(np.float32, (3, 2), elements=st.integers(-5, 5)),
    indices=hnp.arrays(np.int32, (3,), elements=st.integers(0, 4)),
    dense_shape=st.sampled_from((None, (5, 2))),
)
def test_indexed_slices_survive_flattening(rows, indices, dense_shape):
    value = rx.IndexedSlices(rows, indices, dense_shape)
    back = flattened_and_back(value)
    np.testing.assert_array_equal(back.values, rows)
    np.testing.assert_array_equal(back.indices, indices)
    assert back.dense_shape == dense_shape
    if dense_shape:
        dense = np.zeros(dense_shape, np.float32)
        np.add.at(dense, indices, rows)
        np.testing.assert_array_equal(value.to_dense(), dense)


@functools.cache
def total_variable(num_replicas, dtype):
    with mirrored(num_replicas).scope():
        return rx.Variable(
            jnp.zeros(3, dtype),
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@examples(30)
@given(
    num_replicas=st.sampled_from(COUNTS),
    dtype=st.sampled_from(("int32", "int8", "int16")),
    data=st.data(),
)
def test_integer_total_is_read_back_exactly(mode, num_replicas, dtype, data):
    limits = np.iinfo(dtype)
    total = data.draw(hnp.arrays(dtype, (3,), elements=st.integers(limits.min, limits.max)))
    v = total_variable(num_replicas, dtype)
    assign = rx.function(v.assign) if mode == "compiled" else v.assign
    assign(total)
    np.testing.assert_array_equal(v.read_value(), total)
    shares = np.stack([np.asarray(copy.read_value()) for copy in v.copies]).astype(np.int64)
    np.testing.assert_array_equal(shares.sum(0), total)
    assert (shares.max(0) - shares.min(0) <= 1).all()
    assert (np.diff(shares, axis=0) <= 0).all(), "the remainder goes to the first replicas"
