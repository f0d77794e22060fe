"""`tf.linalg`: thin wrappers around `jax.numpy.linalg`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.tf._math import einsum, global_norm, l2_normalize, matmul, norm, tensordot
from replicax.tf._missing import refuse
from replicax.tf._op import array, binary, op, static, unary
from replicax.tf._tensors import eye

__all__ = [
    "adjoint",
    "band_part",
    "cholesky",
    "cross",
    "det",
    "diag",
    "diag_part",
    "einsum",
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "pinv",
    "qr",
    "set_diag",
    "solve",
    "tensor_diag",
    "tensordot",
    "trace",
]

cholesky, det, inv, pinv = map(
    unary, (jnp.linalg.cholesky, jnp.linalg.det, jnp.linalg.inv, jnp.linalg.pinv)
)


@op
def diag(diagonal: Any) -> jax.Array:
    """Matrices with these diagonals and zeros elsewhere."""
    x = array(diagonal)
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


@op
def diag_part(input: Any) -> jax.Array:
    """The diagonals of matrices."""
    return jnp.diagonal(array(input), axis1=-2, axis2=-1)


@op
def trace(x: Any) -> jax.Array:
    """The traces of matrices."""
    return jnp.trace(array(x), axis1=-2, axis2=-1)


@op
def matrix_transpose(a: Any, conjugate: bool = False) -> jax.Array:
    """Transpose matrices."""
    turned = jnp.matrix_transpose(array(a))
    return jnp.conj(turned) if conjugate else turned


@op
def adjoint(matrix: Any) -> jax.Array:
    """Transpose and conjugate matrices."""
    return matrix_transpose(matrix, conjugate=True)


@op
def set_diag(input: Any, diagonal: Any) -> jax.Array:
    """Matrices with other diagonals."""
    x, on_diagonal = array(input), jnp.eye(*array(input).shape[-2:], dtype=bool)
    padded = jnp.zeros_like(x).at[..., *jnp.diag_indices(min(x.shape[-2:]))].set(array(diagonal))
    return jnp.where(on_diagonal, padded, x)


@op
def tensor_diag(diagonal: Any) -> jax.Array:
    """An array with `diagonal` on its diagonal, and twice its axes."""
    x = array(diagonal)
    return jnp.diag(x.ravel()).reshape(x.shape * 2)


cross = binary(jnp.cross)


@op
def normalize(tensor: Any, ord: Any = "euclidean", axis: Any = None) -> tuple[jax.Array, jax.Array]:
    """`tensor` divided by its norm, and the norm."""
    size = norm(tensor, ord, axis, keepdims=True)
    return array(tensor) / size, size


@op
def matvec(a: Any, b: Any, transpose_a: bool = False) -> jax.Array:
    """Multiply matrices and vectors."""
    return matmul(a, array(b)[..., None], transpose_a=transpose_a)[..., 0]


@op
def solve(matrix: Any, rhs: Any, adjoint: bool = False) -> jax.Array:
    """Solve systems of linear equations."""
    a = array(matrix)
    return jnp.linalg.solve(jnp.conj(jnp.matrix_transpose(a)) if adjoint else a, array(rhs))


@op
def band_part(input: Any, num_lower: Any, num_upper: Any) -> jax.Array:
    """Set matrices to zero outside a band around the diagonal; -1 keeps the whole triangle on that side."""
    x, lower, upper = array(input), static(num_lower), static(num_upper)
    below = jnp.arange(x.shape[-2])[:, None] - jnp.arange(x.shape[-1])
    inside = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return jnp.where(inside, x, 0)


@op
def qr(input: Any, full_matrices: bool = False) -> Any:
    """The QR decomposition of matrices."""
    return jnp.linalg.qr(array(input), "complete" if full_matrices else "reduced")


__getattr__ = refuse(
    "tf.linalg",
    dict.fromkeys(
        ("eig", "eigh", "eigvalsh", "expm", "logdet", "lstsq", "lu", "slogdet", "svd", "triangular_solve"),
        "`jax.numpy.linalg` and `jax.scipy.linalg`",
    ),
)
