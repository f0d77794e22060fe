"""Older APIs of `tf.distribute`; the core does not import them."""
