"""TFRecord files: records of bytes, each with its length and two checksums.

A record is its length (8 bytes, little-endian), a checksum of the length (4 bytes), the data, and a
checksum of the data. A checksum is a CRC-32C, rotated and offset by a constant, so that checksums of data
that contains checksums stay strong.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from replicax.errors import InputError

__all__ = ["as_record", "masked_crc32c", "read_record"]


def as_record(data: bytes) -> bytes:
    """Encode a record of a TFRecord file."""
    if not isinstance(data, bytes):
        raise TypeError(f"A TFRecord holds bytes, got {data!r}. Pass `example.SerializeToString()`.")
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]


def read_record(file: BinaryIO) -> bytes | None:
    """The next record of a TFRecord file; None at its end. Raises `InputError` if it is damaged."""
    start = file.tell()
    header = _read(file, 12, start)
    if not header:
        return None
    length, checksum = struct.unpack("<QI", header)
    if masked_crc32c(header[:8]) != checksum:
        raise InputError(
            f"{_name(file)} has no TFRecord at byte {start}: the checksum of its length is wrong. The file "
            'is damaged, compressed (pass `compression_type="GZIP"`), or not a TFRecord file.'
        )
    data = _read(file, length + 4, start, at_end=False)
    data, footer = data[:length], data[length:]
    if masked_crc32c(data) != struct.unpack("<I", footer)[0]:
        raise InputError(
            f"{_name(file)} is damaged: the record at byte {start} ({length} bytes) has a wrong checksum. "
            "Get a fresh copy of the file."
        )
    return data


def _read(file: BinaryIO, size: int, start: int, at_end: bool = True) -> bytes:
    """`size` bytes, or none if the file may end here (`at_end`)."""
    try:
        data = file.read(size)
    except EOFError as error:  # in a truncated compressed file
        raise InputError(f"{_name(file)} is truncated: {error}") from error
    except OSError as error:
        raise InputError(
            f'{_name(file)} can\'t be read: {error}. `compression_type="GZIP"` is for compressed files.'
        ) from error
    if len(data) < size and not (at_end and not data):
        raise InputError(
            f"{_name(file)} is truncated: it ends in the middle of the record at byte {start}. Write it "
            "again, or get a fresh copy."
        )
    return data


def _name(file: BinaryIO) -> str:
    return str(getattr(file, "name", "The file"))


def masked_crc32c(data: bytes) -> int:
    """The checksum of `data` as in TFRecord files."""
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError(
            "Reading TFRecord files needs the package google-crc32c for their checksums, which is not "
            "installed: pip install 'replicax[grain]'."
        ) from error
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
