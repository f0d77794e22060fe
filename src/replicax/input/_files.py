"""`rx.from_files`: a list of files and a function that reads one of them.

Several pipelines can read different files (`AutoShardPolicy.FILE`).
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, final

import jax
import numpy as np

from replicax.errors import InputError, MissingFilesError, NotADatasetError
from replicax.input._batch import Batch, WholeBatch, check_batch_size
from replicax.input._missing import length, no_attribute
from replicax.input._source import UNKNOWN_CARDINALITY, GivesSource, NoFiles, Reader, Source

__all__ = ["FileDataset", "from_files"]

_Path = str | os.PathLike[str]


def from_files(paths: _Path | Sequence[_Path], reader: Callable[[str], Any]) -> FileDataset:
    r"""A dataset of the examples in files, one file after the other.

    Args:
        paths: the files, or a pattern such as "data/*.npz", which is expanded in alphabetical order.
        reader: called with the path of a file; returns its examples as an iterable, or as an object with
            `__len__` and `__getitem__` (such as `grain.sources.ArrayRecordDataSource`), which can be
            resumed in the middle of a file without reading up to that point. If you do not call `.batch`,
            the reader must return batches.

    Raises:
        MissingFilesError: a file does not exist, or no file matches the pattern.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for i in range(2):
    ...     _ = (folder / f"{i}.txt").write_text(f"{i}0\n{i}1\n{i}2\n")
    >>> dataset = rx.from_files(folder / "*.txt", np.loadtxt).batch(4)
    >>> [batch.tolist() for batch in dataset]
    [[0.0, 1.0, 2.0, 10.0], [11.0, 12.0]]
    """
    if not callable(reader):
        raise TypeError(f"rx.from_files needs a function that reads a file, got {reader!r}.")
    if isinstance(paths, str | os.PathLike):
        pattern = os.fspath(paths)
        found = sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise MissingFilesError(f"rx.from_files found no files for {pattern!r}.")
    else:
        found = [os.fspath(path) for path in paths]
        missing = [path for path in found if not os.path.exists(path)]
        if missing:
            raise MissingFilesError(f"rx.from_files: these files do not exist: {', '.join(missing)}.")
        if not found:
            raise MissingFilesError("rx.from_files got an empty list of files.")
    return FileDataset(tuple(found), reader)


@final
@dataclasses.dataclass(frozen=True)
class FileDataset(GivesSource):
    """The examples in files as a dataset; made by `rx.from_files`.

    >>> rx.from_files([__file__], lambda path: open(path)).paths == (__file__,)
    True
    """

    paths: tuple[str, ...]
    reader: Callable[[str], Any]
    batch_size: int | None = None
    drop_remainder: bool = False

    def batch(self, batch_size: int, drop_remainder: bool = False) -> FileDataset:
        """Combine examples into global batches, to be split over all replicas. A batch can span files.

        Args:
            batch_size: the number of examples in a batch.
            drop_remainder: drop the last batch if it is smaller.

        >>> numbers = rx.from_files([__file__], lambda path: range(5)).batch(2, drop_remainder=True)
        >>> [batch.tolist() for batch in numbers]
        [[0, 1], [2, 3]]
        """
        check_batch_size(batch_size, "FileDataset")
        if self.batch_size is not None:
            raise InputError(
                f"FileDataset.batch was called twice, first with {self.batch_size}. Call it once."
            )
        return dataclasses.replace(self, batch_size=int(batch_size), drop_remainder=bool(drop_remainder))

    def __len__(self) -> int:
        return length(self, UNKNOWN_CARDINALITY)

    def __bool__(self) -> bool:  # not the length
        return True

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute(self, name)

    def __iter__(self) -> Iterator[Any]:
        reader = self.source().open(0)
        try:
            while True:
                try:
                    batch = reader.read()
                except StopIteration:
                    return
                yield batch.treedef.unflatten(batch.leaves)
        finally:
            reader.close()

    def source(self) -> Source:
        """The source that a strategy reads."""
        return _FileSource(self)


@final
class _FileSource(Source):
    kind = "files"
    numbered = True

    def __init__(self, dataset: FileDataset) -> None:
        self._dataset = dataset
        self.batch_size = dataset.batch_size
        self.files = dataset.paths

    def open(self, number: int) -> Reader:
        return _FileReader(self._dataset)

    def of_files(self, num_shards: int, index: int) -> Source:
        if len(self.files) < num_shards:
            raise NoFiles(f"it has {len(self.files)} files for {num_shards} pipelines")
        paths = self._dataset.paths[index::num_shards]
        return _FileSource(dataclasses.replace(self._dataset, paths=paths))


@final
class _FileReader(Reader):
    """Reads one file after the other, and combines examples into batches."""

    def __init__(self, dataset: FileDataset) -> None:
        super().__init__()
        self._dataset = dataset
        self._file, self._index = 0, 0
        self._examples: Iterator[Any] | None = None
        self._opened: Any = None

    def _next_example(self) -> Any:
        while self._file < len(self._dataset.paths):
            if self._examples is None:
                self._examples = self._open(self._index)
            try:
                example = next(self._examples)
            except StopIteration:
                self._file, self._index = self._file + 1, 0
                self.close()
                continue
            self._index += 1
            return example
        raise StopIteration

    def _open(self, start: int) -> Iterator[Any]:
        path = self._dataset.paths[self._file]
        try:
            self._opened = examples = self._dataset.reader(path)
        except StopIteration as error:  # not the end of the examples
            raise RuntimeError(f"The reader of rx.from_files raised StopIteration for {path}.") from error
        if isinstance(examples, np.ndarray) and examples.ndim == 0:
            examples = examples[None]  # np.loadtxt returns a scalar for a file with one number
        if hasattr(examples, "__len__") and hasattr(examples, "__getitem__"):
            self._check_length(start, min(start, len(examples)), path)
            return (examples[i] for i in range(start, len(examples)))
        if not isinstance(examples, Iterable):
            raise NotADatasetError(
                f"The reader passed to rx.from_files must return an iterable of examples, but for {path!r} "
                f"it returned {examples!r}."
            )
        iterator = iter(examples)
        self._check_length(start, sum(1 for _ in itertools.islice(iterator, start)), path)
        return iterator

    def _check_length(self, start: int, found: int, path: str) -> None:
        if found < start:
            raise InputError(
                f"The position is after {start} examples of {path}, which has only {found}. Restore a "
                "position with the same files that it was saved with."
            )

    def _read(self) -> Batch:
        size = self._dataset.batch_size
        if size is None:
            return WholeBatch(self._next_example(), private=False)
        examples = []
        while len(examples) < size:
            try:
                # Copy: the reader may reuse its buffers.
                examples.append(jax.tree.map(np.array, self._next_example()))
            except StopIteration:
                break
        if not examples or (len(examples) < size and self._dataset.drop_remainder):
            raise StopIteration
        return WholeBatch(_stacked(examples), private=True)

    def _bookmark(self) -> dict[str, Any]:
        return {"file": self._file, "index": self._index}

    def _seek(self, position: dict[str, Any]) -> None:
        self._file, self._index, self._examples = int(position["file"]), int(position["index"]), None
        if not 0 <= self._file <= len(self._dataset.paths) or self._index < 0:
            raise InputError(
                f"The position is in file {self._file}, but the dataset has {len(self._dataset.paths)} "
                "files. Restore a position with the same files that it was saved with."
            )
        if self._file < len(self._dataset.paths):
            self._examples = self._open(self._index)

    def close(self) -> None:
        for opened in (self._examples, self._opened):
            close = getattr(opened, "close", None)
            if callable(close):
                close()
        self._examples = self._opened = None


def _stacked(examples: list[Any]) -> Any:
    try:
        return jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *examples)
    except ValueError as error:
        raise InputError(
            f"Examples can't be combined into a batch of {len(examples)}, because they differ in structure "
            f"or shape: {error}"
        ) from error
