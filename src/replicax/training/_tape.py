"""`GradientTape`: records what a `with` block computes, to differentiate it afterwards.

The recording itself is a JAX trace (`replicax/_recording.py`). A tape opens it for the block, keeps track
of the variables that are read there, and translates between what the user holds (structures of arrays and
variables) and the values that the trace follows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Self, final

import jax
import jax.numpy as jnp

from replicax._jax import at_trace, current_trace
from replicax._recording import Recorded, Recording, unrecorded
from replicax.collectives import offer_early_sum
from replicax.contexts import current, enter
from replicax.errors import ContextError
from replicax.training._tape_results import Pullback, as_unconnected, batch_jacobian, jacobian
from replicax.training._tape_sources import flatten_sources, flatten_targets, is_differentiable, name_of
from replicax.training._tape_traces import OwnTraces
from replicax.types import UnconnectedGradients
from replicax.variables import Variable

__all__ = ["GradientTape"]


@final
class GradientTape:
    """Records the operations of a `with` block, so that their gradients can be computed afterwards.

    Reading a trainable variable in the block watches it. Use `watch` for other arrays. After the block, its
    results can be used like any array.

    Prefer `rx.value_and_grad` if the loss is a function: it can also process a batch in parts
    (`microbatches`), and needs less memory for sharded variables.

    Args:
        persistent: whether to allow more than one call of `gradient` or `jacobian`. The tape then keeps
            its record until it is deleted.
        watch_accessed_variables: whether to watch trainable variables when they are read, and not only
            those that are passed to `watch`.

    >>> w = rx.Variable(3.0)
    >>> with rx.GradientTape() as tape:
    ...     loss = w**2
    >>> tape.gradient(loss, w), loss
    (Array(6., dtype=float32), Array(9., dtype=float32))
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent, self._watches_reads = persistent, watch_accessed_variables
        self._recording: Recording | None = None
        self._reads: dict[int, tuple[Any, list[Recorded]]] = {}
        self._chosen: dict[int, Any] = {}
        self._block = contextlib.ExitStack()
        self._traces = OwnTraces()
        self._is_open, self._is_used = False, False
        # Gradients that were computed in the block itself: their computation is not recorded.
        self._of_the_block: dict[int, Any] = {}

    # The block.

    @property
    def outer_trace(self) -> Any:
        """JAX's trace around the block, in which variables are read."""
        assert self._recording is not None
        return self._recording.parent_trace

    def __enter__(self) -> Self:
        if self._is_open:
            raise ContextError(
                "This GradientTape is already open. Nest another one: `with rx.GradientTape() as outer:`."
            )
        if self._recording is None:
            self._begin()
        elif self.outer_trace is not current_trace():
            raise ContextError(
                "A GradientTape can be entered again only in the trace in which it was first entered. "
                "Create another tape."
            )
        assert self._recording is not None
        self._is_open = self._recording.is_open = True
        self._recording.is_paused = False
        self._block = contextlib.ExitStack()
        self._block.enter_context(self._traces.block())
        self._block.enter_context(enter(current().with_tape(self)))
        self._block.enter_context(at_trace(self._recording))
        return self

    def _begin(self) -> None:
        self._recording = Recording()
        self._reads, self._of_the_block, self._is_used = {}, {}, False

    def __exit__(self, kind: Any, *exception: object) -> None:
        self._is_open = False
        recording, is_innermost = self._recording, current_trace() is self._recording
        if recording is not None:
            recording.is_open = False
        self._block.close()
        if not is_innermost and kind is None:
            raise ContextError(
                "The block of a GradientTape has ended inside a block that was opened in it. Leave "
                "blocks in the reverse order of entering; `with` does that for you."
            )

    def __del__(self) -> None:
        if self._recording is not None:
            self._recording.release()

    # Watching.

    def watch(self, tensor: Any) -> None:
        """Record what is computed from `tensor` from here on.

        Args:
            tensor: an array, a variable, or a structure of them. Arrays are recognised by identity, so use
                the same object afterwards, and pass it to functions compiled by `jax.jit` as an argument.

        >>> x = jnp.float32(3.0)
        >>> with rx.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        >>> tape.gradient(y, x)
        Array(6., dtype=float32)
        """
        recording = self._open_recording("watch")
        for leaf in flatten_sources(tensor, "watch")[0]:
            self._watch(recording, leaf)

    def _watch(self, recording: Recording, leaf: Any) -> None:
        if not is_differentiable(leaf):
            raise TypeError(
                f"GradientTape.watch got {name_of(leaf)} of dtype {leaf.dtype}, which has no gradient. "
                "Watch values of a floating-point dtype, such as `jnp.float32(3)`."
            )
        if isinstance(leaf, jax.Array):
            recording.watch(leaf)
        else:
            self._chosen[id(leaf)] = leaf

    def on_read(self, variable: Any, value: Any) -> Any:
        """The value read from a variable, watched if this tape watches the variable."""
        recording = self._recording
        if recording is None or recording.is_paused:
            return value
        automatic = self._watches_reads and variable.trainable and is_differentiable(variable)
        if not automatic and id(variable) not in self._chosen:
            return value
        self._traces.on_read()
        known = self._reads.setdefault(id(variable), (variable, []))[1]
        recorded = recording.watch(value)
        if not any(recorded is other for other in known):
            known.append(recorded)
        return recorded

    def on_write(self) -> None:
        """Called when a variable was written in the block."""
        self._traces.on_write()

    def watched_variables(self) -> tuple[Variable, ...]:
        """The variables that were watched, in the order in which they were first read.

        >>> a, b = rx.Variable(1.0, name="a"), rx.Variable(2.0, name="b")
        >>> with rx.GradientTape() as tape:
        ...     y = b * a
        >>> [v.name for v in tape.watched_variables()]
        ['b:0', 'a:0']
        """
        watched = {key: variable for key, (variable, _) in self._reads.items()}
        return tuple((watched | self._chosen).values())

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """A `with` block whose operations are not recorded.

        >>> x = jnp.float32(3.0)
        >>> with rx.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        ...     with tape.stop_recording():
        ...         unrecorded = y * 2
        >>> tape.gradient(y, x), float(unrecorded)
        (Array(6., dtype=float32), 18.0)
        """
        recording = self._open_recording("stop_recording")
        before, recording.is_paused = recording.is_paused, True
        try:
            yield
        finally:
            recording.is_paused = before

    def reset(self) -> None:
        """Forget what was recorded and watched so far; call it in the block.

        >>> x = jnp.float32(3.0)
        >>> with rx.GradientTape() as tape:
        ...     tape.watch(x)
        ...     loss = x * x
        ...     tape.reset()
        ...     tape.watch(x)
        ...     loss = loss + x
        >>> tape.gradient(loss, x)
        Array(1., dtype=float32)
        """
        recording = self._open_recording("reset")
        if current_trace() is not recording:
            raise ContextError(
                "GradientTape.reset() must be called in the tape's own block, not in an inner one."
            )
        self._chosen = {}
        with contextlib.ExitStack() as kept:
            self.__exit__(None)
            kept.callback(self.__enter__)
            recording.release()
            self._recording = None

    def _open_recording(self, method: str) -> Recording:
        if not self._is_open or self._recording is None:
            raise ContextError(
                f"GradientTape.{method}() must be called in the tape's block: `with rx.GradientTape() "
                f"as tape: tape.{method}(...)`."
            )
        return self._recording

    # Gradients.

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """The gradients of `target` with respect to `sources`.

        In a replica function these are the replica's own: combine them with an optimizer, or with
        `ctx.all_reduce`.

        Args:
            target: a result of the block: an array, or a structure of arrays whose gradients are added.
            sources: watched arrays or variables, or results of the block, in any structure.
            output_gradients: the gradient of each array of `target`, with its shape; by default ones.
            unconnected_gradients: what to return for sources that no target depends on.

        Returns:
            A structure like `sources`, with a gradient or None for each source.

        Raises:
            RuntimeError: the tape is not persistent, and its gradients have already been computed.

        >>> w, unused = rx.Variable([1.0, 2.0]), rx.Variable(0.0)
        >>> with rx.GradientTape() as tape:
        ...     y = w * 3.0
        >>> tape.gradient(y, {"w": w, "unused": unused}, output_gradients=jnp.array([1.0, 10.0]))
        {'w': Array([ 3., 30.], dtype=float32), 'unused': None}
        """
        unconnected = as_unconnected(unconnected_gradients)
        targets = flatten_targets(target, output_gradients)
        leaves, rebuild = flatten_sources(sources, "gradient", self._reads)
        with self._using() as recording:
            pull = self._pullback(recording, [value for value, _ in targets], leaves)
            gradients = pull([given for _, given in targets])
        if self._is_open:
            self._of_the_block |= {id(gradient): gradient for gradient in gradients}
        for value, _ in targets:
            offer_early_sum(unrecorded(value))
        gradients = [_of_whole_variable(g, leaf) for g, leaf in zip(gradients, leaves, strict=True)]
        return rebuild([unconnected(g, leaf) for g, leaf in zip(gradients, leaves, strict=True)])

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The derivatives of every element of `target` with respect to every element of `sources`.

        Args:
            target: an array.
            sources: as in `gradient`.
            unconnected_gradients: as in `gradient`.
            parallel_iterations: how many elements of `target` are differentiated at a time; by default
                all of them.
            experimental_use_pfor: False to differentiate one element at a time, which takes less memory.

        Returns:
            A structure like `sources`. Each array has the shape of `target`, then that of the source.

        >>> x = jnp.array([1.0, 2.0])
        >>> with rx.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x**2
        >>> tape.jacobian(y, x)
        Array([[2., 0.],
               [0., 4.]], dtype=float32)
        """
        unconnected = as_unconnected(unconnected_gradients)
        leaves, rebuild = flatten_sources(sources, "jacobian", self._reads)
        with self._using() as recording:
            pull = self._pullback(recording, [target], leaves)
            rows = jacobian(pull, target, parallel_iterations, experimental_use_pfor)
        shape = jnp.shape(target)
        return rebuild([unconnected(row, leaf, shape) for row, leaf in zip(rows, leaves, strict=True)])

    def batch_jacobian(
        self,
        target: Any,
        source: Any,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The Jacobian of each row of `target` with respect to the same row of `source`.

        It is correct only if no row of `target` depends on another row of `source`.

        Args:
            target: an array whose first axis is the batch.
            source: a watched array with the same number of rows.
            unconnected_gradients: as in `gradient`.
            parallel_iterations: as in `jacobian`.
            experimental_use_pfor: as in `jacobian`.

        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> with rx.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x**2
        >>> tape.batch_jacobian(y, x)[1]
        Array([[6., 0.],
               [0., 8.]], dtype=float32)
        """
        unconnected = as_unconnected(unconnected_gradients)
        (leaf,), _ = flatten_sources(source, "batch_jacobian")
        with self._using() as recording:
            pull = self._pullback(recording, [target], [leaf])
            rows = batch_jacobian(pull, target, leaf, parallel_iterations, experimental_use_pfor)
        return unconnected(rows, leaf, jnp.shape(target), per_row=True)

    @contextlib.contextmanager
    def _using(self) -> Iterator[Recording]:
        """A `with` block that computes gradients; ends the tape unless it is persistent."""
        recording = self._recording
        if recording is None or self._is_used:
            raise RuntimeError(self._no_record())
        if not self._persistent:
            self._is_used = recording.is_paused = True
        # In the tape's own block, computing gradients is not recorded.
        trace = recording.parent_trace if current_trace() is recording else current_trace()
        with at_trace(trace):
            yield recording
        if not self._persistent and not self._is_open:
            recording.release()

    def _no_record(self) -> str:
        if self._recording is None:
            return "This GradientTape has recorded nothing. Compute the target in its block, `with tape:`."
        return (
            "The gradients of this GradientTape have already been computed, and its record is gone. Get "
            "all of them in one call, `tape.gradient(loss, [a, b])`, or create it with "
            "`rx.GradientTape(persistent=True)`."
        )

    def _pullback(self, recording: Recording, targets: Sequence[Any], leaves: Sequence[Any]) -> Pullback:
        if any(id(target) in self._of_the_block for target in targets if target is not None):
            raise RuntimeError(
                "The target is a gradient that this GradientTape computed in its own block, and a tape "
                "does not record that. Nest two tapes; compute the first gradient after the inner block."
            )
        found = [self._found(recording, target)[-1:] for target in targets]
        return Pullback(recording, targets, found, [self._found(recording, leaf) for leaf in leaves])

    def _found(self, recording: Recording, value: Any) -> list[Recorded]:
        """The recorded values of an array, or of a variable, which may have been read repeatedly."""
        if not isinstance(value, jax.Array) and id(value) in self._reads:
            return self._reads[id(value)][1]
        recorded = recording.find(value)
        return [] if recorded is None else [recorded]


def _of_whole_variable(gradient: Any, source: Any) -> Any:
    """The gradient of a variable; a compiled step may have read only some of its rows."""
    table = current().frame.table(source) if isinstance(source, Variable) else None
    return gradient if table is None or gradient is None else table.whole_gradient(gradient)
