"""`rx.on_first_process`: lets one process of a cluster do the logging for all."""

from __future__ import annotations

import logging

import jax

from replicax._jax import backends_are_initialized
from replicax.topology import prepare_cpu_pool

__all__ = ["on_first_process"]


def on_first_process(record: logging.LogRecord | None = None) -> bool:
    """Whether this is the first process of its cluster.

    You can use it as a filter for loggers and handlers, which then drop the messages of all other
    processes. A process that has not joined a cluster counts as the first. Calling this does not start JAX.

    Args:
        record: what a logger passes to its filters; ignored.

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
