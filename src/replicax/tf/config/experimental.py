"""`tf.config.experimental`: older names, and memory that grows."""

from __future__ import annotations

import logging
import os
from typing import Any

from replicax._jax import backends_are_initialized
from replicax.tf._missing import refuse
from replicax.tf.config._devices import (
    LogicalDeviceConfiguration as VirtualDeviceConfiguration,
)
from replicax.tf.config._devices import list_logical_devices, list_physical_devices
from replicax.tf.config._devices import (
    set_logical_device_configuration as set_virtual_device_configuration,
)

__all__ = [
    "VirtualDeviceConfiguration",
    "list_logical_devices",
    "list_physical_devices",
    "set_memory_growth",
    "set_virtual_device_configuration",
]

_logger = logging.getLogger("replicax")


def set_memory_growth(device: Any, enable: bool) -> None:
    """Let JAX take the memory of all GPUs as it needs it: sets XLA_PYTHON_CLIENT_PREALLOCATE.

    Once JAX has started, which looking for GPUs does, it is too late, and a warning in the log says so.

    Args:
        device: one of `list_physical_devices`; JAX makes no difference between them.
        enable: True to let it grow; False, JAX's own way, takes most of it at once.
    """
    setting = "false" if enable else "true"
    if backends_are_initialized() and os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") != setting:
        _logger.warning(
            "tf.config.experimental.set_memory_growth came too late: JAX has started. Start Python with "
            "XLA_PYTHON_CLIENT_PREALLOCATE=%s.",
            setting,
        )
        return
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = setting


__getattr__ = refuse("tf.config.experimental", {})
