"""`tf.get_logger`."""

import logging

__all__ = ["get_logger"]


def get_logger() -> logging.Logger:
    """Replicax's logger.

    >>> from replicax import tf
    >>> tf.get_logger().name
    'replicax'
    """
    return logging.getLogger("replicax")
