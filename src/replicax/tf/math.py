"""`tf.math`: the same functions as in `tf`, and a few more."""

from replicax.tf import _math, _more_math
from replicax.tf._math import *  # noqa: F403
from replicax.tf._missing import refuse
from replicax.tf._more_math import *  # noqa: F403

_NOT_MATH = ("foldl", "foldr", "meshgrid", "scan", "searchsorted", "sequence_mask", "strided_slice")
_NOT_MATH += ("histogram_fixed_width", "unique", "vectorized_map")

__all__ = [*_math.__all__]  # pyright: ignore[reportUnsupportedDunderAll]
__all__ += [name for name in _more_math.__all__ if name not in _NOT_MATH]

_SPECIAL = "the function in `jax.scipy.special`"

__getattr__ = refuse(
    "tf.math",
    {
        **dict.fromkeys(
            [
                "bessel_i0",
                "bessel_i1",
                "betainc",
                "erfc",
                "igamma",
                "igammac",
                "lbeta",
                "polygamma",
                "zeta",
            ],
            _SPECIAL,
        ),
        **dict.fromkeys(["approx_max_k", "approx_min_k"], "the function in `jax.lax`"),
        **dict.fromkeys(["cumulative_logsumexp"], "`jax.lax.cumlogsumexp`"),
        "angle": "`jnp.angle`",
        "invert_permutation": "`jnp.argsort`",
    },
)
