"""Datasets that read files: `TFRecordDataset` and `TextLineDataset`."""

from __future__ import annotations

import functools
import gzip
import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast, final

from replicax.errors import InputError, MissingFilesError
from replicax.input import UNKNOWN_CARDINALITY
from replicax.tf.data import _arguments as arguments
from replicax.tf.data._dataset import Dataset
from replicax.tf.data._node import Node, engine
from replicax.tf.data._sources import file_names
from replicax.tf.data._steps import nested
from replicax.tf.data._tfrecord import read_record
from replicax.values import TensorSpec

__all__ = ["TFRecordDataset", "TextLineDataset"]

_BYTES = TensorSpec((), object)


class _FileDataset(Dataset):
    _read: Callable[[BinaryIO], bytes | None]

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
        name: str | None = None,
    ) -> None:
        call = type(self).__name__
        if compression_type not in (None, "", "GZIP"):
            raise InputError(f'{call}(compression_type={compression_type!r}): pass None, "" or "GZIP".')
        size = io.DEFAULT_BUFFER_SIZE
        if buffer_size is not None:
            size = arguments.as_number(buffer_size, f"{call}(buffer_size=", least=0) or size
        in_turn = 1
        if num_parallel_reads not in (None, arguments.AUTOTUNE):
            in_turn = arguments.as_number(num_parallel_reads, f"{call}(num_parallel_reads=", least=1)
        names, options = _names(filenames, call)
        read = type(self)._read

        def records(name: Any) -> Node:
            begin = functools.partial(_open, os.fsdecode(name), compression_type == "GZIP", size, call)
            make = lambda _: engine().records(begin, read)  # noqa: E731
            return Node("FileDataset", (), make, UNKNOWN_CARDINALITY, _BYTES)

        super().__init__(nested(names, records, in_turn, 1, _BYTES, call), options)


@final
class TFRecordDataset(_FileDataset):
    """The records of TFRecord files, as bytes. Checksums are verified.

    Several pipelines divide the files among them (`AutoShardPolicy.FILE`, and AUTO if there are enough).

    Args:
        filenames: a file name, several, or a dataset of them.
        compression_type: None, "" or "GZIP".
        buffer_size: how many bytes to read from a file at a time.
        num_parallel_reads: how many files to interleave, in one thread; None and AUTOTUNE read one file
            after the other.
        name: no effect.

    Raises:
        MissingFilesError: a file does not exist.

    >>> import pathlib, tempfile
    >>> from replicax import tf
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.tfrecord"
    >>> record = bytes.fromhex("0100000000000000 0175de41 61 786ee428".replace(" ", ""))
    >>> _ = path.write_bytes(record * 2)
    >>> list(tf.data.TFRecordDataset(path))
    [b'a', b'a']
    """

    _read = staticmethod(read_record)


@final
class TextLineDataset(_FileDataset):
    r"""The lines of text files, as bytes without newlines. The arguments are those of `TFRecordDataset`.

    Raises:
        MissingFilesError: a file does not exist.

    >>> import pathlib, tempfile
    >>> from replicax import tf
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "lines.txt"
    >>> _ = path.write_text("one\ntwo\n")
    >>> list(tf.data.TextLineDataset(path))
    [b'one', b'two']
    """

    @staticmethod
    def _read(file: BinaryIO) -> bytes | None:
        line = file.readline()
        return line.removesuffix(b"\n").removesuffix(b"\r") if line else None


def _names(filenames: Any, call: str) -> tuple[Node, Any]:
    """The node of the file names, and the options if they are a dataset."""
    if isinstance(filenames, Dataset):
        return filenames._node, filenames._options
    paths = arguments.as_paths(filenames, call)
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise MissingFilesError(f"{call}: these files do not exist: {', '.join(missing)}.")
    return file_names(tuple(paths)), None


def _open(path: str, is_compressed: bool, buffer_size: int, call: str) -> BinaryIO:
    try:
        file = gzip.GzipFile(path, "rb") if is_compressed else io.FileIO(path)
    except FileNotFoundError as error:
        raise MissingFilesError(f"{call}: {path} does not exist.") from error
    return io.BufferedReader(cast(Any, file), buffer_size)
