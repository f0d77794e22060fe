"""Synchronous training on the cores of a TPU, with one or several cores per replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicax.cluster import TPUClusterResolver, warn_of_stand_ins
from replicax.collectives import Communicator, DefaultAllReduce
from replicax.errors import DeviceError
from replicax.strategies._answers import Answers
from replicax.strategies._mirrored import mirrored_layouts
from replicax.strategies._strategy import Strategy
from replicax.topology import REPLICA_AXIS, ReplicaMesh
from replicax.tpu import DeviceAssignment
from replicax.variables import PartitionRules

__all__ = ["TPUStrategy"]

_PARTITIONED = (
    "assign_to_logical_device: this TPUStrategy was made with experimental_spmd_xla_partitioning=True, so "
    "values can't be assigned to one device. Use split_to_logical_devices or "
    "replicate_to_logical_devices, or leave out the flag."
)


class TPUStrategy(Strategy):
    """A replica on each core of a TPU, or on each group of cores, with a copy of every variable.

    With a `DeviceAssignment`, a replica has several cores, its *logical devices*. Its variables are
    replicated over them unless they have a partition; use a partition or `split_to_logical_devices` to
    spread a computation over the cores.

    If JAX has no TPU, its other devices are used in place of the cores, with a warning in the `replicax`
    log. So this is also a strategy for replicas with several GPUs.

    Args:
        tpu_cluster_resolver: a `TPUClusterResolver`; by default, this process's TPU.
        experimental_device_assignment: the cores of each replica; by default, one core per replica.
        experimental_spmd_xla_partitioning: XLA partitions the programs of replicas with several cores in
            either case. True also makes `assign_to_logical_device` an error, as TensorFlow's flag does.
        partition_rules: partitions for variables by name; see `MirroredStrategy`.
        axis_name: the name of the replica axis in `jax.lax.pmean(x, axis_name)` and similar functions.

    Raises:
        DeviceError: a replica has cores of several processes.

    >>> topology = rx.Topology()
    >>> assignment = rx.DeviceAssignment.build(topology, computation_shape=[1, 1, 1, 2], num_replicas=4)
    >>> strategy = rx.TPUStrategy(experimental_device_assignment=assignment)
    >>> strategy
    TPUStrategy([['CPU:0', 'CPU:1'], ['CPU:2', 'CPU:3'], ['CPU:4', 'CPU:5'], ['CPU:6', 'CPU:7']])
    >>> with strategy.scope():
    ...     w = rx.Variable(jnp.ones((4, 3)))
    >>> @rx.function
    ... def step(x):
    ...     def replica_fn(x):
    ...         x = strategy.split_to_logical_devices(x, [1, 2])
    ...         return x @ w
    ...     return strategy.gather(strategy.run(replica_fn, args=(x,)), axis=0)
    >>> batch = strategy.distribute_values_from_function(lambda ctx: jnp.ones((2, 4)))
    >>> step(batch).shape
    (8, 3)
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        experimental_device_assignment: DeviceAssignment | None = None,
        experimental_spmd_xla_partitioning: bool = False,
        *,
        partition_rules: Mapping[str, Sequence[int]] | None = None,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        resolver = TPUClusterResolver("local") if tpu_cluster_resolver is None else tpu_cluster_resolver
        if not isinstance(resolver, TPUClusterResolver):
            raise TypeError(f"TPUStrategy takes a TPUClusterResolver, got {resolver!r}.")
        assignment = experimental_device_assignment
        if not isinstance(assignment, DeviceAssignment | None):
            raise TypeError(
                "TPUStrategy(experimental_device_assignment=...) takes a DeviceAssignment, got "
                f"{assignment!r}."
            )
        replicas = [(device,) for device in resolver.devices] if assignment is None else assignment.devices
        for i, row in enumerate(replicas):
            if len({device.process_index for device in row}) > 1:
                raise DeviceError(
                    f"TPUStrategy: replica {i} would have cores of several processes: {row}. Choose a "
                    "smaller computation_shape, so that each replica fits on one host."
                )
        warn_of_stand_ins(replicas[0])
        communicator = Communicator(ReplicaMesh(replicas, axis_name), DefaultAllReduce())
        super().__init__(
            Answers(
                communicator,
                mirrored_layouts(communicator),
                cluster_resolver=resolver,
                partition_rules=PartitionRules(partition_rules),
                why_not_assignable=_PARTITIONED if experimental_spmd_xla_partitioning else None,
            )
        )
