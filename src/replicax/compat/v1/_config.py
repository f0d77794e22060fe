"""A stand-in for `tf.compat.v1.ConfigProto`, for programs that call `update_config_proto`."""

from __future__ import annotations

import copy
from typing import Any, final

__all__ = ["ConfigProto", "updated_config"]


@final
class ConfigProto:
    """Settings of a TensorFlow session, as attributes. They have no effect: Replicax has no sessions.

    >>> from replicax.compat import v1
    >>> config = v1.ConfigProto(log_device_placement=True)
    >>> print(v1.MirroredStrategy(["CPU:0", "CPU:1"]).update_config_proto(config))
    log_device_placement: true
    isolate_session_state: true
    """

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {_text(value)}" for name, value in vars(self).items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigProto) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def updated_config(config_proto: Any) -> Any:
    """A copy of `config_proto` with `isolate_session_state` set."""
    if config_proto is None:
        raise AttributeError(
            "update_config_proto takes a ConfigProto and returns a changed copy; got None."
        )
    updated = copy.deepcopy(config_proto)
    updated.isolate_session_state = True
    return updated
