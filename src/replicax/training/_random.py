"""Randomness that does not depend on how examples are spread over replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["example_keys"]


def example_keys(key: Any, indices: Any) -> jax.Array:
    """A random key for each example, from its global index.

    Let the dataset carry the indices, and dropout, augmentation and the like come out the same on any
    number of replicas. Fold the number of the step into `key`, so that every epoch differs.

    Args:
        key: a key, the same for all replicas.
        indices: the global indices of this replica's examples.

    Returns:
        An array of keys, to be `vmap`ped over.

    >>> keys = rx.example_keys(jax.random.key(0), jnp.array([7, 8]))
    >>> masks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (3,)))(keys)
    >>> masks.shape
    (2, 3)
    """
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.asarray(indices))
