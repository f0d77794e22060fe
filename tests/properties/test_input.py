"""Properties of input: every example arrives exactly once, complete and in order."""

import json
from itertools import zip_longest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.input.fakes import KINDS, Pipelines, Row, chunks, dataset_of, spread, wait_for_grain

import replicax as rx
from replicax.errors import InputError

from .budget import examples

DTYPES = ("int64", "float64", "int32", "float32", "float16", "bool", "uint8", "bfloat16")
BUFFERS = st.integers(0, 3)
# Numbers of replicas of each pipeline, eight at most in all.
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) <= 8)
SEVERAL = st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda sizes: sum(sizes) <= 8)


@pytest.fixture(autouse=True)
def _grain_has_ended():
    yield
    wait_for_grain()


def structures(leaf):
    """Structures whose leaves are drawn with `leaf()`."""
    return st.one_of(
        leaf,
        st.tuples(leaf, leaf),
        st.fixed_dictionaries({"b": leaf, "a": st.fixed_dictionaries({"deep": leaf})}),
        st.builds(Row, leaf, st.none() | st.lists(leaf, min_size=1, max_size=2)),
    )


@st.composite
def leaves(draw, count):
    """Rows that differ from each other as far as the dtype allows."""
    dtype = jnp.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (2,), (0,), (2, 3)]))
    values = np.arange(count).reshape(count, *[1] * len(shape)) + np.zeros(shape)
    return (values % 2 if dtype.kind == "b" else values).astype(dtype)


@st.composite
def rows(draw, min_rows=1, max_rows=40):
    """A structure of arrays that has, as its first leaf, the number of each row."""
    count = draw(st.integers(min_rows, max_rows))
    return {"": np.arange(count), "rest": draw(structures(leaves(count)))}


def split_sizes(count, num_parts):
    return [count // num_parts + (i < count % num_parts) for i in range(num_parts)]


def joined(got):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *[part.examples for part in got])


def assert_same(got, wanted):
    """Equal in structure, dtype (as JAX has it), shape and value."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == jax.dtypes.canonicalize_dtype(other.dtype)
        np.testing.assert_array_equal(one.astype(np.float64), other.astype(np.float64), strict=True)


def numbers(steps):
    """The numbers of all rows that are not padding, in order of steps and replicas."""
    return [int(i) for got in steps for part in got for i in part.examples[""]]


def has_known_batch_size(kind):
    return kind in ("arrays", "shuffled arrays", "files", "file iterators")


@examples(60)
@given(data=st.data(), kind=st.sampled_from(KINDS), sizes=SIZES, buffer_size=BUFFERS)
def test_a_batch_is_split_evenly_in_order_over_all_pipelines(data, kind, sizes, buffer_size):
    arrays, batch_size = data.draw(rows()), data.draw(st.integers(1, 17))
    pipelines = Pipelines(*sizes)
    options = {"per_replica_buffer_size": buffer_size, "auto_shard_policy": "DATA"}
    on_host = data.draw(st.booleans())
    if on_host:
        options["fetch_to_device"] = False
    steps = pipelines.steps(pipelines.distribute(lambda: dataset_of(kind, arrays, batch_size), **options))
    count = len(arrays[""])
    wanted = chunks(arrays, batch_size)
    if kind == "shuffled arrays":
        order = np.asarray(numbers(steps))
        assert sorted(order) == list(range(count))
        wanted = chunks(jax.tree.map(lambda a: a[order], arrays), batch_size)
    assert len(steps) == len(wanted)
    for got, batch in zip(steps, wanted, strict=True):
        assert [part.size for part in got] == split_sizes(len(batch[""]), sum(sizes))
        assert_same(joined(got), batch)


@examples(50)
@given(data=st.data(), kind=st.sampled_from(KINDS), sizes=SIZES, buffer_size=BUFFERS)
def test_partial_batches_are_treated_as_asked(data, kind, sizes, buffer_size):
    total = sum(sizes)
    arrays = data.draw(rows(max_rows=30))
    batch_size = data.draw(st.integers(1, 17) | st.integers(1, 3).map(lambda n: n * total))
    mode = data.draw(st.sampled_from(["pad", "drop", "error"]))
    pipelines = Pipelines(*sizes)
    datasets = pipelines.distribute(
        lambda: dataset_of(kind, arrays, batch_size),
        partial_batch=mode,
        per_replica_buffer_size=buffer_size,
        auto_shard_policy="DATA",
    )
    wanted = [batch[""] for batch in chunks(arrays, batch_size)]
    full = batch_size if has_known_batch_size(kind) else len(wanted[0])
    partial = [batch for batch in wanted if len(batch) < full]
    if (mode == "drop" and full % total) or (mode == "error" and (full % total or partial)):
        with pytest.raises(InputError, match="examples for"):
            pipelines.steps(datasets)
        return
    steps = pipelines.steps(datasets)
    if mode == "drop":
        wanted = [batch for batch in wanted if len(batch) == full]
    for got in steps:
        for part in got:
            assert len(part.value[""]) == -(-full // total)
            if mode == "pad":
                assert part.mask.dtype == bool
                assert part.mask.tolist() == [i < part.size for i in range(len(part.mask))]
    assert [[part.size for part in got] for got in steps] == [split_sizes(len(b), total) for b in wanted]
    if kind == "shuffled arrays":
        assert len(set(numbers(steps))) == sum(map(len, wanted))
    else:
        assert numbers(steps) == [int(i) for batch in wanted for i in batch]


# Pipelines that read different data each distribute their own batches.


def dealt(batches, num_parts, num_own):
    """For each step, the rows of each of a pipeline's replicas, by the documented rule."""
    pieces = []
    for batch in batches:
        ends = np.cumsum(split_sizes(len(batch), num_parts))
        pieces += np.split(batch, ends[:-1])
    return [pieces[i : i + num_own] for i in range(0, len(pieces), num_own)]


def assert_dealt(steps, pipelines, by_pipeline):
    """Pipelines that finish early get empty batches until all have finished."""
    wanted = []
    for step in zip_longest(*by_pipeline, fillvalue=[]):
        by_replica = [[]] * pipelines.num_replicas
        for ids, pieces in zip(pipelines.replicas, step, strict=True):
            for replica, piece in zip(ids, pieces, strict=False):
                by_replica[replica] = piece.tolist()
        wanted.append(by_replica)
    assert [[part.examples[""].tolist() for part in got] for got in steps] == wanted


@examples(60)
@given(data=st.data(), sizes=SEVERAL, buffer_size=BUFFERS)
def test_pipelines_that_share_out_files_see_every_example_once(data, sizes, buffer_size):
    kind = data.draw(st.sampled_from(["files", "file iterators"]))
    arrays, batch_size = data.draw(rows(min_rows=8)), data.draw(st.integers(1, 17))
    num_files = data.draw(st.integers(len(sizes), 6))
    pipelines, mode = Pipelines(*sizes), data.draw(st.sampled_from(["exact", "pad"]))
    datasets = pipelines.distribute(
        lambda: dataset_of(kind, arrays, batch_size, num_files),
        per_replica_buffer_size=buffer_size,
        partial_batch=mode,
        auto_shard_policy=data.draw(st.sampled_from(["FILE", "AUTO"])),
    )
    assert {dataset.plan().policy for dataset in datasets} == {rx.AutoShardPolicy.FILE}
    contents = [part[""] for part in spread(arrays, num_files)]
    by_pipeline = []
    for index, own in enumerate(sizes):
        mine = np.concatenate(contents[index :: len(sizes)])
        by_pipeline.append(dealt(np.split(mine, range(batch_size, len(mine), batch_size)), sum(sizes), own))
    steps = pipelines.steps(datasets)
    assert_dealt(steps, pipelines, by_pipeline)
    assert sorted(numbers(steps)) == list(range(len(arrays[""])))
    for got in steps:
        for part in got:
            own = part.examples
            assert_same(own, jax.tree.map(lambda a, own=own: a[own[""]], arrays))
            assert mode == "exact" or len(part.value[""]) == -(-batch_size // sum(sizes))


@examples(40)
@given(data=st.data(), sizes=SEVERAL, kind=st.sampled_from(KINDS), buffer_size=BUFFERS)
def test_pipelines_that_share_nothing_see_every_example_once_each(data, sizes, kind, buffer_size):
    arrays, batch_size = data.draw(rows(max_rows=20)), data.draw(st.integers(1, 17))
    pipelines = Pipelines(*sizes)
    datasets = pipelines.distribute(
        lambda: dataset_of(kind, arrays, batch_size),
        per_replica_buffer_size=buffer_size,
        auto_shard_policy="OFF",
    )
    steps = pipelines.steps(datasets)
    for dataset in datasets:
        assert dataset.cardinality in (-2, len(steps))
    for ids in pipelines.replicas:
        seen = numbers([[got[i] for i in ids] for got in steps])
        if kind == "shuffled arrays":
            seen.sort()
        assert seen == list(range(len(arrays[""])))
    if kind != "shuffled arrays":
        batches = [batch[""] for batch in chunks(arrays, batch_size)]
        assert_dealt(steps, pipelines, [dealt(batches, sum(sizes), own) for own in sizes])


@examples(40)
@given(data=st.data(), sizes=SEVERAL, buffer_size=BUFFERS)
def test_drop_and_error_where_pipelines_read_different_data(data, sizes, buffer_size):
    total = sum(sizes)
    arrays, batch_size = data.draw(rows(min_rows=8)), total * data.draw(st.integers(1, 2))

    def all_steps(mode):
        pipelines = Pipelines(*sizes)
        datasets = pipelines.distribute(
            lambda: dataset_of("files", arrays, batch_size, 5),
            per_replica_buffer_size=buffer_size,
            partial_batch=mode,
        )
        return [[part.examples[""].tolist() for part in got] for got in pipelines.steps(datasets)]

    exact = all_steps("exact")
    full = [step for step in exact if {len(part) for part in step} == {batch_size // total}]
    assert all_steps("drop") == full
    if full == exact:
        assert all_steps("error") == exact
    else:
        with pytest.raises(InputError):
            all_steps("error")


@examples(50)
@given(data=st.data(), sizes=SIZES, buffer_size=BUFFERS)
def test_batches_of_a_dataset_function_are_dealt_in_turn(data, sizes, buffer_size):
    per_replica = data.draw(st.booleans())
    pipelines, kind = Pipelines(*sizes), data.draw(st.sampled_from(KINDS))
    count = sum(sizes) if per_replica else len(sizes)
    num_rows = data.draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    starts, batch_size = np.cumsum([0, *num_rows]), data.draw(st.integers(1, 5))
    contents = [np.arange(s, s + n) for s, n in zip(starts, num_rows, strict=False)]
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return dataset_of(kind, {"": contents[context.input_pipeline_id]}, batch_size)

    datasets = pipelines.from_function(
        dataset_fn,
        per_replica_buffer_size=buffer_size,
        replication_mode="PER_REPLICA" if per_replica else "PER_WORKER",
    )
    assert contexts == [rx.InputContext(count, i, sum(sizes)) for i in range(count)]
    steps = pipelines.steps(datasets)
    for dataset in datasets:
        assert dataset.cardinality in (-2, len(steps))
    assert sorted(numbers(steps)) == list(range(starts[-1]))
    if kind == "shuffled arrays":
        return
    by_pipeline = []
    for index, ids in enumerate(pipelines.replicas):
        if per_replica:
            columns = [dealt(chunks(contents[i], batch_size), 1, 1) for i in ids]
            empty = [np.arange(0)]
            by_pipeline.append(
                [[pieces[0] for pieces in step] for step in zip_longest(*columns, fillvalue=empty)]
            )
        else:
            by_pipeline.append(dealt(chunks(contents[index], batch_size), 1, len(ids)))
    assert_dealt(steps, pipelines, by_pipeline)


@examples(60)
@given(data=st.data(), kind=st.sampled_from(KINDS), before=SIZES, after=SIZES, buffer_size=BUFFERS)
def test_a_pass_continues_exactly_on_other_replicas(data, kind, before, after, buffer_size):
    arrays, batch_size = data.draw(rows(max_rows=30)), data.draw(st.integers(1, 9))
    options = {"per_replica_buffer_size": buffer_size, "auto_shard_policy": "DATA"}
    first, second = Pipelines(*before), Pipelines(*after)

    def begin(pipelines):
        return [
            iter(d) for d in pipelines.distribute(lambda: dataset_of(kind, arrays, batch_size), **options)
        ]

    iterators = begin(first)
    done = first.take(iterators, data.draw(st.integers(0, -(-len(arrays[""]) // batch_size))))
    states = [json.dumps(iterator.state()) for iterator in iterators]
    assert len(set(states)) == 1
    state = json.loads(states[0])
    assert state["examples"] == len(numbers(done))
    rest = numbers(first.take(iterators))
    others = begin(second)
    for iterator in others:
        iterator.restore(state)
        assert iterator.state() == state
    assert numbers(second.take(others)) == rest
    assert sorted(numbers(done) + rest) == list(range(len(arrays[""])))


@examples(40)
@given(data=st.data(), sizes=SEVERAL, buffer_size=BUFFERS)
def test_a_pass_over_shared_files_continues_exactly(data, sizes, buffer_size):
    kind = data.draw(st.sampled_from(["files", "file iterators"]))
    arrays, batch_size = data.draw(rows(min_rows=8)), data.draw(st.integers(1, 9))

    def begin(pipelines):
        datasets = pipelines.distribute(
            lambda: dataset_of(kind, arrays, batch_size, 5), per_replica_buffer_size=buffer_size
        )
        return [iter(dataset) for dataset in datasets]

    first, second = Pipelines(*sizes), Pipelines(*sizes)
    iterators = begin(first)
    num_steps = len(first.take(begin(first)))
    done = first.take(iterators, data.draw(st.integers(0, num_steps)))
    states = json.loads(json.dumps([iterator.state() for iterator in iterators]))
    rest = first.take(iterators)
    others = begin(second)
    for iterator, state in zip(others, states, strict=True):
        iterator.restore(state)
    assert [[part.examples[""].tolist() for part in got] for got in second.take(others)] == [
        [part.examples[""].tolist() for part in got] for got in rest
    ]
    assert sorted(numbers(done) + numbers(rest)) == list(range(len(arrays[""])))
