"""`tf.io`: reading and writing files, and decoding images."""

from replicax.tf._missing import refuse
from replicax.tf.io import gfile
from replicax.tf.io._examples import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    parse_example,
    parse_single_example,
)
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
from replicax.tf.io._records import TFRecordOptions, TFRecordWriter

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "TFRecordOptions",
    "TFRecordWriter",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "encode_jpeg",
    "encode_png",
    "gfile",
    "parse_example",
    "parse_single_example",
    "read_file",
    "write_file",
]

_SPARSE = "`tf.io.FixedLenSequenceFeature`: there are no sparse and ragged tensors"

__getattr__ = refuse(
    "tf.io",
    {
        "RaggedFeature": _SPARSE,
        "SparseFeature": _SPARSE,
        "VarLenFeature": _SPARSE,
        "decode_csv": "`csv` or pandas in `Dataset.map`",
        "decode_json_example": "`json` in `Dataset.map`",
        "matching_files": "`tf.io.gfile.glob`",
        "parse_tensor": "`np.load`",
        "serialize_tensor": "`np.save`",
    },
)
