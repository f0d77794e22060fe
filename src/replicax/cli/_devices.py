"""JAX's devices, or a one-line reason why JAX has none."""

from __future__ import annotations

import os
from typing import final

from replicax.errors import DeviceError
from replicax.topology import resolve_devices
from replicax.types import Device

__all__ = ["INSTALL_JAX", "NoDevicesError", "all_devices"]

_PAGE = "https://docs.jax.dev/en/latest/installation.html"
INSTALL_JAX = f"Install the JAX that fits your hardware: {_PAGE}"


@final
class NoDevicesError(DeviceError):
    """JAX has no devices; the message says why and what to do."""

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(f"{detail}. {advice}")
        self.detail = detail
        self.advice = advice


def all_devices() -> list[Device]:
    """The devices that JAX computes with.

    Raises:
        NoDevicesError: JAX can't start; the message mentions JAX_PLATFORMS if it is set.
    """
    try:
        return resolve_devices()
    except (AssertionError, RuntimeError) as error:  # JAX asserts that there is a device
        said = f": {' '.join(str(error).split()).removesuffix('.')}" if str(error) else ""
        if chosen := os.environ.get("JAX_PLATFORMS"):
            raise NoDevicesError(
                f"JAX_PLATFORMS is {chosen}, which JAX can't use here{said}",
                f"Unset JAX_PLATFORMS to use other devices, or install JAX for that platform: {_PAGE}",
            ) from error
        raise NoDevicesError(f"JAX could not start{said}", INSTALL_JAX) from error
