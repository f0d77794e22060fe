"""`tf.io`: files."""

from replicax.tf._missing import WRITE_RECORDS, refuse
from replicax.tf.io import gfile

__all__ = ["gfile"]

_PARSE = "a parser of protocol buffers in `Dataset.map`, or ArrayRecord files with Grain"

__getattr__ = refuse(
    "tf.io",
    {
        "FixedLenFeature": _PARSE,
        "TFRecordOptions": WRITE_RECORDS,
        "TFRecordWriter": WRITE_RECORDS,
        "VarLenFeature": _PARSE,
        "parse_example": _PARSE,
        "parse_single_example": _PARSE,
        "decode_image": "Pillow in `Dataset.map`",
        "decode_jpeg": "Pillow in `Dataset.map`",
        "decode_png": "Pillow in `Dataset.map`",
        "read_file": "`pathlib.Path(path).read_bytes()` in `Dataset.map`",
    },
)
