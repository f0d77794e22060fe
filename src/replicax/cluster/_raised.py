"""`Raised`: an exception that can be sent to another process."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import final

__all__ = ["Raised"]


@final
@dataclass(frozen=True)
class Raised:
    """An exception of a user's function, and its traceback as text."""

    error: Exception
    traceback: str

    @classmethod
    def catch(cls, error: Exception) -> Raised:
        """Capture an exception without our frame; one that can't be pickled becomes a `RuntimeError`."""
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, frames))
        try:
            pickle.loads(pickle.dumps(error))  # many exceptions pickle fine but fail to unpickle
        except Exception:
            error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
        return cls(error, text)
