"""`tf.config.experimental`: older names, and memory growth."""

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
    """Make JAX allocate GPU memory as needed: sets XLA_PYTHON_CLIENT_PREALLOCATE for all GPUs.

    Once JAX is initialized, for example by listing GPUs, this only logs a warning.

    Args:
        device: one of `list_physical_devices`; the setting applies to all of them.
        enable: True allocates memory as needed; False, JAX's default, preallocates most of it.
    """
    setting = "false" if enable else "true"
    if backends_are_initialized() and os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") != setting:
        _logger.warning(
            "tf.config.experimental.set_memory_growth has no effect: JAX is already initialized. Start "
            "Python with XLA_PYTHON_CLIENT_PREALLOCATE=%s.",
            setting,
        )
        return
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = setting


_PRECISION = "`jax.default_matmul_precision`"
_VISIBLE = "CUDA_VISIBLE_DEVICES in the environment, or the `devices` of a strategy"
_MEMORY = "`jax.devices()[0].memory_stats()`"

__getattr__ = refuse(
    "tf.config.experimental",
    {
        "enable_op_determinism": "XLA_FLAGS=--xla_gpu_deterministic_ops=true, on GPUs",
        "enable_tensor_float_32_execution": _PRECISION,
        "get_device_details": "`jax.devices()[0].device_kind`",
        "get_memory_growth": "XLA_PYTHON_CLIENT_PREALLOCATE in the environment",
        "get_memory_info": _MEMORY,
        "get_memory_usage": _MEMORY,
        "get_visible_devices": "`tf.config.list_logical_devices`",
        "reset_memory_stats": _MEMORY,
        "set_synchronous_execution": "`jax.block_until_ready`",
        "set_visible_devices": _VISIBLE,
        "tensor_float_32_execution_enabled": _PRECISION,
    },
)
