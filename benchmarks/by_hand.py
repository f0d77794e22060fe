"""Hand-written JAX: steps on two devices, over a flat list of arrays that are donated.

`mapped` is `jit(shard_map)`, where the body reduces gradients itself, in one of three ways. `partitioned`
is `jit` of the step for one device, on arrays whose shardings tell XLA's partitioner where everything is.
`mapped` can make several steps in a call, as a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import Step
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "replica"
WHOLE, ROWS = PartitionSpec(), PartitionSpec(AXIS)

Body = Callable[..., Any]
"""`body(state, *batch) -> (result, new state)`; the state is None if the body does not write it."""


# Reducing gradients.

Reduce = Callable[[list[Any]], list[Any]]


def reduce_plainly(arrays: list[Any]) -> list[Any]:
    return jax.lax.pmean(arrays, AXIS)


def reduce_packed(arrays: list[Any]) -> list[Any]:
    """All arrays in one buffer, filled in place: XLA on CPU reduces one buffer at a time."""
    ends = np.cumsum([a.size for a in arrays]).tolist()
    buffer = jnp.zeros(ends[-1], arrays[0].dtype)
    for array, end in zip(arrays, ends, strict=True):
        buffer = jax.lax.dynamic_update_slice(buffer, array.reshape(-1), (end - array.size,))
    return _parts(jax.lax.pmean(buffer, AXIS), arrays, ends)


def reduce_concatenated(arrays: list[Any]) -> list[Any]:
    """The same with a concatenate: faster than filling for small arrays, very slow for large ones."""
    ends = np.cumsum([a.size for a in arrays]).tolist()
    parts = jax.lax.optimization_barrier([array.reshape(-1) for array in arrays])
    return _parts(jax.lax.pmean(jnp.concatenate(parts), AXIS), arrays, ends)


def _parts(buffer: Any, arrays: list[Any], ends: list[int]) -> list[Any]:
    return [
        buffer[end - array.size : end].reshape(array.shape) for array, end in zip(arrays, ends, strict=True)
    ]


def reduce_loss_last(arrays: list[Any]) -> list[Any]:
    """`reduce_packed`, with the loss behind the gradients, which are then aligned in the buffer."""
    loss, *gradients = arrays
    *gradients, loss = reduce_packed([*gradients, loss])
    return [loss, *gradients]


# Steps.


def mapped(
    body: Body,
    state: Sequence[Any],
    batch: Sequence[Any],
    *,
    result_spec: PartitionSpec = WHOLE,
    writes: bool = True,
    steps_per_call: int = 1,
) -> Step:
    """Run `body` on each device with its rows of the batch."""
    mesh = two_devices()
    inner = jax.shard_map(
        repeated(body, steps_per_call),
        mesh=mesh,
        in_specs=(WHOLE, *(ROWS for _ in batch)),
        out_specs=(result_spec, WHOLE),
        check_vma=False,
    )
    return _step(jax.jit(inner, donate_argnums=0 if writes else ()), mesh, state, batch, writes)


def partitioned(body: Body, state: Sequence[Any], batch: Sequence[Any]) -> Step:
    """Run `body` on the whole batch, divided by XLA's partitioner."""
    mesh = two_devices()
    whole = NamedSharding(mesh, WHOLE)
    jitted = jax.jit(body, donate_argnums=0, out_shardings=(whole, [whole] * len(state)))
    return _step(jitted, mesh, state, batch, writes=True)


def two_devices() -> Mesh:
    """The first two devices; of a machine with one GPU, that."""
    return Mesh(np.array(jax.devices()[:2]), (AXIS,))


def repeated(body: Body, count: int) -> Body:
    """`count` calls of `body` with the same batch in one loop; the results are stacked."""
    if count == 1:
        return body

    def loop(state: Any, *batch: Any) -> Any:
        once = lambda state, _: body(state, *batch)[::-1]  # noqa: E731
        state, results = jax.lax.scan(once, state, None, length=count)
        return results, state

    return loop


def _step(jitted: Any, mesh: Mesh, state: Sequence[Any], batch: Sequence[Any], writes: bool) -> Step:
    batch = [jax.device_put(array, NamedSharding(mesh, ROWS)) for array in batch]
    arrays = [jnp.copy(jax.device_put(a, NamedSharding(mesh, WHOLE))) for a in state]

    def step() -> Any:
        nonlocal arrays
        result, new = jitted(arrays, *batch)
        if writes:
            arrays = new
        return result

    return step
