"""Several input pipelines in one process, and datasets of every kind with the same rows.

A pipeline is a strategy over some of the CPU devices, which takes its replicas for a part of all. What
pipelines tell each other goes through memory, and each is read in a thread of its own, as it would be in
a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grain
import jax
import numpy as np

import replicax as rx
from replicax.input import Pipeline

__all__ = ["KINDS", "Part", "Pipelines", "Row", "Rows", "chunks", "dataset_of", "file_names", "parts"]

PATIENCE_SECONDS = 20.0


# What replicas get.


@dataclasses.dataclass
class Part:
    """What one replica gets in a step: a structure of NumPy arrays, and which of its rows count."""

    value: Any
    mask: np.ndarray | None = None

    @property
    def examples(self) -> Any:
        """The rows that count."""
        if self.mask is None:
            return self.value
        return jax.tree.map(lambda rows: rows[self.mask], self.value)

    @property
    def size(self) -> int:
        """How many rows count."""
        return len(jax.tree.leaves(self.examples)[0])


def parts(strategy: Any, batch: Any) -> list[Part]:
    """What each replica of `strategy` has of `batch`."""
    masks = [leaf.example_mask for leaf in jax.tree.leaves(batch, is_leaf=_is_value) if _is_value(leaf)]
    mask = next((mask for mask in masks if mask is not None), None)
    rows = [None] * strategy.num_replicas_in_sync
    if mask is not None:
        rows = [np.asarray(part) for part in strategy.local_results(mask)]
    values = strategy.local_results(batch)
    return [Part(jax.tree.map(np.asarray, v), m) for v, m in zip(values, rows, strict=True)]


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, rx.PerReplica)


# Pipelines.


class Aborted(Exception):
    """Another pipeline has failed."""


Topic = tuple[int, str]


class _Topics:
    """Datasets are counted over the whole process; here each pipeline counts its own."""

    def __init__(self) -> None:
        self._datasets: dict[str, int] = {}

    def number(self, topic: str) -> Topic:
        """The number of the dataset, and of the pass."""
        dataset, _, number = topic.rpartition("/")
        return self._datasets.setdefault(dataset, len(self._datasets)), number


class _Exchange:
    """Messages of all pipelines, which wait for each other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._told: dict[tuple[Topic, int], dict[int, Any]] = {}
        self._condition = threading.Condition()
        self._aborted = False

    def of(self, pipeline_id: int) -> Callable[[str, int, Any, Callable[[], bool]], list[Any]]:
        topics = _Topics()

        def exchange(topic: str, number: int, message: Any, cancelled: Callable[[], bool]) -> list[Any]:
            key = topics.number(topic), number
            return self._meet(pipeline_id, key, json.loads(json.dumps(message)), cancelled)

        return exchange

    def _meet(
        self, pipeline_id: int, key: tuple[Topic, int], message: Any, cancelled: Callable[[], bool]
    ) -> list[Any]:
        with self._condition:
            told = self._told.setdefault(key, {})
            assert pipeline_id not in told, f"pipeline {pipeline_id} has sent message {key} before"
            told[pipeline_id] = message
            self._condition.notify_all()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (done := self._aborted or cancelled() or len(told) == self._count):
                if time.monotonic() > deadline:
                    break
                self._condition.wait(0.05)
            if len(told) < self._count:
                raise Aborted if done else TimeoutError(f"only {sorted(told)} have sent message {key}")
            return [told[i] for i in range(self._count)]

    def abort(self) -> None:
        """Wake everybody up: one pipeline will not come."""
        with self._condition:
            self._aborted = True
            self._condition.notify_all()


class _Board:
    """What each pipeline has published, by topic."""

    def __init__(self, pipeline_id: int, messages: dict[tuple[Topic, int], str]) -> None:
        self._pipeline_id, self._messages = pipeline_id, messages
        self._topics = _Topics()

    def put(self, topic: str, message: Any) -> None:
        self._messages[self._topics.number(topic), self._pipeline_id] = json.dumps(message)

    def get(self, topic: str, pipeline: int) -> Any:
        return json.loads(self._messages.get((self._topics.number(topic), pipeline), "null"))


class Pipelines:
    """Pipelines that share a dataset, of so many replicas each."""

    def __init__(self, *sizes: int, replicas: Sequence[Sequence[int]] | None = None) -> None:
        ends = np.cumsum(sizes)
        contiguous = [tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
        self.replicas = tuple(tuple(map(int, ids)) for ids in replicas or contiguous)
        self.num_replicas = sum(map(len, self.replicas))
        self._exchange = _Exchange(len(self.replicas))
        self._published: dict[tuple[Topic, int], str] = {}
        self.strategies = [self._strategy(i) for i in range(len(self.replicas))]

    def _strategy(self, index: int) -> Any:
        strategy = rx.MirroredStrategy([f"CPU:{i}" for i in self.replicas[index]])
        board = _Board(index, self._published) if len(self.replicas) > 1 else None
        pipeline = Pipeline(index, self.replicas, self._exchange.of(index), board)
        strategy.__dict__["input_pipeline"] = pipeline
        return strategy

    def distribute(self, make: Callable[[], Any], **options: Any) -> list[Any]:
        """The dataset that `make` makes, for each pipeline anew."""
        return [s.distribute_dataset(make(), rx.InputOptions(**options)) for s in self.strategies]

    def from_function(self, dataset_fn: Callable[[rx.InputContext], Any], **options: Any) -> list[Any]:
        """The datasets that `dataset_fn` makes."""
        made = rx.InputOptions(**options)
        return [s.distribute_datasets_from_function(dataset_fn, made) for s in self.strategies]

    def steps(self, datasets: Sequence[Any]) -> list[list[Part]]:
        """For each step of a pass what every replica gets, by replica."""
        iterators = [iter(dataset) for dataset in datasets]
        try:
            return self.take(iterators)
        except BaseException:
            self.close(iterators)
            raise

    def take(self, iterators: Sequence[Any], count: int | None = None) -> list[list[Part]]:
        """The next `count` steps, or all that are left."""
        by_pipeline = self.together(
            lambda index: _taken(self.strategies[index], iterators[index], count),
        )
        assert len(set(map(len, by_pipeline))) == 1, f"numbers of steps: {list(map(len, by_pipeline))}"
        steps = []
        for step in zip(*by_pipeline, strict=True):
            by_replica = {}
            for ids, got in zip(self.replicas, step, strict=True):
                by_replica |= dict(zip(ids, got, strict=True))
            steps.append([by_replica[i] for i in range(self.num_replicas)])
        return steps

    def close(self, iterators: Sequence[Any]) -> None:
        """Leave a pass before its end; then nothing can be exchanged any more."""
        self._exchange.abort()
        for iterator in iterators:
            iterator.close()

    def together(self, job: Callable[[int], Any]) -> list[Any]:
        """What `job` returns for every pipeline, each called in a thread of its own."""
        if len(self.strategies) == 1:
            return [job(0)]
        results: list[Any] = [None] * len(self.strategies)
        errors: list[BaseException] = []

        def call(index: int) -> None:
            try:
                results[index] = job(index)
            except BaseException as error:
                errors.append(error)
                self._exchange.abort()

        threads = [threading.Thread(target=call, args=(i,)) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors.sort(key=lambda error: isinstance(error, Aborted))
        if errors:
            raise errors[0]
        return results


def _taken(strategy: Any, iterator: Any, count: int | None) -> list[list[Part]]:
    steps = []
    while count is None or len(steps) < count:
        try:
            batch = next(iterator)
        except StopIteration:
            break
        steps.append(parts(strategy, batch))
    return steps


def wait_for_grain() -> None:
    """Wait for the threads of Grain's iterators that were closed, which does not wait for them."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        if not any(thread.name.startswith("grain-") for thread in threading.enumerate()):
            return
        time.sleep(0.002)


# Datasets.


class Row(NamedTuple):
    """A structure of its own kind."""

    x: Any
    y: Any = None


class Rows:
    """The rows of arrays, one by one: a source for Grain, which compares sources by their text."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays
        self._count = len(jax.tree.leaves(arrays)[0])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return jax.tree.map(lambda rows: rows[index], self._arrays)

    def __repr__(self) -> str:
        return f"Rows({self._count})"


def chunks(arrays: Any, size: int) -> list[Any]:
    """The rows of `arrays` in batches."""
    count = len(jax.tree.leaves(arrays)[0])
    return [jax.tree.map(lambda a, i=i: a[i : i + size], arrays) for i in range(0, count, size)]


@functools.cache
def _folder() -> str:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


def file_names(count: int) -> list[str]:
    """So many empty files: what is in them is made up by the reader."""
    paths = [os.path.join(_folder(), f"part-{i}") for i in range(count)]
    for path in paths:
        with contextlib.suppress(FileExistsError), open(path, "x"):
            pass
    return paths


def spread(arrays: Any, num_files: int) -> list[Any]:
    """The rows of every file; the first files have more."""
    count = len(jax.tree.leaves(arrays)[0])
    ends = [count * (i + 1) // num_files for i in range(num_files)]
    return [
        jax.tree.map(lambda a, s=s, e=e: a[s:e], arrays) for s, e in zip([0, *ends], ends, strict=False)
    ]


def _files(arrays: Any, batch_size: int, num_files: int, reader: Callable[[Any], Any]) -> Any:
    paths = file_names(num_files)
    contents = dict(zip(paths, spread(arrays, num_files), strict=True))
    return rx.from_files(paths, lambda path: reader(contents[path]))


def dataset_of(kind: str, arrays: Any, batch_size: int, num_files: int = 3) -> Any:
    """A new dataset of the rows of `arrays` in batches; its order is that of the rows unless shuffled."""
    rows = Rows(arrays)
    match kind:
        case "arrays":
            return rx.from_arrays(arrays).batch(batch_size)
        case "shuffled arrays":
            return rx.from_arrays(arrays).shuffle(seed=7).batch(batch_size)
        case "files":
            return _files(arrays, batch_size, num_files, Rows).batch(batch_size)
        case "file iterators":
            return _files(arrays, batch_size, num_files, lambda a: iter(list(Rows(a)))).batch(batch_size)
        case "file of batches":
            return _files(arrays, batch_size, 1, lambda a: iter(chunks(a, batch_size)))
        case "list":
            return chunks(arrays, batch_size)
        case "function":
            return lambda: iter(chunks(arrays, batch_size))
        case "generator":
            return (batch for batch in chunks(arrays, batch_size))
        case "grain map":
            return grain.MapDataset.source(rows).batch(batch_size)
        case "grain iter":
            read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
            return grain.MapDataset.source(rows).to_iter_dataset(read).batch(batch_size)
        case "grain loader":
            sampler = grain.samplers.IndexSampler(len(rows), shuffle=False, num_epochs=1)
            return grain.DataLoader(
                data_source=rows,
                sampler=sampler,
                operations=[grain.transforms.Batch(batch_size)],
                worker_count=0,
                read_options=grain.ReadOptions(num_threads=1, prefetch_buffer_size=2),
            )
    raise ValueError(kind)


KINDS = (
    "arrays",
    "shuffled arrays",
    "files",
    "file iterators",
    "file of batches",
    "list",
    "function",
    "generator",
    "grain map",
    "grain iter",
    "grain loader",
)
