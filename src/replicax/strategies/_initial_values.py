"""Initial values of variables across processes: all processes use the first one's values.

For each new variable the processes exchange its name, shape and dtype, and a digest of its initial value.
Usually the values are equal, because all processes use the same seed, and nothing else is sent. Small
values that differ are included in the message. Only larger ones need a collective, which sends their bits.
"""

from __future__ import annotations

import base64
import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import outside_of_traces
from replicax.cluster import Collective
from replicax.collectives import Communicator, order_of
from replicax.values import PerReplica
from replicax.variables import VariableSpec

__all__ = ["of_first_process"]

_SMALL_BYTES = 2048
_LARGEST_STEP = 1 << 20


def of_first_process(communicator: Communicator, spec: VariableSpec, value: jax.Array) -> jax.Array:
    """The first process's `value`; every process passes its own and gets the first one's.

    Raises:
        CollectiveMismatchError: another process creates a different variable.
    """
    mesh = communicator.mesh
    own = np.asarray(value)
    bits = own.tobytes()
    small = base64.b64encode(bits).decode() if len(bits) <= _SMALL_BYTES else None
    message = [hashlib.blake2b(bits, digest_size=16).hexdigest(), small]
    shape = ",".join(map(str, spec.shape))
    what = Collective(f"variable {spec.name!r}", f"{spec.dtype}[{shape}]", spec.made_at)
    with order_of(mesh).turn(what, message) as received:
        first = received[mesh.processes.index(mesh.replica_devices[0][0].process_index)]
        if all(digest == first[0] for digest, _ in received):
            return value
        if first[1] is not None:
            bits = base64.b64decode(first[1])
        else:
            bits = _broadcast(communicator, bits)
    return jnp.asarray(np.frombuffer(bits, own.dtype).reshape(own.shape))


def _broadcast(communicator: Communicator, bits: bytes) -> bytes:
    """The first process's `bits`, padded to one of a few sizes; each size is compiled once."""
    words = np.zeros(_rounded_up(-(-len(bits) // 4)), np.uint32)
    words.view(np.uint8)[: len(bits)] = np.frombuffer(bits, np.uint8)
    # The variable may be created while a step is traced; the broadcast is not part of that trace.
    with outside_of_traces():
        held = PerReplica([words] * len(communicator.mesh.local_replica_ids), mesh=communicator.mesh)
        sent = np.asarray(communicator.first([held])[0].to_plain())
    return sent.view(np.uint8)[: len(bits)].tobytes()


def _rounded_up(count: int) -> int:
    """The next power of two; for large arrays, the next multiple of a megaword."""
    return (
        1 << (count - 1).bit_length()
        if count < _LARGEST_STEP
        else -(-count // _LARGEST_STEP) * _LARGEST_STEP
    )
