"""`tf.data.Dataset`: an input pipeline, built step by step and read through Grain.

Functions given to a dataset run on the host, and take and return NumPy arrays. Random orders are
reproducible: they depend only on the seed (0 by default) and the epoch, so that all processes see the same
order and a restored iterator continues in it. They differ from TensorFlow's orders.
"""

from __future__ import annotations

import builtins
import functools
import glob
import itertools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from replicax.errors import InputError, MissingFilesError
from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, GivesSource, Source
from replicax.tf.data import _arguments as arguments
from replicax.tf.data import _sources as sources
from replicax.tf.data import _steps as steps
from replicax.tf.data import _streams as streams
from replicax.tf.data._elements import guarded, spec_of_element, to_element
from replicax.tf.data._iterator import DatasetIterator
from replicax.tf.data._missing import Helpful, of_dataset
from replicax.tf.data._more import Streams
from replicax.tf.data._node import Node
from replicax.tf.data._options import Options
from replicax.tf.data._padding import pad_and_stack, padded_spec
from replicax.tf.data._source import DatasetSource, open_iterator
from replicax.values import TensorSpec

__all__ = ["Dataset"]


class Dataset(Streams, GivesSource, metaclass=Helpful):
    """A sequence of elements. Methods return new datasets, and elements are read only when needed.

    Loop over it to get JAX arrays, or pass it to `strategy.experimental_distribute_dataset`. Elements are
    arrays or structures (tuples, dicts) of them; a Python list is one array. Each loop starts over at the
    first element, and shuffles in a new order. The arguments `name`, `deterministic` and `synchronous` of
    the methods have no effect: the order of elements is always deterministic.

    >>> from replicax import tf
    >>> x, y = np.arange(6.0), np.arange(6)
    >>> dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(6, seed=1).batch(4).prefetch(2)
    >>> tf.data.Dataset.range(6).batch(4)
    <BatchDataset element_spec=TensorSpec(shape=(None,), dtype=int64)>
    >>> sorted(int(label) for _, labels in dataset for label in labels)
    [0, 1, 2, 3, 4, 5]
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> for features, labels in strategy.experimental_distribute_dataset(dataset):
    ...     print([part.shape for part in strategy.local_results(features)])
    [(2,), (2,)]
    [(1,), (1,)]
    """

    def __init__(self, node: Any, options: Options | None = None) -> None:
        """Create datasets with `Dataset.from_tensor_slices` and similar functions instead."""
        if not isinstance(node, Node):
            raise TypeError(
                f"Dataset({node!r}): create a dataset with Dataset.from_tensor_slices, from_generator, "
                "range, TFRecordDataset, ..."
            )
        self._node = node
        self._options = options or Options()
        self._passes = itertools.count()

    def _then(self, step: Callable[..., Node], *arguments: Any) -> Dataset:
        return self._with_node(step(self._node, *arguments))

    def _with_node(self, node: Node) -> Dataset:
        return Dataset(node, self._options)

    # Sources.

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> Dataset:
        """The rows of an array, or of a structure of arrays with the same number of rows.

        Arrays are not copied: do not modify them while the dataset is in use.

        >>> list(Dataset.from_tensor_slices([1.5, 2.5]))
        [Array(1.5, dtype=float32), Array(2.5, dtype=float32)]
        """
        return Dataset(sources.slices(tensors, "Dataset.from_tensor_slices"))

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> Dataset:
        """A dataset of one element.

        >>> list(Dataset.from_tensors([1, 2]))
        [Array([1, 2], dtype=int32)]
        """
        return Dataset(sources.tensors(tensors, "Dataset.from_tensors"))

    @staticmethod
    def range(*args: Any, output_type: Any = np.int64, name: str | None = None) -> Dataset:
        """Integers, with the arguments of Python's `range`.

        >>> [int(i) for i in Dataset.range(2, 8, 3)]
        [2, 5]
        """
        if not 1 <= len(args) <= 3:
            raise TypeError(f"Dataset.range takes stop, (start, stop) or (start, stop, step), got {args}.")
        numbers = [arguments.as_number(arg, "Dataset.range(", least=-(2**63)) for arg in args]
        if numbers[2:] == [0]:
            raise InputError(f"Dataset.range{args}: the step can't be 0.")
        found = builtins.range(*numbers)
        return Dataset(sources.numbers(found.start, found.step, len(found), np.dtype(output_type)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Any = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """The elements that a generator yields, each checked against the signature.

        `generator` is called for each pass, with `args` as arrays, and returns an iterable. The signature
        is a `tf.TensorSpec` or a structure of them; `output_types` and `output_shapes` are the older form.

        >>> def squares(stop):
        ...     for i in range(stop):
        ...         yield i, i**2
        >>> signature = (rx.TensorSpec((), np.int32), rx.TensorSpec((), np.float32))
        >>> dataset = Dataset.from_generator(squares, args=(3,), output_signature=signature)
        >>> [float(square) for _, square in dataset]
        [0.0, 1.0, 4.0]
        """
        arguments.as_function(generator, "Dataset.from_generator")
        dtypes, shapes = arguments.as_signature(output_signature, output_types, output_shapes)
        given = to_element(tuple(args or ()), "Dataset.from_generator(args=...)")
        return Dataset(sources.generated(generator, given, dtypes, shapes))

    @staticmethod
    def list_files(
        file_pattern: Any, shuffle: bool | None = None, seed: int | None = None, name: str | None = None
    ) -> Dataset:
        """The names of the files that match one or several patterns, as bytes.

        They come in random order, as in TensorFlow; `shuffle=False` sorts them. Several pipelines can
        divide them up (`AutoShardPolicy.FILE`). Raises `MissingFilesError` if no file matches.

        >>> list(Dataset.list_files(__file__)) == [__file__.encode()]
        True
        """
        patterns = arguments.as_paths(file_pattern, "Dataset.list_files")
        paths = sorted({path for pattern in patterns for path in glob.glob(pattern, recursive=True)})
        if not paths:
            raise MissingFilesError(f"Dataset.list_files found no files for {', '.join(patterns)}.")
        names = Dataset(sources.file_names(tuple(paths)))
        wanted = shuffle is None or arguments.as_flag(shuffle, "Dataset.list_files(shuffle=")
        return names.shuffle(len(paths), seed) if wanted else names

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """Tuples of the elements of several datasets, up to the end of the shortest.

        Pass datasets, or one structure (tuple, dict) of them.

        >>> a, b = Dataset.range(3), Dataset.range(5, 9)
        >>> [(int(i), int(j)) for i, j in Dataset.zip((a, b))]
        [(0, 5), (1, 6), (2, 7)]
        """
        if bool(args) == (datasets is not None):
            raise TypeError("Dataset.zip takes either datasets or datasets=(...) with a structure of them.")
        structure = datasets if not args else args[0] if len(args) == 1 else args
        leaves, treedef = jax.tree.flatten(structure, is_leaf=lambda part: isinstance(part, list))
        for leaf in leaves:
            if isinstance(leaf, list):
                raise TypeError(f"Dataset.zip takes a tuple or a dict of datasets, not the list {leaf!r}.")
            _check_dataset(leaf, "Dataset.zip")
        if not leaves:
            raise InputError("Dataset.zip got no datasets.")
        options = functools.reduce(Options.merge, (leaf._options for leaf in leaves))
        return Dataset(steps.zipped(*[leaf._node for leaf in leaves], treedef=treedef), options)

    @staticmethod
    def counter(start: Any = 0, step: Any = 1, dtype: Any = np.int64, name: str | None = None) -> Dataset:
        """Infinitely many numbers, `step` apart.

        >>> [int(i) for i in Dataset.counter(2, 3).take(3)]
        [2, 5, 8]
        """
        first, apart = (arguments.as_number(n, "Dataset.counter(", least=-(2**63)) for n in (start, step))
        return Dataset(sources.numbers(first, apart, None, np.dtype(dtype)))

    @staticmethod
    def random(
        seed: Any = None, rerandomize_each_iteration: bool | None = None, name: str | None = None
    ) -> Dataset:
        """Infinitely many random 64-bit numbers, the same ones in each pass.

        >>> len(list(Dataset.random(seed=4).take(3)))
        3
        """
        if rerandomize_each_iteration:
            raise NotImplementedError(
                "Dataset.random(rerandomize_each_iteration=True) is not supported: each pass gives the "
                "same numbers. Use Dataset.counter().map(lambda i: ...) with "
                "np.random.default_rng([seed, i])."
            )
        number = arguments.as_seed(seed, "Dataset.random(seed=")
        return Dataset.counter().map(lambda i: np.random.default_rng([number, i]).integers(2**63))

    @staticmethod
    def choose_from_datasets(
        datasets: Any, choice_dataset: Any, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Elements of several datasets; `choice_dataset` has the index of the dataset for each.

        >>> both = [Dataset.range(3), Dataset.range(10, 13)]
        >>> [int(i) for i in Dataset.choose_from_datasets(both, Dataset.from_tensor_slices([1, 0, 1]))]
        [10, 0, 11]
        """
        for dataset in (choice_dataset, *datasets):
            _check_dataset(dataset, "Dataset.choose_from_datasets")
        stop = arguments.as_flag(
            stop_on_empty_dataset, "Dataset.choose_from_datasets(stop_on_empty_dataset="
        )
        nodes = [dataset._node for dataset in (choice_dataset, *datasets)]
        options = functools.reduce(Options.merge, (dataset._options for dataset in datasets))
        node = streams.streamed(*nodes, name="ChooseDataset", transform=streams.chosen(stop))
        return Dataset(node, options)

    @staticmethod
    def sample_from_datasets(
        datasets: Any,
        weights: Any = None,
        seed: Any = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Elements of several datasets, in a random order that is the same in each pass.

        >>> both = [Dataset.range(2), Dataset.range(10, 12)]
        >>> sorted(int(i) for i in Dataset.sample_from_datasets(both, seed=1))
        [0, 1, 10, 11]
        """
        if rerandomize_each_iteration:
            raise NotImplementedError(
                "Dataset.sample_from_datasets(rerandomize_each_iteration=True) is not supported: each pass "
                "has the same order. Leave it out, or pass another seed for each pass."
            )
        number = arguments.as_seed(seed, "Dataset.sample_from_datasets(seed=")
        chances = np.full(len(datasets), 1.0) if weights is None else np.asarray(weights, float)
        chances = chances / chances.sum()
        choices = Dataset.counter().map(
            lambda i: np.random.default_rng([number, i]).choice(len(datasets), p=chances)
        )
        return Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset)

    # Selection and order.

    def shuffle(
        self,
        buffer_size: Any,
        seed: Any = None,
        reshuffle_each_iteration: bool | None = True,
        name: str | None = None,
    ) -> Dataset:
        """Shuffle the elements, in a new order each epoch unless `reshuffle_each_iteration` is False.

        Elements are shuffled within windows of `buffer_size`, or all together if the dataset fits into one.
        Elements that can be read by index are not buffered. The same seed gives the same orders; None means
        0.

        >>> dataset = Dataset.range(5).shuffle(5, seed=1)
        >>> [[int(i) for i in dataset] for _ in range(2)]
        [[4, 0, 1, 2, 3], [1, 4, 0, 3, 2]]
        """
        size = arguments.as_number(buffer_size, "Dataset.shuffle(buffer_size=", least=1)
        again = reshuffle_each_iteration
        reshuffle = again is None or arguments.as_flag(again, "Dataset.shuffle(reshuffle_each_iteration=")
        number = arguments.as_seed(seed, "Dataset.shuffle(seed=")
        return self._then(steps.shuffled, size, number, reshuffle)

    def repeat(self, count: Any = None, name: str | None = None) -> Dataset:
        """Repeat the dataset `count` times; forever if that is None or -1.

        >>> [int(i) for i in Dataset.range(2).repeat(3)]
        [0, 1, 0, 1, 0, 1]
        """
        epochs = None if count is None else arguments.as_number(count, "Dataset.repeat(", least=-1)
        return self._then(steps.repeated, None if epochs == -1 else epochs)

    def take(self, count: Any, name: str | None = None) -> Dataset:
        """The first `count` elements; all if it is -1.

        >>> [int(i) for i in Dataset.range(9).take(2)]
        [0, 1]
        """
        number = arguments.as_number(count, "Dataset.take(", least=-1)
        return self if number == -1 else self._then(steps.taken, number)

    def skip(self, count: Any, name: str | None = None) -> Dataset:
        """All but the first `count` elements; none if it is -1.

        >>> [int(i) for i in Dataset.range(4).skip(2)]
        [2, 3]
        """
        number = arguments.as_number(count, "Dataset.skip(", least=-1)
        return (
            self.take(0) if number == -1 else self._then(steps.sliced, "SkipDataset", slice(number, None))
        )

    def shard(self, num_shards: Any, index: Any, name: str | None = None) -> Dataset:
        """Every `num_shards`-th element, starting at `index`.

        >>> [int(i) for i in Dataset.range(7).shard(3, 1)]
        [1, 4]
        """
        count = arguments.as_number(num_shards, "Dataset.shard(num_shards=", least=1)
        number = arguments.as_number(index, "Dataset.shard(index=", least=0)
        if number >= count:
            raise InputError(f"Dataset.shard({count}, {number}): pass an index from 0 to {count - 1}.")
        return self._then(steps.sliced, "ShardDataset", slice(number, None, count))

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """The elements of this dataset, followed by those of another.

        >>> [int(i) for i in Dataset.range(2).concatenate(Dataset.range(5, 7))]
        [0, 1, 5, 6]
        """
        _check_dataset(dataset, "Dataset.concatenate")
        options = self._options.merge(dataset._options)
        return Dataset(steps.concatenated(self._node, dataset._node), options)

    def enumerate(self, start: Any = 0, name: str | None = None) -> Dataset:
        """Pairs of a number, counting from `start`, and an element.

        >>> halves = Dataset.from_tensor_slices([0.5, 1.5])
        >>> [(int(i), float(x)) for i, x in halves.enumerate(start=3)]
        [(3, 0.5), (4, 1.5)]
        """
        first = arguments.as_number(start, "Dataset.enumerate(start=", least=-(2**63))
        numbers = sources.numbers(first, 1, None, np.dtype(np.int64))
        pairs = steps.zipped(numbers, self._node, treedef=jax.tree.structure((0, 0)))
        return Dataset(pairs, self._options)

    def cache(self, filename: Any = "", name: str | None = None) -> Dataset:
        """Compute the elements once and cache them in memory, including the order of a preceding shuffle.

        Cache files are not supported: leave out `filename`.

        >>> seen = []
        >>> dataset = Dataset.range(2).map(lambda i: seen.append(i) or i).cache()
        >>> len(list(dataset) + list(dataset)), len(seen)
        (4, 2)
        """
        if filename != "":
            raise NotImplementedError(
                f"Dataset.cache(filename={filename!r}): elements are cached in memory only. Leave it out, "
                "or write them to files once and read those (`TFRecordDataset`, `rx.from_files`)."
            )
        return self._then(steps.cached)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> Dataset:
        """A hint for how many elements the threads of a `map` read ahead. Strategies always prefetch.

        >>> len(Dataset.range(3).prefetch(arguments.AUTOTUNE))
        3
        """
        size = arguments.as_number(buffer_size, "Dataset.prefetch(", least=-1)
        return self._then(steps.prefetched, max(size, 0))

    # Transformations of elements.

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Apply a function to each element, on the host and with NumPy arrays.

        `map_func` takes an element, or the parts of a tuple as separate arguments, and returns an element.
        If elements can be read by index, `num_parallel_calls` threads call it; otherwise, and with None,
        the reading thread does.

        >>> dataset = Dataset.from_tensor_slices(([1, 2], [3, 4]))
        >>> [int(i) for i in dataset.map(lambda x, y: x * y)]
        [3, 8]
        """
        arguments.as_function(map_func, "Dataset.map")
        if use_unbounded_threadpool:
            raise NotImplementedError(
                "Dataset.map(use_unbounded_threadpool=...) is not supported. Pass num_parallel_calls."
            )
        calls = arguments.as_parallel_calls(num_parallel_calls, "Dataset.map(num_parallel_calls=")
        return self._then(steps.mapped, map_func, calls)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements for which `predicate` returns True.

        >>> [int(i) for i in Dataset.range(6).filter(lambda i: i % 2 == 0)]
        [0, 2, 4]
        """
        return self._then(steps.filtered, arguments.as_function(predicate, "Dataset.filter"))

    def batch(
        self,
        batch_size: Any,
        drop_remainder: bool = False,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Stack elements into batches, along a new first axis.

        For `strategy.experimental_distribute_dataset`, `batch_size` is the global batch size.
        `drop_remainder` drops a smaller last batch. `num_parallel_calls` is as for `map`.

        >>> [batch.tolist() for batch in Dataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        size = arguments.as_number(batch_size, "Dataset.batch(", least=1)
        drop = arguments.as_flag(drop_remainder, "Dataset.batch(drop_remainder=")
        calls = arguments.as_parallel_calls(num_parallel_calls, "Dataset.batch(num_parallel_calls=")
        return self._then(steps.batched, size, drop, calls)

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Batch elements of different sizes, padded to the largest in the batch or to `padded_shapes`.

        In a shape, None means the largest size. Both padding arguments have the structure of an element;
        `padding_values` can also be a single value, and defaults to 0 or an empty string.

        >>> dataset = Dataset.range(1, 4).map(lambda n: np.full(n, n))
        >>> next(iter(dataset.padded_batch(3))).tolist()
        [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        size = arguments.as_number(batch_size, "Dataset.padded_batch(", least=1)
        drop = arguments.as_flag(drop_remainder, "Dataset.padded_batch(drop_remainder=")
        join = functools.partial(pad_and_stack, shapes=padded_shapes, values=padding_values)
        spec = functools.partial(padded_spec, shapes=padded_shapes)
        return self._then(steps.batched, size, drop, 0, join, spec, "PaddedBatchDataset")

    def unbatch(self, name: str | None = None) -> Dataset:
        """The rows of each element, one after the other.

        >>> [int(i) for i in Dataset.range(4).batch(3).unbatch()]
        [0, 1, 2, 3]
        """
        spec = self._node.spec
        if not all(leaf.shape for leaf in jax.tree.leaves(spec)):
            raise InputError(f"Dataset.unbatch needs elements with rows, but the elements are {spec}.")
        row = None if spec is None else jax.tree.map(lambda s: TensorSpec(s.shape[1:], s.dtype), spec)
        inner = functools.partial(sources.slices, what="Dataset.unbatch")
        return self._then(steps.nested, inner, 1, 1, row, "UnbatchDataset")

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Dataset:
        """Map each element to a dataset, and concatenate these datasets.

        >>> dataset = Dataset.range(1, 4).flat_map(lambda n: Dataset.range(n))
        >>> [int(i) for i in dataset]
        [0, 0, 1, 0, 1, 2]
        """
        return self._then(steps.nested, _inner(map_func, "Dataset.flat_map"))

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: Any = None,
        block_length: Any = None,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Map each element to a dataset, and interleave these datasets.

        `cycle_length` datasets are open at a time, 16 by default and for AUTOTUNE, and each yields
        `block_length` elements before the next one's turn. All are read in one thread: `num_parallel_calls`
        has no effect.

        >>> dataset = Dataset.range(2).interleave(
        ...     lambda i: Dataset.from_tensors(i).repeat(3), cycle_length=2, block_length=2)
        >>> [int(i) for i in dataset]
        [0, 0, 1, 1, 0, 1]
        """
        arguments.as_parallel_calls(num_parallel_calls, "Dataset.interleave(num_parallel_calls=")
        chosen = 16 if cycle_length in (None, arguments.AUTOTUNE) else cycle_length
        cycle = arguments.as_number(chosen, "Dataset.interleave(cycle_length=", least=1)
        block = 1 if block_length is None else block_length
        length = arguments.as_number(block, "Dataset.interleave(block_length=", least=1)
        inner = _inner(map_func, "Dataset.interleave")
        return self._then(steps.nested, inner, cycle, length, None, "InterleaveDataset")

    def apply(self, transformation_func: Callable[[Dataset], Any]) -> Any:
        """Apply a function that takes this dataset and returns a dataset.

        >>> len(Dataset.range(9).apply(lambda dataset: dataset.batch(3)))
        3
        """
        result = arguments.as_function(transformation_func, "Dataset.apply")(self)
        return _check_dataset(result, "Dataset.apply: the function")

    # Properties.

    def with_options(self, options: Options, name: str | None = None) -> Dataset:
        """The same dataset with all options that are set in `options`.

        >>> options = Options()
        >>> options.deterministic = False
        >>> Dataset.range(3).with_options(options).options().deterministic
        False
        """
        if not isinstance(options, Options):
            raise TypeError(f"Dataset.with_options takes tf.data.Options, got {options!r}.")
        return Dataset(self._node, self._options.merge(options))

    def options(self) -> Options:
        """A copy of the options.

        >>> Dataset.range(3).options().deterministic is None
        True
        """
        return self._options.merge(Options())

    @functools.cached_property
    def element_spec(self) -> Any:
        """The spec of an element. If it depends on a function, the first element is read.

        >>> Dataset.range(5).map(lambda i: {"x": i / 2}).batch(2).element_spec
        {'x': TensorSpec(shape=(None,), dtype=float64)}
        """
        return self._spec_of_first() if self._node.spec is None else self._node.spec

    def _spec_of_first(self) -> Any:
        iterator = open_iterator(self._node, self._options, 0)
        try:
            first = spec_of_element(next(iterator))
        except AttributeError as error:  # Python would report that `element_spec` does not exist
            raise RuntimeError(
                f"element_spec needs the first element, which can't be read: {error}"
            ) from error
        except StopIteration:
            raise InputError(
                f"element_spec needs the first element, but the {self._node.name} has no elements."
            ) from None
        finally:
            iterator.close()

        def with_open_rows(spec: TensorSpec) -> TensorSpec:
            if not spec.shape or spec.shape[0] != self._node.open_rows:
                return spec
            return TensorSpec((None, *spec.shape[1:]), spec.dtype)

        return jax.tree.map(with_open_rows, first)

    def cardinality(self, name: str | None = None) -> int:
        """The number of elements; `tf.data.INFINITE_CARDINALITY` and `UNKNOWN_CARDINALITY` are negative.

        >>> Dataset.range(10).batch(4).cardinality()
        3
        >>> Dataset.range(10).filter(bool).cardinality() == UNKNOWN_CARDINALITY
        True
        """
        return self._node.cardinality

    def assert_cardinality(self, expected_cardinality: Any, name: str | None = None) -> Dataset:
        """Declare the number of elements. Reading raises an error if it is wrong.

        >>> len(Dataset.range(6).filter(lambda i: i % 2 == 0).assert_cardinality(3))
        3
        """
        number = arguments.as_number(expected_cardinality, "Dataset.assert_cardinality(", least=-2)
        return self._then(steps.counted, number)

    def __len__(self) -> int:
        count = self.cardinality()
        if count == INFINITE_CARDINALITY:
            raise TypeError("The dataset is infinite and has no length. Use `take` first.")
        if count == UNKNOWN_CARDINALITY:
            raise TypeError(
                "The length of the dataset is unknown until it is read. If you know it, use "
                "`.assert_cardinality(n)`."
            )
        return count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        spec = self._node.spec
        if spec is None:
            spec = self.__dict__.get("element_spec", "not known before it is read")
        return f"<{self._node.name} element_spec={spec}>"

    def __getattr__(self, name: str) -> NoReturn:
        raise of_dataset(name)

    # Reading.

    def __iter__(self) -> DatasetIterator:
        return self._iterate(as_numpy=False)

    def _iterate(self, *, as_numpy: bool) -> DatasetIterator:
        iterator = open_iterator(self._node, self._options, next(self._passes))
        return DatasetIterator(iterator, lambda: self.element_spec, as_numpy=as_numpy)

    def as_numpy_iterator(self) -> DatasetIterator:
        """One pass over the elements as NumPy arrays; `iter(dataset)` gives JAX arrays.

        >>> list(Dataset.from_tensor_slices(["a", "b"]).as_numpy_iterator())
        [b'a', b'b']
        """
        return self._iterate(as_numpy=True)

    def reduce(
        self, initial_state: Any, reduce_func: Callable[[Any, Any], Any], name: str | None = None
    ) -> Any:
        """Reduce all elements to one result: `reduce_func` takes the result so far and an element.

        >>> int(Dataset.range(5).reduce(np.int64(0), lambda total, i: total + i))
        10
        """
        arguments.as_function(reduce_func, "Dataset.reduce")
        state = to_element(initial_state, "Dataset.reduce(initial_state=...)")
        with self.as_numpy_iterator() as elements:
            for element in elements:
                state = reduce_func(state, element)
                state = to_element(state, "What the function given to Dataset.reduce returned")
        return state

    def source(self) -> Source:
        """The source that a strategy reads.

        >>> Dataset.range(8).batch(4).source().batch_size
        4
        """
        return DatasetSource(self._node, self._options)


def _check_dataset(dataset: Any, call: str) -> Any:
    if not isinstance(dataset, Dataset):
        verb = "must return a" if "function" in call else "takes a"
        raise TypeError(f"{call} {verb} tf.data.Dataset, got {dataset!r}.")
    return dataset


def _inner(function: Callable[..., Any], call: str) -> Callable[[Any], Node]:
    """Wrap a function that returns a dataset to return its node."""
    make = guarded(arguments.as_function(function, call), call)
    return lambda element: _check_dataset(make(element), f"{call}: the function")._node
