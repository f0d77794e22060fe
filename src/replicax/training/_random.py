"""Random keys per example, so that results do not depend on the number of replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["example_keys"]


def example_keys(key: Any, indices: Any) -> jax.Array:
    """A random key for each example, derived from its global index.

    Put the indices into the dataset. Then dropout, augmentation and the like give the same results on any
    number of replicas. Fold the step number into `key`, so that epochs differ.

    Args:
        key: a random key, the same for all replicas.
        indices: the global indices of this replica's examples.

    Returns:
        An array of keys, for `jax.vmap`.

    >>> keys = rx.example_keys(jax.random.key(0), jnp.array([7, 8]))
    >>> masks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (3,)))(keys)
    >>> masks.shape
    (2, 3)
    """
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.asarray(indices))
