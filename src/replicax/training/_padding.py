"""Which rows of a loss or a metric are examples, in a replica with a padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax.contexts import BatchMask, Examples, current
from replicax.errors import CollectiveError
from replicax.values import Find

__all__ = ["current_examples", "per_row", "rows_that_count"]


def current_examples() -> Examples | None:
    """The padded batches of the current replica, if it has any."""
    here = current()
    here.frame.require_own_trace()  # a cached trace would contain the masks
    return None if here.replica is None else here.replica._examples


def rows_that_count(
    values: Sequence[Any], example_mask: Any, what: str, advice: str = ""
) -> BatchMask | None:
    """The mask of the rows of `values`; None if all rows count.

    Args:
        values: arrays with one row per example.
        example_mask: the user's choice, or `FIND`.
        what: what messages call the values.
        advice: what else to do if the values do not have the rows of a padded batch.
    """
    if not isinstance(example_mask, Find):
        return None if example_mask is None else _given(example_mask, values, what)
    here, examples = current(), current_examples()
    if examples is None:
        return None
    origin = examples.find(values, here.rows)
    if isinstance(origin, tuple):
        return examples.mask(origin, here.rows)
    if examples.is_recording:
        return None
    raise CollectiveError(_unclear(values, origin, examples.sizes(here.rows), what, advice))


def _given(example_mask: Any, values: Sequence[Any], what: str) -> BatchMask:
    mask = jnp.asarray(example_mask)
    rows = values[0].shape[0]
    if mask.shape != (rows,):
        raise CollectiveError(
            f"example_mask has shape {mask.shape}, but there are {rows} {what}. Pass one boolean for each "
            "row."
        )
    return BatchMask(mask, None)


def _unclear(values: Sequence[Any], origin: str | None, rows: Sequence[int], what: str, advice: str) -> str:
    size = values[0].shape[0]
    batches = " and ".join(map(str, rows))
    of = f"a padded batch of {batches} rows" if len(rows) == 1 else f"padded batches of {batches} rows"
    why = "they do not have its rows. Give them one row for each example" if origin is None else origin
    return (
        f"Got {size} {what} in a replica with {of}: {why}. {advice}Or choose the rows yourself: pass "
        "`example_mask=mask`, or `example_mask=None` if all rows are examples."
    )


def per_row(mask: Any, values: Any) -> jax.Array:
    """`mask` with as many axes as `values`."""
    return mask.reshape(mask.shape + (1,) * (values.ndim - 1))
