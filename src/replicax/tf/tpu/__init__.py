"""`tf.tpu`."""

from replicax.tf.tpu import experimental

__all__ = ["experimental"]
