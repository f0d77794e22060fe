"""Input: how batches are split, what iterators and specs say, options and policies.

`rx.from_arrays(np.arange(n))` stands for `tf.data.Dataset.range(n)`; what tf.data does with `map`,
`from_generator` and the like is written in Python here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import replicax as rx

from .world import Cases, World, tensor

LEFT_OUT = {
    "ragged_batch": "JAX has no tf.RaggedTensor",
    "dense_to_sparse": "JAX has no tf.SparseTensor",
    "prefetch: *": "how far TensorFlow's threads happen to have read ahead",
    "checkpoint a DistributedIterator": "tf.train.Checkpoint; `iterator.state()` is the position here",
}

case = Cases()


def numbers(stop: int) -> rx.ArrayDataset:
    """`tf.data.Dataset.range(stop)`."""
    return rx.from_arrays(np.arange(stop))


def put_into_batches(examples: Iterable[Any], size: int) -> Iterator[np.ndarray]:
    """tf.data's `batch` for what a Python iterator gives."""
    rows: list[Any] = []
    for example in examples:
        rows.append(example)
        if len(rows) == size:
            yield np.stack(rows)
            rows = []
    if rows:
        yield np.stack(rows)


def with_padding(vectors: Iterable[np.ndarray]) -> np.ndarray:
    """One batch of tf.data's `padded_batch`."""
    rows = list(vectors)
    length = max(map(len, rows))
    return np.stack([np.pad(row, (0, length - len(row))) for row in rows])


def batches(w: World, dataset: Any, options: Any = None) -> list[Any]:
    """The batches as they are handed out."""
    return list(w.s.experimental_distribute_dataset(dataset, options=options))


def split_over_replicas(w: World, distributed: Iterable[Any]) -> list[Any]:
    """For each batch, the numbers of each replica."""
    return [[np.asarray(part).tolist() for part in w.s.experimental_local_results(x)] for x in distributed]


def rows(w: World, dataset: Any, options: Any = None) -> list[Any]:
    """For each batch of `dataset`, the numbers of each replica."""
    return split_over_replicas(w, w.s.experimental_distribute_dataset(dataset, options=options))


def rows_from_function(w: World, dataset_fn: Callable[[Any], Any]) -> list[Any]:
    """The same for a dataset function."""
    return split_over_replicas(w, w.s.distribute_datasets_from_function(dataset_fn))


def shapes(w: World, dataset: Any) -> list[Any]:
    """For each batch, the shape of each replica's part."""
    distributed = w.s.experimental_distribute_dataset(dataset)
    return [[list(part.shape) for part in w.s.experimental_local_results(x)] for x in distributed]


case.section("experimental_distribute_dataset splitting")

for _total, _size in (
    *((8, 4), (8, 8), (10, 4), (10, 5), (7, 5), (5, 3)),
    *((3, 1), (4, 1), (1, 4), (6, 6), (9, 7), (0, 4)),
):
    case(
        f"range({_total}).batch({_size})",
        lambda w, total=_total, size=_size: rows(w, numbers(total).batch(size)),
    )
for _total, _size in ((10, 4), (7, 5), (3, 1), (5, 3)):
    case(
        f"range({_total}).batch({_size},drop_remainder=True)",
        lambda w, total=_total, size=_size: rows(w, numbers(total).batch(size, drop_remainder=True)),
    )
case(
    "element dtype/shape/dev of empty replica batch",
    lambda w: batches(w, rx.from_arrays(np.ones((1, 3), np.float32)).batch(4)),
)
case("unbatched range(4)", lambda w: batches(w, numbers(4)))
case("unbatched vectors", lambda w: batches(w, rx.from_arrays(np.ones((4, 6), np.float32))))
case("from_tensors scalar", lambda w: batches(w, [1.0]))
case(
    "batch then map keeping batch dim",
    lambda w: batches(w, lambda: (x * 2 for x in numbers(8).batch(4))),
)
case(
    "batch then map to scalar (reduce)",
    lambda w: batches(w, lambda: (x.sum() for x in numbers(8).batch(4))),
)
case(
    "batch then flat_map/unbatch",
    lambda w: batches(w, lambda: (example for x in numbers(8).batch(4) for example in x)),
)
case("batch then repeat(2)", lambda w: len(batches(w, numbers(8).batch(4).repeat(2))))
case("batch.batch", lambda w: shapes(w, lambda: put_into_batches(numbers(16).batch(4), 2)))
case(
    "padded_batch",
    lambda w: shapes(w, [with_padding(np.ones(i + 1) for i in chunk) for chunk in ((0, 1, 2, 3), (4, 5))]),
)
case(
    "from_generator batched 5 of batch 2",
    lambda w: rows(w, lambda: put_into_batches(iter(range(5)), 2)),
)
case(
    "generator yielding batches directly (no batch op)",
    lambda w: rows(w, lambda: (np.arange(4) + i for i in range(2))),
)
case(
    "nested dict/tuple elements",
    lambda w: batches(w, rx.from_arrays(({"a": np.arange(4.0)}, np.arange(4))).batch(4)),
)
case(
    "string elements",
    lambda w: batches(w, rx.from_arrays(np.array([b"a", b"b", b"c"], object)).batch(3)),
)


@case("shuffle order determinism across re-iteration")
def _(w: World) -> Any:
    distributed = w.s.experimental_distribute_dataset(numbers(8).shuffle(seed=1).batch(4))
    passes = [split_over_replicas(w, distributed) for _ in range(2)]
    return [sorted(n for step in one for part in step for n in part) == list(range(8)) for one in passes]


@case("re-iteration restarts")
def _(w: World) -> Any:
    distributed = w.s.experimental_distribute_dataset(numbers(4).batch(4))
    return [len(list(distributed)), len(list(distributed))]


@case("two independent iterators")
def _(w: World) -> Any:
    distributed = w.s.experimental_distribute_dataset(numbers(8).batch(4))
    with iter(distributed) as one, iter(distributed) as other:
        return [next(one), next(other)]


def at_the_end(w: World) -> Any:
    """An iterator whose only batch is gone."""
    iterator = iter(w.s.experimental_distribute_dataset(numbers(4).batch(4)))
    next(iterator)
    return iterator


@case("next past end (eager)")
def _(w: World) -> Any:
    with at_the_end(w) as iterator:
        return next(iterator)


@case("get_next past end (eager)")
def _(w: World) -> Any:
    with at_the_end(w) as iterator:
        return iterator.get_next()


@case("next(it) past end in tf.function")
def _(w: World) -> Any:
    with at_the_end(w) as iterator:
        return rx.function(lambda: next(iterator))()


@case("get_next_as_optional")
def _(w: World) -> Any:
    with iter(w.s.experimental_distribute_dataset(numbers(4).batch(4))) as iterator:
        some, none = iterator.get_next_as_optional(), iterator.get_next_as_optional()
        return [some.has_value(), some.get_value(), none.has_value(), type(some).__name__]


@case("optional.get_value() when empty")
def _(w: World) -> Any:
    with at_the_end(w) as iterator:
        return iterator.get_next_as_optional().get_value()


def sum_of(w: World, batch: Any) -> Any:
    """The sum of a batch's numbers, over all replicas."""
    return w.s.reduce("SUM", w.run(jnp.sum, args=(batch,)), axis=None)


@case("iterator passed to tf.function, tf.range loop")
def _(w: World) -> Any:
    def sum_of_three(iterator: Any) -> Any:
        return sum((sum_of(w, next(iterator)) for _ in range(3)), start=tensor(0))

    with iter(w.s.experimental_distribute_dataset(numbers(10).batch(4))) as iterator:
        return rx.function(sum_of_three)(iterator)


@case("for x in dist_dataset in tf.function (partial last)")
def _(w: World) -> Any:
    def count_and_sum(distributed: Any) -> Any:
        sums = [sum_of(w, batch) for batch in distributed]
        return tensor(len(sums)), sum(sums, start=tensor(0))

    return rx.function(count_and_sum)(w.s.experimental_distribute_dataset(numbers(10).batch(4)))


def means(w: World, dataset: Any, of_replica: Callable[[Any], Any], axis: int | None) -> list[Any]:
    """For each batch the MEAN of what `of_replica` makes of each replica's numbers."""
    distributed = w.s.experimental_distribute_dataset(dataset)
    return [
        w.s.reduce("MEAN", w.run(lambda x: of_replica(x.astype(jnp.float32)), args=(batch,)), axis=axis)
        for batch in distributed
    ]


case(
    "per-batch MEAN axis=0 incl. partial",
    lambda w: means(w, numbers(10).batch(4), lambda x: x, axis=0),
)
case(
    "per-batch mean-of-means (NaN with empty replica?)",
    lambda w: means(w, numbers(10).batch(4), jnp.mean, axis=None),
)
case(
    "mean-of-means with one EMPTY replica",
    lambda w: means(w, numbers(1).batch(4), jnp.mean, axis=None),
)

case.section("element_spec & dataset attributes")

for _name, _dataset in {
    "range.batch4": numbers(8).batch(4),
    "batch4 drop": numbers(8).batch(4, drop_remainder=True),
    "batch5 drop": numbers(10).batch(5, drop_remainder=True),
    "dict": rx.from_arrays({"a": np.ones((4, 2), np.float32)}).batch(2),
}.items():
    case(
        f"dataset.element_spec {_name}",
        lambda w, dataset=_dataset: w.s.experimental_distribute_dataset(dataset).element_spec,
    )
    case(
        f"iterator.element_spec {_name}",
        lambda w, dataset=_dataset: iter(w.s.experimental_distribute_dataset(dataset)).element_spec,
    )


def two_batches(w: World) -> Any:
    """A distributed dataset of two batches."""
    return w.s.experimental_distribute_dataset(numbers(4).batch(2))


case("type", lambda w: type(two_batches(w)).__name__)
case("isinstance DistributedDataset", lambda w: isinstance(two_batches(w), rx.DistributedDataset))
case("isinstance DistributedIterator", lambda w: isinstance(iter(two_batches(w)), rx.DistributedIterator))
case("len()", lambda w: len(two_batches(w)))
case(".cardinality", lambda w: two_batches(w).cardinality)
case(".map (transform)", lambda w: two_batches(w).map(lambda x: x))
case(
    ".reduce",
    lambda w: w.s.experimental_distribute_dataset(numbers(8).batch(4)).reduce(
        tensor(0), lambda total, batch: total + sum_of(w, batch)
    ),
)
case(".take", lambda w: two_batches(w).take(1))
case("bool", lambda w: bool(two_batches(w)))
case(
    "distribute a DistributedDataset again",
    lambda w: type(w.s.experimental_distribute_dataset(two_batches(w))).__name__,
)
case("not a dataset (list)", lambda w: w.s.experimental_distribute_dataset([1, 2]))
case("numpy array", lambda w: w.s.experimental_distribute_dataset(np.ones(4)))
case("called in replica ctx", lambda w: w.run(lambda: two_batches(w)))


@case("iterate in replica ctx")
def _(w: World) -> Any:
    distributed = two_batches(w)
    return w.run(lambda: next(iter(distributed)))


case.section("distribute_datasets_from_function")

Contexts = list[tuple[int, int, int]]


def noting(contexts: Contexts, dataset: Any) -> Callable[[Any], Any]:
    """A dataset function that notes what it is told."""

    def dataset_fn(context: Any) -> Any:
        contexts.append(
            (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync)
        )
        return dataset

    return dataset_fn


@case("context + elements")
def _(w: World) -> Any:
    contexts: Contexts = []
    distributed = w.s.distribute_datasets_from_function(noting(contexts, numbers(10).batch(2)))
    return [list(distributed), contexts]


case(
    "5 batches over N replicas: last step",
    lambda w: rows_from_function(w, lambda _: numbers(5).batch(1)),
)
case("unbatched elements (scalars)", lambda w: rows_from_function(w, lambda _: list(range(5))))
case(
    "static shape (drop_remainder) uneven count",
    lambda w: rows_from_function(w, lambda _: numbers(5).batch(1, drop_remainder=True)),
)
case(
    "element_spec",
    lambda w: w.s.distribute_datasets_from_function(lambda _: numbers(5).batch(1)).element_spec,
)
case("fn returns non-dataset", lambda w: w.s.distribute_datasets_from_function(lambda _: 3))
case("fn returns None", lambda w: w.s.distribute_datasets_from_function(lambda _: None))
case("fn raises", lambda w: w.s.distribute_datasets_from_function(lambda _: 1 / 0))
case("fn arity 0", lambda w: w.s.distribute_datasets_from_function(lambda: numbers(3).batch(1)))
case(
    "experimental_ alias",
    lambda w: (
        type(w.s.experimental_distribute_datasets_from_function(lambda _: numbers(4).batch(1))).__name__
    ),
)


@case("re-iteration")
def _(w: World) -> Any:
    distributed = w.s.distribute_datasets_from_function(lambda _: numbers(4).batch(1))
    return [len(list(distributed)), len(list(distributed))]


case(
    ".cardinality",
    lambda w: w.s.distribute_datasets_from_function(lambda _: numbers(5).batch(1)).cardinality,
)

case.section("InputOptions")


def one_batch_with(**options: Any) -> Callable[[World], Any]:
    """A case: the one batch of a dataset that is distributed with `options`."""
    return lambda w: batches(w, numbers(4).batch(4), rx.InputOptions(**options))


case("fetch_to_device=False", one_batch_with(experimental_fetch_to_device=False))
case("fetch_to_device=True", one_batch_with(experimental_fetch_to_device=True))
case("per_replica_buffer_size=3", one_batch_with(experimental_per_replica_buffer_size=3))
case("per_replica_buffer_size=0", one_batch_with(experimental_per_replica_buffer_size=0))
case("place_dataset_on_device=True alone", one_batch_with(experimental_place_dataset_on_device=True))


def from_function_with(**options: Any) -> Callable[[World], Any]:
    """A case: the batches of a dataset function with `options`, and what the function was told."""

    def run(w: World) -> Any:
        contexts: Contexts = []
        distributed = w.s.distribute_datasets_from_function(
            noting(contexts, numbers(4).batch(2)), options=rx.InputOptions(**options)
        )
        return [list(distributed), contexts]

    return run


for _fetch in (False, True):
    for _place in (False, True):
        _options = {
            "experimental_fetch_to_device": _fetch,
            "experimental_replication_mode": rx.InputReplicationMode.PER_REPLICA,
            "experimental_place_dataset_on_device": _place,
        }
        _title = f"PER_REPLICA fetch={_fetch} place={_place}"
        case(f"dataset {_title}", one_batch_with(**_options))
        case(f"from_function {_title}", from_function_with(**_options))
case(
    "from_function PER_WORKER fetch=False place=True",
    from_function_with(experimental_fetch_to_device=False, experimental_place_dataset_on_device=True),
)
case("options not InputOptions", lambda w: batches(w, numbers(4).batch(4), "x"))


@case("PER_REPLICA option mutates the strategy permanently")
def _(w: World) -> Any:
    before = rows(w, numbers(8).batch(4))
    options = rx.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=rx.InputReplicationMode.PER_REPLICA,
    )
    list(w.s.distribute_datasets_from_function(lambda _: numbers(4).batch(2), options=options))
    contexts: Contexts = []
    w.s.distribute_datasets_from_function(noting(contexts, numbers(4).batch(2)))
    off = rows(w, numbers(8).batch(4), rx.InputOptions(auto_shard_policy="OFF"))
    return [
        before,
        "then after ONE PER_REPLICA call, a plain call sees pipelines:",
        [context[:2] for context in contexts],
        "and policy OFF gives",
        off,
    ]


case.section("autoshard policy on single worker")

for _policy in rx.AutoShardPolicy:
    case(
        f"policy {_policy.name}",
        lambda w, policy=_policy: rows(w, numbers(8).batch(4), rx.InputOptions(auto_shard_policy=policy)),
    )

case.section("side effects")


@case("generator raising")
def _(w: World) -> Any:
    own = ValueError("user gen error")

    def examples() -> Iterator[int]:
        yield 1
        raise own

    try:
        return batches(w, lambda: put_into_batches(examples(), 1))
    except ValueError as error:
        assert error is own, "it arrives as it is, not wrapped"
        raise


# How a batch is split, by policy.

split = Cases()
split.section("split sizes by policy")


def rows_by_policy(dataset: Any, policy: str) -> Callable[[World], Any]:
    """A case: for each batch, the numbers of each replica under a policy."""
    return lambda w: rows(w, dataset, rx.InputOptions(auto_shard_policy=policy))


for _total, _size in ((8, 4), (14, 8), (10, 4), (10, 5), (7, 5), (14, 7), (3, 2), (2, 1)):
    for _name in ("AUTO", "OFF", "DATA", "FILE"):
        split(
            f"range({_total}).batch({_size}) {_name}", rows_by_policy(numbers(_total).batch(_size), _name)
        )


def lines(policy: str) -> Callable[[World], Any]:
    """A case: the lines of four files under a policy."""

    def run(w: World) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            for i in range(4):
                text = "".join(f"{i}{j}\n" for j in range(5))
                (Path(folder) / f"f{i}.txt").write_text(text)
            dataset = rx.from_files(f"{folder}/*.txt", lambda path: Path(path).read_text().splitlines())
            return rows(w, dataset.batch(4), rx.InputOptions(auto_shard_policy=policy))

    return run


for _name in ("AUTO", "OFF"):
    split(f"TextLineDataset 4 files x5 lines batch(4) {_name}", lines(_name))
    split(
        f"range(10).batch(4).map(x+0) {_name} (batch size not inferable)",
        rows_by_policy(lambda: (x + 0 for x in numbers(10).batch(4)), _name),
    )
