"""`tf.compat`."""

from replicax.tf._missing import refuse
from replicax.tf.compat import v1

__all__ = ["v1"]

_SIZE = "the size itself: sizes are integers, or None"

__getattr__ = refuse(
    "tf.compat",
    {
        **dict.fromkeys(["as_bytes"], "`text.encode()`"),
        **dict.fromkeys(["as_str", "as_str_any", "as_text"], "`data.decode()`"),
        "dimension_at_index": _SIZE,
        "dimension_value": _SIZE,
        "path_to_str": "`os.fspath`",
        "v2": "`tf` itself",
    },
)
