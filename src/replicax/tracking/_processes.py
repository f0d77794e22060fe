"""`rx.on_first_process`: of many processes that run one program, one writes things down."""

from __future__ import annotations

import logging

import jax

from replicax._jax import backends_are_initialized
from replicax.topology import prepare_cpu_pool

__all__ = ["on_first_process"]


def on_first_process(record: logging.LogRecord | None = None) -> bool:
    """Whether this is the first of the processes that run this program together.

    It is a filter for loggers and handlers, too: with it, messages of the other processes are left out. A
    process that has joined no cluster, or not yet, is the first; asking does not start JAX.

    Args:
        record: the message that a logger asks about; which one it is makes no difference.

    >>> import logging
    >>> logger = logging.getLogger("my_training")
    >>> logger.addFilter(rx.on_first_process)      # logger.info(...) now comes from one process only
    >>> rx.on_first_process()
    True
    """
    del record
    if not backends_are_initialized() and not jax.distributed.is_initialized():
        return True
    prepare_cpu_pool()
    return jax.process_index() == 0
