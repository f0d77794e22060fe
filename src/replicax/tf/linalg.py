"""`tf.linalg`: matrix products and norms; for the rest see `jax.numpy.linalg`."""

import jax.numpy as jnp

from replicax.tf._math import einsum, global_norm, l2_normalize, matmul, norm, tensordot
from replicax.tf._missing import refuse
from replicax.tf._op import op
from replicax.tf._tensors import eye

__all__ = [
    "diag",
    "einsum",
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
    "matmul",
    "norm",
    "tensordot",
    "trace",
]

diag, inv, trace = op(jnp.diag), op(jnp.linalg.inv), op(jnp.trace)

__getattr__ = refuse(
    "tf.linalg", dict.fromkeys(("cholesky", "det", "qr", "solve", "svd"), "`jax.numpy.linalg`")
)
