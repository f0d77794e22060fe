"""`tf.keras.layers.StringLookup`, and functional models whose inputs are strings.

JAX has no strings, and Keras' own layer needs TensorFlow. This one looks them up in a dict on the host, for
example in `dataset.map`. Functional models with an `Input` of strings, which ported programs use to
preprocess a dataset, run on the host, too.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.models.functional import Functional

__all__ = ["Input", "StringLookup"]

_STRING = "string"


def Input(*args: Any, dtype: Any = None, **options: Any) -> Any:
    """`keras.Input`, which also takes `dtype=tf.string`.

    >>> from replicax import tf
    >>> tf.keras.Input((3,), dtype=tf.string).dtype
    'string'
    """
    is_text = dtype is not None and dtype in (str, np.dtype(object))
    return keras.Input(*args, dtype=_STRING if is_text else dtype, **options)


class StringLookup(keras.layers.Layer):
    """Maps strings to their index in a vocabulary, on the host with NumPy.

    The mask token, if there is one, has index 0. The next index is for all unknown strings, unless
    `num_oov_indices` is 0. The vocabulary follows.

    Args:
        max_tokens: the maximum size of the vocabulary, including the mask token and the unknown token.
        num_oov_indices: 1 maps unknown strings to an index; 0 raises an error for them.
        mask_token: the string that stands for padding, if any.
        oov_token: what `get_vocabulary()` and `invert` show for unknown strings.
        vocabulary: the strings, or the path of a file with one on each line; None if `adapt` finds them.
        invert: map indices to strings instead.
        output_mode: "int"; for others, apply `keras.layers.CategoryEncoding` to the numbers.
        encoding: the encoding of strings that are given as bytes.
        options: the options of any layer, such as `name`.

    >>> from replicax import tf
    >>> lookup = tf.keras.layers.StringLookup(vocabulary=["a", "b"])
    >>> lookup([["b", "a"], ["c", "b"]])
    array([[2, 1],
           [0, 2]])
    >>> dataset = tf.data.Dataset.from_tensor_slices(["a", "z"]).map(lookup)
    >>> [int(number) for number in dataset]
    [1, 0]
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Any = None,
        *,
        invert: bool = False,
        output_mode: str = "int",
        encoding: str = "utf-8",
        **options: Any,
    ) -> None:
        if num_oov_indices not in (0, 1):
            raise NotImplementedError(
                f"StringLookup(num_oov_indices={num_oov_indices!r}): pass 1, so that all unknown strings "
                "have the same number, or 0, so that they are an error."
            )
        if output_mode != "int":
            raise NotImplementedError(
                f"StringLookup(output_mode={output_mode!r}): it returns numbers, 'int'. Apply "
                "`keras.layers.CategoryEncoding(lookup.vocabulary_size(), output_mode)` to them."
            )
        super().__init__(**options)
        self.max_tokens, self.num_oov_indices = max_tokens, num_oov_indices
        self.mask_token, self.oov_token = mask_token, oov_token
        self.invert, self.encoding = invert, encoding
        self._convert_input_args = False
        self._table = _Table(())
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    # The vocabulary.

    def set_vocabulary(self, vocabulary: Any) -> None:
        """Replace the vocabulary.

        Args:
            vocabulary: the strings, with or without the mask token and the one for unknown strings at the
                beginning; or the path of a file with one on each line.
        """
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = Path(vocabulary).read_text(self.encoding).splitlines()
        words = [self._text(word) for word in np.asarray(vocabulary, object).reshape(-1)]
        special = self._special()
        words = words[len(special) :] if special and words[: len(special)] == special else words
        repeated = [word for word, count in Counter([*special, *words]).items() if count > 1]
        if repeated:
            raise ValueError(
                f"The vocabulary of {self.name!r} repeats {repeated[:5]}. Pass every string once. Special "
                f"tokens, here {special}, may only be its beginning."
            )
        size = len(special) + len(words)
        if self.max_tokens is not None and size > self.max_tokens:
            raise ValueError(
                f"The vocabulary of {self.name!r} has {size} strings, with special ones, but "
                f"max_tokens={self.max_tokens}."
            )
        self._table = _Table((*special, *words))

    def adapt(self, data: Any) -> None:
        """Find the vocabulary in data: the most frequent strings first.

        Args:
            data: strings, or a dataset of them.

        >>> from replicax import tf
        >>> lookup = tf.keras.layers.StringLookup()
        >>> lookup.adapt(["b", "a", "b"])
        >>> lookup.get_vocabulary()
        ['[UNK]', 'b', 'a']
        """
        special, counts = self._special(), Counter[str]()
        parts: Iterable[Any] = [data] if isinstance(data, list | tuple | np.ndarray) else data
        for part in parts:
            counts.update(map(self._text, np.asarray(part, object).reshape(-1)))
        words = sorted(counts, key=lambda word: (counts[word], word), reverse=True)
        words = [word for word in words if word not in special]
        self.set_vocabulary(words if self.max_tokens is None else words[: self.max_tokens - len(special)])

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """The strings, ordered by index."""
        first = 0 if include_special_tokens else len(self._special())
        return list(self._table.words[first:])

    def vocabulary_size(self) -> int:
        """The number of indices, including those of special tokens."""
        return len(self._table.words)

    def _special(self) -> list[str]:
        mask = [] if self.mask_token is None else [self.mask_token]
        return mask + [self.oov_token] * self.num_oov_indices

    def _text(self, word: Any) -> str:
        return word.decode(self.encoding) if isinstance(word, bytes) else str(word)

    # Looking up.

    def __call__(self, inputs: Any) -> Any:
        """Numbers for strings, or an output for a functional model."""
        return super().__call__(inputs) if isinstance(inputs, keras.KerasTensor) else self.call(inputs)

    def call(self, inputs: Any) -> Any:
        """Numbers for strings, or strings for numbers."""
        if not self._table.words:
            raise ValueError(
                f"The layer {self.name!r} has no vocabulary. Pass `vocabulary=`, or call `adapt` first."
            )
        given = np.asarray(inputs) if self.invert else np.asarray(inputs, object)
        find = self._word if self.invert else self._number
        return np.array([find(x) for x in given.reshape(-1)], self._dtype()).reshape(given.shape)

    def _number(self, word: Any) -> int:
        text = self._text(word)
        number = self._table.numbers.get(text)
        if number is not None:
            return number
        if not self.num_oov_indices:
            raise ValueError(
                f"{text!r} is not in the vocabulary of {self.name!r}, and num_oov_indices is 0. With "
                "num_oov_indices=1, unknown strings have a number."
            )
        return len(self._special()) - 1

    def _word(self, number: Any) -> str:
        words = self._table.words
        return words[number] if 0 <= number < len(words) else self.oov_token

    def _dtype(self) -> Any:
        return object if self.invert else np.int64

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and dtype of what a functional model gets."""
        return keras.KerasTensor(inputs.shape, _STRING if self.invert else "int64")

    def get_config(self) -> dict[str, Any]:
        """The arguments that recreate this layer."""
        names = ("max_tokens", "num_oov_indices", "mask_token", "oov_token", "invert", "encoding")
        own = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **own, "vocabulary": self.get_vocabulary() or None}


class _Table:
    """Strings and their indices; not a dict, which Keras would track."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        self.numbers = {word: number for number, word in enumerate(words)}


def _running_on_host(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a functional model with string inputs run on the host, on a batch or on one example."""

    @functools.wraps(call)
    def call_on_host(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(x.dtype == _STRING for x in self.inputs) or len(args) != 1:
            return call(self, *args, **kwargs)
        given = keras.tree.flatten(args[0])
        if any(isinstance(x, keras.KerasTensor) for x in given):
            return call(self, *args, **kwargs)
        if len(given) != len(self.inputs):
            raise ValueError(f"The model {self.name!r} takes {len(self.inputs)} inputs, got {len(given)}.")
        arrays = [_like(x, reference) for x, reference in zip(given, self.inputs, strict=True)]
        found = self._run_through_graph(arrays)
        return found[0] if isinstance(found, list) and len(found) == 1 else found

    return call_on_host


def _like(value: Any, reference: Any) -> Any:
    """Convert an input to an array; like Keras, add or remove a last axis of size 1."""
    array = np.asarray(value, object) if reference.dtype == _STRING else np.asarray(value)
    more = len(reference.shape) - array.ndim
    if more == 1 and reference.shape[-1] == 1:
        return array[..., np.newaxis]
    return array[..., 0] if more == -1 and array.shape[-1] == 1 else array


# Here, so that it also happens in a worker that unpickles a layer.
Functional.__call__ = _running_on_host(Functional.__call__)
