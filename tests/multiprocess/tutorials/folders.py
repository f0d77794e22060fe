"""Where a worker writes: the chief into the folder that counts, all others into one of their own."""

import os

from tests.multiprocess.tutorials.namespace import tf


def is_chief(resolver):
    """Whether this task is the chief: one of that name, or else worker 0."""
    if resolver.task_type in (None, "chief"):
        return True
    named = "chief" in resolver.cluster_spec().as_dict()
    return resolver.task_type == "worker" and resolver.task_id == 0 and not named


def path_to_write(path, resolver):
    """`path` for the chief, a path in a folder of this worker for others."""
    if is_chief(resolver):
        return path
    folder = os.path.join(os.path.dirname(path), f"workertemp_{resolver.task_id}")
    tf.io.gfile.makedirs(folder)
    return os.path.join(folder, os.path.basename(path))
