"""`tf.train.Example`: the named lists of numbers and bytes that TFRecord files usually contain.

An example is a protocol buffer: a sequence of fields, each with a number, a kind (0: an integer, 2: bytes)
and a value. Integers are written in groups of seven bits, the lowest first.

    Example   1: Features
    Features  1: an entry for each feature, with 1: its name, 2: its Feature
    Feature   1: BytesList, 2: FloatList or 3: Int64List
    ...List   1: the values; those of numbers are one field of bytes
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Self, final

from replicax.errors import InputError

__all__ = ["BytesList", "Example", "Feature", "Features", "FloatList", "Int64List"]


class _List:
    """The values of a feature."""

    def __init__(self, value: Iterable[Any] = ()) -> None:
        self.value = [self._checked(x) for x in value]

    @staticmethod
    def _checked(x: Any) -> Any:
        return x

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == vars(other)["value"]

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(value={self.value!r})"


@final
class BytesList(_List):
    """A feature of bytes: `tf.train.BytesList(value=[b"abc"])`."""

    @staticmethod
    def _checked(x: Any) -> bytes:
        x = x.numpy() if hasattr(x, "numpy") else x
        if not isinstance(x, bytes):
            raise TypeError(f"tf.train.BytesList takes bytes, got {x!r}. Write text.encode() for text.")
        return bytes(x)

    def _encoded(self) -> bytes:
        return b"".join(_bytes_field(1, x) for x in self.value)

    @classmethod
    def _decoded(cls, data: bytes) -> Self:
        return cls(value for _, value in _fields(data))


@final
class FloatList(_List):
    """A feature of 32-bit floats: `tf.train.FloatList(value=[0.5])`."""

    @staticmethod
    def _checked(x: Any) -> float:
        return struct.unpack("<f", struct.pack("<f", x))[0]

    def _encoded(self) -> bytes:
        return _bytes_field(1, struct.pack(f"<{len(self.value)}f", *self.value)) if self.value else b""

    @classmethod
    def _decoded(cls, data: bytes) -> Self:
        packed = b"".join(value for _, value in _fields(data))
        return cls(struct.unpack(f"<{len(packed) // 4}f", packed))


@final
class Int64List(_List):
    """A feature of integers: `tf.train.Int64List(value=[1, 2])`."""

    @staticmethod
    def _checked(x: Any) -> int:
        number = int(x)
        if number != x:
            raise TypeError(f"tf.train.Int64List takes integers, got {x!r}.")
        return number

    def _encoded(self) -> bytes:
        return _bytes_field(1, b"".join(map(_integer, self.value))) if self.value else b""

    @classmethod
    def _decoded(cls, data: bytes) -> Self:
        found: list[int] = []
        for _, value in _fields(data):
            found += [value] if isinstance(value, int) else _integers(value)
        return cls(x - (1 << 64) if x >= 1 << 63 else x for x in found)


_KINDS = {1: BytesList, 2: FloatList, 3: Int64List}


@final
class Feature:
    """One of the three lists: `tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))`."""

    def __init__(
        self,
        bytes_list: BytesList | None = None,
        float_list: FloatList | None = None,
        int64_list: Int64List | None = None,
    ) -> None:
        given = (bytes_list, float_list, int64_list)
        if sum(x is not None for x in given) > 1:
            raise ValueError("tf.train.Feature has one list: pass bytes_list, float_list or int64_list.")
        self._list = next((x for x in given if x is not None), None)
        self.bytes_list = bytes_list or BytesList()
        self.float_list = float_list or FloatList()
        self.int64_list = int64_list or Int64List()

    def WhichOneof(self, oneof_group: str = "kind") -> str | None:
        """The name of the list that is set, like the method of protocol buffers."""
        return None if self._list is None else f"{type(self._list).__name__[:-4].lower()}_list"

    def _encoded(self) -> bytes:
        numbers = {kind: number for number, kind in _KINDS.items()}
        return b"" if self._list is None else _bytes_field(numbers[type(self._list)], self._list._encoded())

    @classmethod
    def _decoded(cls, data: bytes) -> Feature:
        names = {1: "bytes_list", 2: "float_list", 3: "int64_list"}
        return cls(**{names[number]: _KINDS[number]._decoded(value) for number, value in _fields(data)})

    def __repr__(self) -> str:
        return f"Feature({self._list!r})"


@final
@dataclasses.dataclass
class Features:
    """Features by name: `tf.train.Features(feature={"x": ...})`."""

    feature: dict[str, Feature] = dataclasses.field(default_factory=dict[str, Feature])


@final
class Example:
    """Named features, for TFRecord files.

    >>> from replicax import tf
    >>> label = tf.train.Feature(int64_list=tf.train.Int64List(value=[3]))
    >>> example = tf.train.Example(features=tf.train.Features(feature={"label": label}))
    >>> tf.train.Example.FromString(example.SerializeToString()).features.feature["label"].int64_list.value
    [3]
    """

    def __init__(self, features: Features | None = None) -> None:
        self.features = features or Features()

    def SerializeToString(self) -> bytes:
        """The example as bytes, for `tf.io.TFRecordWriter.write`."""
        entries = (
            _bytes_field(1, _bytes_field(1, name.encode()) + _bytes_field(2, feature._encoded()))
            for name, feature in self.features.feature.items()
        )
        return _bytes_field(1, b"".join(entries))

    @classmethod
    def FromString(cls, s: bytes) -> Example:
        """Parse an example from bytes."""
        found: dict[str, Feature] = {}
        try:
            for _, features in _fields(s):
                for _, entry in _fields(features):
                    parts = dict(_fields(entry))
                    found[parts.get(1, b"").decode()] = Feature._decoded(parts.get(2, b""))
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise InputError(f"These {len(s)} bytes are not a tf.train.Example.") from error
        return cls(Features(found))

    def ParseFromString(self, serialized: bytes) -> int:
        """Parse an example from bytes into this one; returns the number of bytes."""
        self.features = self.FromString(serialized).features
        return len(serialized)

    def __repr__(self) -> str:
        return f"Example({self.features.feature!r})"


def _integer(number: int) -> bytes:
    number &= (1 << 64) - 1
    parts: list[int] = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _integers(data: bytes) -> list[int]:
    found: list[int] = []
    at = 0
    while at < len(data):
        number, at = _read_integer(data, at)
        found.append(number)
    return found


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    number = shift = 0
    while data[at] > 127:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


def _bytes_field(number: int, data: bytes) -> bytes:
    return _integer(number << 3 | 2) + _integer(len(data)) + data


_SIZES = {1: 8, 5: 4}  # bytes, for the wire types with a fixed size


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of the fields: integers or bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_integer(data, at)
        if tag & 7 == 0:
            value, at = _read_integer(data, at)
            yield tag >> 3, value
            continue
        size, at = _read_integer(data, at) if tag & 7 == 2 else (_SIZES[tag & 7], at)
        if at + size > len(data):
            raise ValueError("a field is longer than the data")
        yield tag >> 3, data[at : at + size]
        at += size
