"""`DistributedIterator`: one pass over a distributed dataset."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, final

import jax

from replicax._recording import is_transforming
from replicax.collectives import Order, order_of
from replicax.contexts import has_strategy, in_cross_replica_context
from replicax.errors import InputError, OutOfRangeError
from replicax.input._feed import Feed
from replicax.input._missing import refuse_pickling
from replicax.input._producer import Made, Mark, Pass, PassProducer

__all__ = ["DistributedIterator", "InputStats", "OptionalBatch"]

_Batch = TypeVar("_Batch")

_FORMAT = 1


def _offer(order: Order, made: Made) -> None:
    """Tell the log of collectives which batch comes next, so that it notices if a worker skips a batch."""
    arrays = jax.tree.leaves(made.batch)
    if arrays:
        order.log.offer(made.number, arrays[0])


@final
@dataclasses.dataclass(frozen=True)
class InputStats:
    """How long steps waited for input.

    Args:
        steps: the number of batches returned.
        examples: the number of examples in them, over all replicas.
        first_wait_seconds: the wait for the first batch, which can't be read ahead.
        wait_seconds: the wait for all later batches.
        seconds: the time from the first batch to the last.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> iterator = iter(strategy.distribute_dataset(rx.from_arrays(np.arange(10)).batch(4)))
    >>> for batch in iterator:
    ...     pass
    >>> iterator.stats().steps, iterator.stats().examples
    (3, 10)
    """

    steps: int = 0
    examples: int = 0
    first_wait_seconds: float = 0.0
    wait_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def wait_fraction(self) -> float:
        """The fraction of the time after the first batch that was spent waiting."""
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, {self.examples} examples in {self.seconds:.2f} s: waited "
            f"{self.wait_seconds:.2f} s for input ({self.wait_fraction:.1%}), and "
            f"{self.first_wait_seconds:.2f} s for the first batch"
        )


@final
class OptionalBatch(Generic[_Batch]):
    """A batch or nothing: what `get_next_as_optional` returns.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> iterator = iter(strategy.distribute_dataset([]))
    >>> iterator.get_next_as_optional().has_value()
    False
    """

    def __init__(self, batches: list[_Batch]) -> None:
        self._batches = batches

    def has_value(self) -> bool:
        """Whether there is a batch."""
        return bool(self._batches)

    def get_value(self) -> _Batch:
        """The batch; raises `InputError` if there is none."""
        if not self._batches:
            raise InputError("This OptionalBatch is empty; call `has_value()` first.")
        return self._batches[0]

    def __repr__(self) -> str:
        return f"OptionalBatch({self._batches[0]!r})" if self._batches else "OptionalBatch()"


@final
class DistributedIterator(Generic[_Batch]):
    """Returns the batches of a distributed dataset one by one; made by `iter(dataset)`.

    Batches are read and moved to the devices in the background. If reading fails, the call that would have
    returned the batch raises the error. Reading stops when the iterator is closed or dropped, or at the end
    of a `with` block.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> iterator = iter(strategy.distribute_dataset(rx.from_arrays(np.arange(4.0)).batch(4)))
    >>> next(iterator)
    PerReplica:{
      0: Array([0., 1.], dtype=float32),
      1: Array([2., 3.], dtype=float32)
    }
    >>> next(iterator)
    Traceback (most recent call last):
    StopIteration
    """

    def __init__(self, this_pass: Pass, on_restore: Callable[[int], None]) -> None:
        self._pass = this_pass
        self._on_restore = on_restore
        self._number, self._order = this_pass.number, this_pass.order
        mesh = this_pass.placer.mesh
        self._order_between = None if mesh.is_local else order_of(mesh)
        self._lock = threading.Lock()
        self._closed = False
        self._begin(Mark(0, 0, None, None))

    def _begin(self, mark: Mark) -> None:
        """Begin to read at `mark` when the first batch is requested."""
        self._mark = self._first_mark = mark
        self._claimed: dict[int, Made] = {}
        self._began: float | None = None
        self._ended = self._first_wait = self._wait = 0.0
        producer = PassProducer(self._pass, self._number, mark)
        self._feed = Feed(producer, self._pass.buffer_size, any_thread=self._pass.any_thread)
        self._finalizer = weakref.finalize(self, self._feed.drop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Batch:
        self._check_context()
        if self._began is None:
            self._before_first()
        thread = threading.get_ident()
        asked = time.perf_counter()
        with self._lock:
            if thread not in self._claimed:  # an interrupted call may have left a batch in it
                made = self._feed.peek()
                if made is None:
                    self._after_last()
                    raise StopIteration
                self._claimed[thread] = made
                del self._feed.box[0]
        if self._order_between is not None:
            _offer(self._order_between, self._claimed[thread])
        got = time.perf_counter()
        # No calls from here on: if a signal handler raises, the exception arrives either before this point,
        # so that the next call returns this batch, or after the batch has been returned.
        made = self._claimed[thread]
        if self._began is None:
            self._began, self._first_wait = got, got - asked
        else:
            self._wait += got - asked
        self._ended = got
        if made.mark.number > self._mark.number:
            self._mark = made.mark
        del self._claimed[thread]
        return made.batch

    def _before_first(self) -> None:
        order, self._order = self._order, None
        if order is not None and self._number == 0 and self._mark.position is None:
            order.begin()

    def _after_last(self) -> None:
        if self._pass.order is not None and self._number == 0:
            self._pass.order.end()

    def _check_context(self) -> None:
        if self._closed:
            raise InputError("This iterator is closed. Begin another pass with iter(dataset).")
        if has_strategy() and not in_cross_replica_context():
            raise InputError(
                "next(iterator) was called in a replica function, where every replica would get a "
                "different global batch. Call it outside: strategy.run(replica_fn, args=(next(iterator),))."
            )
        if is_transforming():
            raise InputError(
                "next(iterator) was called inside a traced function (rx.function or jax.jit), where the "
                "batch would become a constant of the program. Call it outside, and pass the batch as an "
                "argument: `for batch in dataset: step(batch)`."
            )

    def get_next(self) -> _Batch:
        """The next batch, like `next(iterator)`.

        Raises:
            OutOfRangeError: the dataset has no more batches.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = iter(strategy.distribute_dataset(rx.from_arrays(np.arange(2)).batch(2)))
        >>> strategy.local_results(iterator.get_next())
        (Array([0], dtype=int32), Array([1], dtype=int32))
        """
        for batch in self:  # not `next(self)`: an interrupt after the call could lose the batch
            return batch
        raise OutOfRangeError(
            "The dataset has no more batches. Begin another pass with iter(dataset), call "
            "get_next_as_optional() if there may be none, or repeat() the dataset."
        )

    def get_next_as_optional(self) -> OptionalBatch[_Batch]:
        """The next batch, or an empty `OptionalBatch` after the last.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = iter(strategy.distribute_dataset(rx.from_arrays(np.arange(2)).batch(2)))
        >>> optional = iterator.get_next_as_optional()
        >>> optional.has_value(), strategy.local_results(optional.get_value())
        (True, (Array([0], dtype=int32), Array([1], dtype=int32)))
        """
        optional = OptionalBatch([])
        for batch in self:  # see `get_next`
            optional._batches = [batch]
            break
        return optional

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch; the same as the dataset's `element_spec`."""
        return self._pass.element_spec()

    def state(self) -> dict[str, Any]:
        """The position after the last batch that was returned; batches read ahead do not count.

        It can be serialized as JSON. It does not depend on the number of replicas, nor on the number of
        pipelines unless they read different data (FILE, OFF, a dataset_fn).

        Returns:
            A dictionary for `restore`. Its entry "examples" is the number of examples returned so far.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = iter(strategy.distribute_dataset(rx.from_arrays(np.arange(10)).batch(4)))
        >>> _ = next(iterator)
        >>> iterator.state()["examples"]
        4
        """
        mark = self._mark
        return {
            "format": _FORMAT,
            "pass": self._number,
            "examples": mark.examples,
            "batch_size": mark.batch_size,
            **copy.deepcopy(self._pass.layout),
            "position": copy.deepcopy(mark.position),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue at a position that `state()` returned for this dataset or an equal one, on any strategy.

        This is exact and fast for `rx.from_arrays`, `rx.from_files` and Grain. Other datasets are read up
        to the position, which is exact if they yield the same batches again. Later passes are counted from
        the restored one, so that a shuffled dataset continues in the right order.

        Args:
            state: what `state()` returned.

        Raises:
            InputError: the position is from another kind of dataset, or another sharding policy.

        >>> dataset = rx.from_arrays(np.arange(12)).batch(4)
        >>> two = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = iter(two.distribute_dataset(dataset))
        >>> _ = next(iterator)
        >>> one = rx.OneDeviceStrategy("CPU:0")
        >>> other = iter(one.distribute_dataset(dataset))
        >>> other.restore(iterator.state())
        >>> next(other)
        Array([4, 5, 6, 7], dtype=int32)
        """
        self._check_state(state)
        with self._lock:
            self._finalizer()
            self._number = state["pass"]
            self._on_restore(self._number)
            position = copy.deepcopy(state["position"])
            known = position is not None
            self._begin(
                Mark(0, state["examples"] if known else 0, position, state["batch_size"] if known else None)
            )
            self._closed = False

    def _check_state(self, state: Any) -> None:
        kinds = {"pass": int, "examples": int, "position": dict | list | None, "batch_size": int | None}
        if (
            not isinstance(state, dict)
            or state.get("format") != _FORMAT
            or not all(name in state and isinstance(state[name], kind) for name, kind in kinds.items())
            or min(state["pass"], state["examples"]) < 0
        ):
            raise InputError(f"iterator.restore takes the result of iterator.state(), got {state!r}.")
        for name, wanted in self._pass.layout.items():
            if state.get(name) != wanted:
                raise InputError(
                    f"The position was saved with {name} = {state.get(name)!r}, but here it is {wanted!r}. "
                    "A position is valid for any number of replicas and pipelines if all pipelines read "
                    "the same batches (AutoShardPolicy.DATA). Otherwise the numbers must be equal."
                )

    def stats(self) -> InputStats:
        """The number of batches returned, and how long steps waited for them.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = iter(strategy.distribute_dataset(rx.from_arrays(np.arange(8)).batch(4)))
        >>> _ = list(iterator)
        >>> iterator.stats().wait_fraction <= 1
        True
        """
        if self._began is None:
            return InputStats()
        return InputStats(
            self._mark.number,
            self._mark.examples - self._first_mark.examples,
            self._first_wait,
            self._wait,
            self._ended - self._began,
        )

    def close(self) -> None:
        """Stop reading and end the background thread.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = iter(strategy.distribute_dataset([np.arange(4)]))
        >>> iterator.close()
        >>> next(iterator)
        Traceback (most recent call last):
        replicax.errors.InputError: This iterator is closed. Begin another pass with iter(dataset).
        """
        self._closed = True
        self._finalizer.detach()
        self._feed.close()

    def __reduce__(self) -> Any:
        return refuse_pickling(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
