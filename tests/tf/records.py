"""TFRecord files for tests."""

import struct
from typing import BinaryIO

from replicax.tf.data._tfrecord import masked_crc32c


def write_record(file: BinaryIO, data: bytes) -> None:
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_crc32c(length)))
    file.write(data + struct.pack("<I", masked_crc32c(data)))
