"""TFRecord files: records of bytes, each with its length and two checksums.

A record is its length (8 bytes, little-endian), the checksum of these (4 bytes), the bytes themselves and
their checksum. A checksum is CRC-32C, rotated and shifted by a constant, so that the checksum of data that
has checksums in it is not weak.
"""

from __future__ import annotations

import functools
import struct
from typing import BinaryIO

import numpy as np

from replicax.errors import InputError

__all__ = ["masked_crc32c", "read_record", "write_record"]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with its bits reversed
_LANE = 256  # how many bytes of a long record go together


def read_record(file: BinaryIO) -> bytes | None:
    """The next record of a TFRecord file; None at its end. Raises `InputError` if it is damaged."""
    start = file.tell()
    header = _read(file, 12, start, at_end=True)
    if header is None:
        return None
    length, checksum = struct.unpack("<QI", header)
    if masked_crc32c(header[:8]) != checksum:
        raise InputError(
            f"{_name(file)} has no TFRecord at byte {start}: the checksum of its length is wrong. It is "
            'no TFRecord file, or it is damaged, or compressed (`compression_type="GZIP"`).'
        )
    data = _read(file, length, start)
    footer = _read(file, 4, start)
    assert data is not None and footer is not None
    if masked_crc32c(data) != struct.unpack("<I", footer)[0]:
        raise InputError(
            f"{_name(file)} is damaged: the record at byte {start} ({length} bytes) has a wrong checksum. "
            "Get a fresh copy of the file."
        )
    return data


def _read(file: BinaryIO, size: int, start: int, at_end: bool = False) -> bytes | None:
    try:
        data = file.read(size)
    except EOFError as error:  # a compressed file that ends too soon
        raise InputError(f"{_name(file)} is truncated: {error}") from error
    except OSError as error:
        raise InputError(
            f'{_name(file)} can\'t be read: {error}. `compression_type="GZIP"` is for compressed files.'
        ) from error
    if at_end and not data:
        return None
    if len(data) < size:
        raise InputError(
            f"{_name(file)} is truncated: it ends in the middle of the record at byte {start}. Write it "
            "again, or get a fresh copy."
        )
    return data


def _name(file: BinaryIO) -> str:
    return str(getattr(file, "name", "The file"))


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append a record to a TFRecord file."""
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_crc32c(length)))
    file.write(data + struct.pack("<I", masked_crc32c(data)))


def masked_crc32c(data: bytes) -> int:
    """The checksum of `data` in the form that TFRecord files have it."""
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    num_lanes = len(data) // _LANE
    if num_lanes >= 16:
        state = _of_lanes(state, np.frombuffer(data, np.uint8, num_lanes * _LANE).reshape(num_lanes, _LANE))
        data = data[num_lanes * _LANE :]
    table = _table()
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


def _of_lanes(state: int, lanes: np.ndarray) -> int:
    """The state after all `lanes`, which are taken side by side: the checksum is linear in the bits."""
    table = np.asarray(_table(), np.uint32)
    states = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        states = table[(states ^ column) & 0xFF] ^ states >> 8
    low, second, third, high = _after_a_lane()
    for lane in states.tolist():
        state = (
            low[state & 0xFF]
            ^ second[state >> 8 & 0xFF]
            ^ third[state >> 16 & 0xFF]
            ^ high[state >> 24]
            ^ lane
        )
    return state


@functools.cache
def _table() -> list[int]:
    """The state after one byte, for each of the bytes."""
    table = []
    for state in range(256):
        for _ in range(8):
            state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
        table.append(state)
    return table


@functools.cache
def _after_a_lane() -> list[list[int]]:
    """What each byte of a state becomes after a lane of zeros."""
    table, tables = _table(), []
    for shift in (0, 8, 16, 24):
        states = [byte << shift for byte in range(256)]
        for _ in range(_LANE):
            states = [table[state & 0xFF] ^ state >> 8 for state in states]
        tables.append(states)
    return tables
