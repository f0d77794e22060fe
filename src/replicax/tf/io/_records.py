"""`tf.io.TFRecordWriter`: writes the files that `tf.data.TFRecordDataset` reads."""

from __future__ import annotations

import gzip
import os
from typing import Any, NamedTuple, Self, final

from replicax.tf.data._tfrecord import as_record

__all__ = ["TFRecordOptions", "TFRecordWriter"]


class TFRecordOptions(NamedTuple):
    """How records are written: `compression_type` is None, "" or "GZIP"."""

    compression_type: str | None = None


@final
class TFRecordWriter:
    """Writes records of bytes to a new file.

    Args:
        path: the file, which is replaced if it exists.
        options: a `TFRecordOptions`, or the compression as a string.

    >>> import tempfile
    >>> from replicax import tf
    >>> path = tempfile.mkdtemp() + "/two.tfrecord"
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     writer.write(b"one")
    ...     writer.write(b"two")
    >>> list(tf.data.TFRecordDataset(path))
    [b'one', b'two']
    """

    def __init__(self, path: str | os.PathLike[str], options: TFRecordOptions | str | None = None) -> None:
        compression = options.compression_type if isinstance(options, TFRecordOptions) else options
        if compression not in (None, "", "GZIP"):
            raise NotImplementedError(
                f'TFRecordWriter(compression_type={compression!r}): pass "GZIP" or None.'
            )
        self._file: Any = gzip.open(path, "wb") if compression else open(path, "wb")  # noqa: SIM115

    def write(self, record: bytes) -> None:
        """Write one record."""
        self._file.write(as_record(record))

    def flush(self) -> None:
        """Write buffered records to the file."""
        self._file.flush()

    def close(self) -> None:
        """Close the file. Leaving a `with` block does the same."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
