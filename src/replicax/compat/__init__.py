"""Older surfaces of `tf.distribute`, at the edge: nothing in Replicax imports them."""
