"""Strategies by name, and a look at what a variable and a checkpoint hold."""

import numpy as np

import replicax as rx

ON_READ = rx.VariableSynchronization.ON_READ
SUM, MEAN = rx.VariableAggregation.SUM, rx.VariableAggregation.MEAN
FIRST, NONE = rx.VariableAggregation.ONLY_FIRST_REPLICA, rx.VariableAggregation.NONE


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


STRATEGIES = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "mirrored1": lambda: mirrored(1),
    "mirrored2": lambda: mirrored(2),
    "mirrored3": lambda: mirrored(3),
    "mirrored8": lambda: mirrored(8),
}


def variable(strategy, value, **options):
    with strategy.scope():
        return rx.Variable(value, **options)


def copies(strategy, v):
    """The value of every copy."""
    return [np.asarray(copy.read_value()) for copy in strategy.local_results(v)]


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def identical(actual, expected):
    """Equal in dtype, shape and every bit."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()
