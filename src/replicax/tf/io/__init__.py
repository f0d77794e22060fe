"""`tf.io`: reading and writing files, and decoding images."""

from replicax.tf._missing import WRITE_RECORDS, refuse
from replicax.tf.io import gfile
from replicax.tf.io._files import decode_raw, read_file, write_file
from replicax.tf.io._images import (
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
)

__all__ = [
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "encode_jpeg",
    "encode_png",
    "gfile",
    "read_file",
    "write_file",
]

_PARSE = "a parser of protocol buffers in `Dataset.map`, or ArrayRecord files with Grain"

__getattr__ = refuse(
    "tf.io",
    {
        "FixedLenFeature": _PARSE,
        "TFRecordOptions": WRITE_RECORDS,
        "TFRecordWriter": WRITE_RECORDS,
        "VarLenFeature": _PARSE,
        "decode_csv": "`csv` or pandas in `Dataset.map`",
        "decode_json_example": "`json` in `Dataset.map`",
        "matching_files": "`tf.io.gfile.glob`",
        "parse_example": _PARSE,
        "parse_single_example": _PARSE,
        "parse_tensor": "`np.load`",
        "serialize_tensor": "`np.save`",
    },
)
