"""Datasets of what is in files: `TFRecordDataset` and `TextLineDataset`."""

from __future__ import annotations

import functools
import gzip
import os
from collections.abc import Callable
from typing import Any, BinaryIO, final

from replicax.errors import InputError, MissingFilesError
from replicax.input import UNKNOWN_CARDINALITY
from replicax.tf.data import _arguments as arguments
from replicax.tf.data._changes import Nested
from replicax.tf.data._dataset import Dataset
from replicax.tf.data._node import Node, Opening, engine
from replicax.tf.data._sources import FileNames, Leaf
from replicax.tf.data._tfrecord import read_record
from replicax.values import TensorSpec

__all__ = ["TFRecordDataset", "TextLineDataset"]

_BYTES = TensorSpec((), object)


@final
class TFRecordDataset(Dataset):
    """The records of TFRecord files, as bytes. Each is checked against its checksum.

    Several pipelines share out the files (`AutoShardPolicy.FILE`, and AUTO if there are enough).

    Args:
        filenames: one, several, or a dataset of them.
        compression_type: None, "" or "GZIP".
        buffer_size: how many bytes are read from a file at once.
        num_parallel_reads: from how many files records are taken in turn, in one thread; None and AUTOTUNE
            read one file after the other.
        name: no effect.

    Raises:
        MissingFilesError: a file is not there.

    >>> import pathlib, tempfile
    >>> from replicax import tf
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.tfrecord"
    >>> record = bytes.fromhex("0100000000000000 0175de41 61 786ee428".replace(" ", ""))
    >>> _ = path.write_bytes(record * 2)
    >>> list(tf.data.TFRecordDataset(path))
    [b'a', b'a']
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
        name: str | None = None,
    ) -> None:
        """Check the arguments, and that the files are there."""
        call = "TFRecordDataset"
        begin = _opener(call, compression_type, buffer_size)
        reads = arguments.as_parallel_calls(num_parallel_reads, f"{call}(num_parallel_reads=")
        super().__init__(*_records(call, filenames, begin, read_record, max(reads, 1)))


@final
class TextLineDataset(Dataset):
    r"""The lines of text files, as bytes without the end of the line.

    Args:
        filenames: one, several, or a dataset of them.
        compression_type: None, "" or "GZIP".
        buffer_size: how many bytes are read from a file at once.
        num_parallel_reads: from how many files lines are taken in turn, in one thread; None and AUTOTUNE
            read one file after the other.
        name: no effect.

    Raises:
        MissingFilesError: a file is not there.

    >>> import pathlib, tempfile
    >>> from replicax import tf
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "lines.txt"
    >>> _ = path.write_text("one\ntwo\n")
    >>> list(tf.data.TextLineDataset(path))
    [b'one', b'two']
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
        name: str | None = None,
    ) -> None:
        """Check the arguments, and that the files are there."""
        call = "TextLineDataset"
        begin = _opener(call, compression_type, buffer_size)
        reads = arguments.as_parallel_calls(num_parallel_reads, f"{call}(num_parallel_reads=")
        super().__init__(*_records(call, filenames, begin, _read_line, max(reads, 1)))


def _read_line(file: BinaryIO) -> bytes | None:
    line = file.readline()
    if not line:
        return None
    return line.removesuffix(b"\n").removesuffix(b"\r")


_Begin = Callable[[str], BinaryIO]
_Read = Callable[[BinaryIO], bytes | None]


def _opener(call: str, compression_type: str | None, buffer_size: Any) -> _Begin:
    """A function that opens a file."""
    if compression_type not in (None, "", "GZIP"):
        raise InputError(f'{call}(compression_type={compression_type!r}): pass None, "" or "GZIP".')
    size = None
    if buffer_size is not None:
        size = arguments.as_number(buffer_size, f"{call}(buffer_size=", least=0) or None

    def begin(path: str) -> BinaryIO:
        try:
            # A buffer of one byte would mean lines to Python.
            file = open(path, "rb", buffering=-1 if size is None else max(size, 2))  # noqa: SIM115
        except FileNotFoundError as error:
            raise MissingFilesError(f"{call}: {path} is not there.") from error
        return _Unzipped(file) if compression_type == "GZIP" else file  # pyright: ignore

    return begin


class _Unzipped(gzip.GzipFile):
    """A compressed file that closes what it reads."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._file = file

    def close(self) -> None:
        super().close()
        self._file.close()


def _records(call: str, filenames: Any, begin: _Begin, read: _Read, cycle_length: int) -> tuple[Node, Any]:
    """The node of the records in files, and the options that come with a dataset of names."""
    if isinstance(filenames, Dataset):
        names, options = filenames._node, filenames._options
    else:
        paths = arguments.as_paths(filenames, call)
        missing = [path for path in paths if not os.path.exists(path)]
        if missing:
            raise MissingFilesError(f"{call}: these files are not there: {', '.join(missing)}.")
        names, options = FileNames(tuple(paths)), None

    def inner(name: Any) -> Node:
        return _Records(functools.partial(begin, os.fsdecode(name)), read)

    return Nested(names, inner, cycle_length, inner_spec=_BYTES, name=call), options


@final
class _Records(Leaf):
    """The records of one file."""

    name = "FileDataset"

    def __init__(self, begin: Callable[[], BinaryIO], read: _Read) -> None:
        self._begin, self._read = begin, read

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    def spec(self) -> Any:
        return _BYTES

    def _build(self, opening: Opening) -> Any:
        return engine().stream((), lambda: engine().FileIterator(self._begin, self._read))
