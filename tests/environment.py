"""The environment of the programs that tests start.

They do not inherit the devices of the process that starts them. They do inherit its other XLA flags: under
`make test` they compile as quickly as the tests.
"""

import os
import re

__all__ = ["of_programs", "xla_flags"]

_DEVICES = ("PJRT_NPROC", "NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=\d+")


def of_programs(**settings):
    inherited = {name: value for name, value in os.environ.items() if name not in _DEVICES}
    return inherited | {"XLA_FLAGS": xla_flags()} | settings


def xla_flags():
    """The XLA flags of this process that do not concern its devices."""
    return _DEVICE_COUNT.sub("", os.environ.get("XLA_FLAGS", "")).strip()
