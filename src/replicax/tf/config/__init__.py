"""`tf.config`: the devices of this process, and virtual CPU devices."""

from replicax.cluster import connect_to_cluster as experimental_connect_to_cluster
from replicax.tf._missing import refuse
from replicax.tf.config import experimental
from replicax.tf.config._devices import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
    list_logical_devices,
    list_physical_devices,
    set_logical_device_configuration,
)
from replicax.tf.config._eagerly import functions_run_eagerly, run_functions_eagerly

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "experimental",
    "experimental_connect_to_cluster",
    "functions_run_eagerly",
    "list_logical_devices",
    "list_physical_devices",
    "run_functions_eagerly",
    "set_logical_device_configuration",
]

__getattr__ = refuse(
    "tf.config",
    {
        "get_visible_devices": "`tf.config.list_logical_devices`",
        "experimental_connect_to_host": "`tf.config.experimental_connect_to_cluster`",
        "experimental_run_functions_eagerly": "`tf.config.run_functions_eagerly`",
        "get_soft_device_placement": "the names of devices that exist",
        "optimizer": "XLA_FLAGS",
        "set_soft_device_placement": "the names of devices that exist",
        "set_visible_devices": "CUDA_VISIBLE_DEVICES in the environment, or the `devices` of a strategy",
        "threading": "XLA_FLAGS",
    },
)
