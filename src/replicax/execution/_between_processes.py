"""Compiled steps that communicate with other processes.

The processes start such steps in the same order, and compare them before they first run (see
`collectives/_order.py`). They compare the function, the arguments and the program's collectives: their
kinds, dtypes and shapes, in order. Everything else may differ between processes. A program without
collectives needs no order, so one process may run it alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, final

import jax

from replicax._jax import ArrayImpl, operations_of
from replicax._messages import user_line
from replicax.cluster import Collective, await_cause
from replicax.collectives import order_of, shapes_of
from replicax.topology import ReplicaMesh

__all__ = ["BetweenProcesses"]

_KINDS = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
)
_MLIR_NAMES = {f"stablehlo.{kind.replace('-', '_')}" for kind in _KINDS}
# In a compiled program: "%x = (f32[4]{0}, f32[]) all-reduce(...)"; "-start" if it is asynchronous.
_HLO = re.compile(rf"= (\S+|\([^=]*?\)) ({'|'.join(_KINDS)})(?:-start)?\(")


@final
class BetweenProcesses:
    """Runs one compiled step in its turn in the order of collectives.

    Args:
        mesh: the step's devices, including those of other processes.
        fn: the function that was compiled.
    """

    def __init__(self, mesh: ReplicaMesh, fn: Callable[..., Any]) -> None:
        self._order = order_of(mesh)
        self._name = getattr(fn, "__qualname__", type(fn).__name__)
        self._collective: Collective | None = None

    def compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Compile the step, find its collectives, and compare it with the other processes' step.

        The first run must follow without an interrupt in between, so any waiting happens here.
        """
        with self._order.log.phase("compiling"):
            compiled = lowered.compile()
        if self._collective is None:
            found = _collectives_of(lowered) or _collectives_in(compiled.as_text() or "")
            arguments = shapes_of(jax.tree.leaves(lowered.args_info))
            if found:
                values = " ".join([arguments, *found]).strip()
                self._collective = Collective(f"step {self._name}", values, user_line())
        if self._collective is not None:
            self._order.check(self._collective)
        return compiled

    def ordered(self, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """`run` wrapped so that it waits for its turn."""
        order, batch_in = self._order, self._order.log.batch_in

        def run_in_order(leaves: list[Any]) -> Any:
            if self._collective is None:
                return run(leaves)
            order.begin(self._collective, batch_in(leaves))
            running = None
            try:
                result = run(leaves)
                running = result if type(result) is ArrayImpl else _some_array(result)
                return result
            except Exception as error:
                await_cause(error)
                raise
            finally:
                order.end(running)

        return run_in_order


def _some_array(result: Any) -> Any:
    return next((leaf for leaf in jax.tree.leaves(result) if type(leaf) is ArrayImpl), None)


def _collectives_of(lowered: jax.stages.Lowered) -> list[str]:
    """The collectives in the step's own code, as "all_reduce:tensor<4xf32>"."""
    return [
        f"{name.removeprefix('stablehlo.')}:{','.join(types)}"
        for name, types in operations_of(lowered, _MLIR_NAMES)
    ]


def _collectives_in(program: str) -> list[str]:
    """The collectives that XLA added because the step computes with arrays sharded over processes."""
    return [f"{kind}:{shape}" for shape, kind in _HLO.findall(program)]
