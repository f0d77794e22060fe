"""`rx.profile`: profiles the devices and Python in a part of a program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import jax

from replicax._jax import forget_profile
from replicax.topology import prepare_cpu_pool
from replicax.tracking._folders import make_folder
from replicax.tracking._processes import on_first_process

__all__ = ["profile"]


@contextlib.contextmanager
def profile(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Profile the devices and Python in a `with` block, on the first process.

    This uses JAX's profiler. View the profile with XProf (`pip install xprof`, `xprof --logdir FOLDER`), or
    open its `.trace.json.gz` at https://ui.perfetto.dev. Ten steps are enough. Device work is recorded only
    if it finishes inside the block, so wait for the last result there.

    Args:
        folder: where to write the profile, in a new subfolder each time; None records nothing.

    Raises:
        OSError: the folder is not writable, which is checked first, or the profile could not be written at
            the end.

    >>> import pathlib, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with rx.profile(folder):
    ...     _ = jax.block_until_ready(jnp.ones(3) + 1)
    >>> any(pathlib.Path(folder).rglob("*.xplane.pb"))
    True
    """
    if folder is None or not on_first_process():
        yield
        return
    path = os.fspath(folder)
    make_folder(f"rx.profile({path!r})", path)
    prepare_cpu_pool()  # the profiler starts JAX
    jax.profiler.start_trace(path)
    try:
        yield
    finally:
        _stop_trace(path)


def _stop_trace(folder: str) -> None:
    try:
        jax.profiler.stop_trace()
    except Exception as error:
        forget_profile()
        raise OSError(f"rx.profile({folder!r}) could not write the profile: {error}.") from error
