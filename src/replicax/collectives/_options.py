"""Options of collectives: the algorithm, the size of packs, and a time limit."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, final

__all__ = [
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "merge_options",
]


@final
class CommunicationImplementation(enum.Enum):
    """The algorithm of a collective.

    AUTO leaves the choice to XLA (NCCL on GPUs). RING passes chunks from replica to replica, on any
    backend. NCCL requires NVIDIA's library, and raises an error without GPUs.

    >>> rx.CommunicationImplementation("RING")
    <CommunicationImplementation.RING: 'RING'>
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"

    @classmethod
    def _missing_(cls, value: object) -> CommunicationImplementation | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


@final
@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Options of one collective, or of all collectives of a strategy.

    Args:
        bytes_per_pack: reduce values in packs of at most this size; 0 chooses by backend (small values are
            packed on CPU; on GPU and TPU, XLA combines them).
        timeout_seconds: block until the result is computed, and raise `CollectiveTimeoutError` if that
            takes longer. None does not block. In a compiled step the limit covers the whole step.
        implementation: a `CommunicationImplementation` or its name.

    >>> rx.CommunicationOptions(bytes_per_pack=1 << 20, implementation="ring")
    CommunicationOptions(bytes_per_pack=1048576, timeout_seconds=None, implementation=RING)
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        """Check the fields and parse the implementation's name."""
        if isinstance(self.bytes_per_pack, bool) or not isinstance(self.bytes_per_pack, int):
            raise TypeError(f"bytes_per_pack must be an int, got {self.bytes_per_pack!r}.")
        if self.bytes_per_pack < 0:
            raise ValueError(f"bytes_per_pack must be 0 (automatic) or more, got {self.bytes_per_pack}.")
        if not isinstance(self.timeout_seconds, int | float | None):
            raise TypeError(f"timeout_seconds must be a number or None, got {self.timeout_seconds!r}.")
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise ValueError(
                f"timeout_seconds must be positive, got {self.timeout_seconds}. Pass None for no limit."
            )
        implementation = CommunicationImplementation(self.implementation)
        object.__setattr__(self, "implementation", implementation)

    def __repr__(self) -> str:
        return (
            f"CommunicationOptions(bytes_per_pack={self.bytes_per_pack}, "
            f"timeout_seconds={self.timeout_seconds}, implementation={self.implementation.name})"
        )


def CollectiveHints(bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> CommunicationOptions:
    """The older name of `CommunicationOptions`.

    >>> rx.CollectiveHints(bytes_per_pack=1024)
    CommunicationOptions(bytes_per_pack=1024, timeout_seconds=None, implementation=AUTO)
    """
    return CommunicationOptions(bytes_per_pack, timeout_seconds)


def merge_options(options: Any, experimental_hints: Any) -> CommunicationOptions:
    """Whichever of the two arguments was given, or the defaults."""
    if options is not None and experimental_hints is not None:
        raise ValueError("`options` and `experimental_hints` are the same argument: pass only one of them.")
    chosen = experimental_hints if options is None else options
    if chosen is None:
        return CommunicationOptions()
    if not isinstance(chosen, CommunicationOptions):
        raise TypeError(
            f"options must be an rx.CommunicationOptions, got {type(chosen).__name__} {chosen!r}."
        )
    return chosen
