"""Grain's datasets and data loaders, which know their own position exactly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, final

from replicax.errors import InputError
from replicax.input._batch import Batch, WholeBatch
from replicax.input._source import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Reader, Source

__all__ = ["GrainReader", "grain_source"]

# Grain reports a length of at least this for a dataset that repeats forever.
_ENDLESS = 2**60


def grain_source(dataset: Any) -> Source | None:
    """The source of a Grain dataset or loader; None for anything else."""
    grain = sys.modules.get("grain")
    if grain is None:
        return None
    if isinstance(dataset, grain.MapDataset | grain.IterDataset):
        return _DatasetSource(dataset, is_map=isinstance(dataset, grain.MapDataset))
    return _LoaderSource(dataset) if isinstance(dataset, grain.DataLoader) else None


@final
class _DatasetSource(Source):
    kind = "grain dataset"

    def __init__(self, dataset: Any, *, is_map: bool) -> None:
        self._dataset, self._is_map = dataset, is_map

    @property
    def cardinality(self) -> int:
        if not self._is_map:
            return UNKNOWN_CARDINALITY
        if _filters(self._dataset):
            return UNKNOWN_CARDINALITY
        length = len(self._dataset)
        return INFINITE_CARDINALITY if length >= _ENDLESS else length

    def open(self, number: int) -> Reader:
        return GrainReader(iter(self._dataset))


def _filters(dataset: Any) -> bool:
    """Whether the dataset filters elements, which its length does not account for."""
    return "Filter" in type(dataset).__name__ or any(map(_filters, dataset.parents))


@final
class GrainReader(Reader):
    """One pass over a Grain dataset.

    Args:
        iterator: Grain's iterator.
        convert: makes a batch of what the iterator returns.
    """

    def __init__(self, iterator: Any, convert: Callable[[Any], Any] = lambda batch: batch) -> None:
        super().__init__()
        self._iterator, self._convert = iterator, convert

    def _read(self) -> Batch:
        return WholeBatch(self._convert(next(self._iterator)), private=False)

    def _bookmark(self) -> dict[str, Any]:
        return {"grain": self._iterator.get_state()}

    def _seek(self, position: dict[str, Any]) -> None:
        self._iterator.set_state(position["grain"])

    def close(self) -> None:
        self._iterator.close()


@final
class _LoaderSource(Source):
    kind = "grain loader"

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def open(self, number: int) -> Reader:
        return _LoaderReader(iter(self._loader))


@final
class _LoaderReader(Reader):
    """Like `GrainReader`, but states are bytes and the iterator has no `close`."""

    def __init__(self, iterator: Any) -> None:
        super().__init__()
        self._iterator: Any = iterator

    def _read(self) -> Batch:
        return WholeBatch(next(self._iterator), private=False)

    def _bookmark(self) -> dict[str, Any]:
        return {"grain_loader": self._iterator.get_state().decode()}

    def _seek(self, position: dict[str, Any]) -> None:
        try:
            self._iterator.set_state(position["grain_loader"].encode())
        except ValueError as error:
            raise InputError(f"The position does not match the Grain DataLoader: {error}") from error

    def close(self) -> None:
        inner: Any = getattr(self._iterator, "_iterator", None)
        self._iterator = iter(())
        if inner is not None and hasattr(inner, "close"):
            inner.close()
