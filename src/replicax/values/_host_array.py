"""Arrays of a batch that stay in host memory: strings, and whatever the user leaves there."""

from __future__ import annotations

from typing import Any, final

import numpy as np

__all__ = ["HostArray"]


@final
class HostArray(np.ndarray):
    """A NumPy array with the method `numpy()`, which TensorFlow's tensors have.

    >>> from replicax.values import HostArray
    >>> batch = np.array([b"ab", b"c"], object).view(HostArray)
    >>> [word.decode() for word in batch.numpy()]
    ['ab', 'c']
    >>> np.array(b"ab", object).view(HostArray).numpy()
    b'ab'
    """

    def numpy(self) -> Any:
        """The array as a plain NumPy array; a string array without axes as the string."""
        return self.item() if self.ndim == 0 and self.dtype.kind in "OSU" else self.view(np.ndarray)
