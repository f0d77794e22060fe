"""The stack of contexts, one for each thread and each replica.

    no strategy        default replica context     get_replica_context() -> replica 0 of 1
    strategy.scope()   cross-replica context       get_replica_context() -> None
    strategy.run(fn)   replica context             get_replica_context() -> this replica
    merge_call(fn)     cross-replica again, inside the replicas' step
    extended.update    update context              cross-replica, for one copy of a variable

The stack is a tuple in a context variable, so each thread and each eager replica has its own. Entering a
context sets a longer tuple, and leaving it restores the shorter one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from replicax.contexts._protocol import StrategyProtocol
from replicax.contexts._rows import Rows
from replicax.errors import ContextError

if TYPE_CHECKING:
    from replicax.contexts._replica import ReplicaContext
    from replicax.strategies import Strategy

StrategyT = TypeVar("StrategyT", bound=StrategyProtocol)

__all__ = [
    "Context",
    "Scope",
    "context_stack",
    "current",
    "enter",
    "enter_default",
    "get_replica_context",
    "get_strategy",
    "get_update_replica_id",
    "has_strategy",
    "in_cross_replica_context",
    "register_default",
    "require_cross_replica",
    "set_strategy",
]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Context:
    """One level of the stack."""

    strategy: StrategyProtocol
    replica: ReplicaContext | None = None
    update_replica_id: Any = None
    update_index: int = 0
    owner: Any = None
    frame: Any = None
    """Where variables are read from and written to: see `variables/_frames.py`."""
    rows: Rows | None = None
    """The rows of the replica's batch that are processed now, if it is split into microbatches."""
    tapes: tuple[Any, ...] = ()
    """The open `GradientTape`s, outermost first. They see which variables are read."""

    def inner(
        self,
        strategy: StrategyProtocol,
        replica: Any = None,
        update_replica_id: Any = None,
        update_index: int = 0,
    ) -> Context:
        """A context of `strategy` inside this one, with the same frame."""
        return Context(
            strategy, replica, update_replica_id, update_index, None, self.frame, self.rows, self.tapes
        )

    def with_frame(self, frame: Any) -> Context:
        """The same context with another frame."""
        return dataclasses.replace(self, frame=frame, owner=None)

    def with_tape(self, tape: Any) -> Context:
        """The same context, inside the block of a tape."""
        return dataclasses.replace(self, tapes=(*self.tapes, tape), owner=None)

    def with_rows(self, rows: Rows) -> Context:
        """The same context, for some rows of the batch."""
        return dataclasses.replace(self, rows=rows, owner=None)

    @property
    def is_outside(self) -> bool:
        """Whether this code is outside of replicas, updates and traces; the default replica is outside."""
        in_default = self.replica is _default.replica and not self.tapes
        return (
            (self.replica is None or in_default) and self.update_replica_id is None and self.frame.is_eager
        )

    @property
    def local_index(self) -> int | None:
        """The local replica whose copies this code uses; None outside of replicas and updates."""
        if self.replica is not None:
            return self.replica.local_index
        return None if self.update_replica_id is None else self.update_index


_stack: ContextVar[tuple[Context, ...]] = ContextVar("replicax_contexts", default=())
_default: Context

context_stack = _stack
"""The stack itself. To check whether the context has changed, compare what `get()` returns with `is`."""


def register_default(context: Context) -> None:
    """Set the context at the bottom of the stack: the default strategy's replica context."""
    global _default
    _default = context


def current() -> Context:
    """The innermost context."""
    stack = _stack.get()
    return stack[-1] if stack else _default


@contextlib.contextmanager
def enter(context: Context) -> Iterator[None]:
    """A `with` block in `context`."""
    stack = _stack.get()
    try:
        _stack.set((*stack, context))
        yield
    finally:
        _stack.set(stack)


def enter_default() -> contextlib.AbstractContextManager[None]:
    """A `with` block in the default context, as if no strategy were in use."""
    here = current()
    return enter(dataclasses.replace(_default, frame=here.frame, tapes=here.tapes))


class Scope(Generic[StrategyT]):
    """What `strategy.scope()` returns: a `with` block in the strategy's cross-replica context.

    It can be entered again, even while it is open.
    """

    __slots__ = ("_strategy",)

    def __init__(self, strategy: StrategyT) -> None:
        self._strategy = strategy

    def __enter__(self) -> StrategyT:
        require_cross_replica(self._strategy, "scope()")
        here = current()
        inside = Context(self._strategy, owner=self, frame=here.frame, tapes=here.tapes)
        _stack.set((*_stack.get(), inside))
        return self._strategy

    def __exit__(self, *exc_info: object) -> None:
        stack = _stack.get()
        innermost = stack[-1].owner if stack else None
        if not isinstance(innermost, Scope) or innermost._strategy is not self._strategy:
            raise ContextError(
                f"A scope of {self._strategy!r} was left, but it is not the innermost open one. Leave "
                "scopes in the reverse order of entering, each once, and outside of replica functions; "
                "a `with` block does that for you."
            )
        _stack.set(stack[:-1])


def require_cross_replica(strategy: StrategyProtocol, what: str) -> None:
    """Raise if the method `what` of `strategy` can't be called here."""
    here = current()
    if here.replica is _default.replica:
        return
    if here.strategy is not strategy:
        raise ContextError(
            f"{what} of {strategy!r} was called under {here.strategy!r}. Only one strategy can be "
            "in use at a time: leave the scope (or replica function) of the other one first."
        )
    if here.replica is not None:
        again = "This replica can call the function itself, without run(). " if what == "run()" else ""
        raise ContextError(
            f"{what} needs the cross-replica context, but was called inside a replica function. {again}"
            "Use `rx.get_replica_context()` there: its all_reduce, all_gather, or merge_call(fn), "
            "which calls fn once in the cross-replica context."
        )


def get_strategy() -> Strategy:
    """The strategy in use here; the default strategy (one replica) if none is.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     print(rx.get_strategy() is strategy, rx.get_strategy().num_replicas_in_sync)
    True 2
    >>> rx.get_strategy().num_replicas_in_sync
    1
    """
    return cast("Strategy", current().strategy)


def has_strategy() -> bool:
    """Whether a strategy other than the default one is in use here.

    >>> rx.has_strategy()
    False
    >>> with rx.OneDeviceStrategy("CPU:0").scope():
    ...     rx.has_strategy()
    True
    """
    return current().strategy is not _default.strategy


def get_replica_context() -> ReplicaContext | Any:
    """The `ReplicaContext` inside a replica function; None in a cross-replica context.

    If no strategy is in use, it is the context of the default strategy's only replica. Inside
    `strategy.scope()` it is None, as in TensorFlow, so `rx.get_replica_context().all_reduce` raises an
    `AttributeError` there. Call it in the function that `strategy.run` calls, or use `strategy.reduce` and
    `strategy.gather`.

    >>> rx.get_replica_context().num_replicas_in_sync
    1
    >>> with rx.OneDeviceStrategy("CPU:0").scope():
    ...     print(rx.get_replica_context())
    None
    """
    return current().replica


def in_cross_replica_context() -> bool:
    """Whether this is a cross-replica context: a scope, a `merge_call` or an update.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     print(rx.in_cross_replica_context(), strategy.run(rx.in_cross_replica_context))
    True False
    """
    return current().replica is None


def get_update_replica_id() -> Any:
    """The replica whose copy is being updated, inside `extended.update`; otherwise None.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     v = rx.Variable(0.0)
    >>> strategy.extended.update(v, lambda v: rx.get_update_replica_id(), group=False)
    (0, 1)
    """
    return current().update_replica_id


def set_strategy(strategy: StrategyProtocol | None) -> None:
    """Use `strategy` from here on, without a `with` block; None restores the default strategy.

    For notebooks, where a scope can't span cells. Not allowed inside a scope.

    >>> rx.set_strategy(rx.OneDeviceStrategy("CPU:0"))
    >>> rx.has_strategy()
    True
    >>> rx.set_strategy(None)
    """
    if strategy is not None and not callable(getattr(strategy, "create_variable", None)):
        raise TypeError(f"set_strategy() takes a strategy or None, got {strategy!r}.")
    stack = _stack.get()
    if len(stack) > 1 or (stack and stack[0].owner is not set_strategy):
        raise ContextError(
            "set_strategy() was called inside a strategy's scope. Call it outside of all scopes, or use "
            "`with strategy.scope():` instead."
        )
    _stack.set(() if strategy is None else (Context(strategy, owner=set_strategy, frame=_default.frame),))
