"""The shortcuts in `quick_jax.py`: a program from the cache runs on the devices that asked for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests import quick_jax


@pytest.fixture
def misses():
    """The events of programs that were compiled because the cache did not have them."""
    events = []

    def listen(event, **_):
        if event == "/jax/compilation_cache/cache_misses":
            events.append(event)

    jax.monitoring.register_event_listener(listen)
    yield events
    jax.monitoring.unregister_event_listener(listen)


def test_one_device(pytestconfig, misses):
    program = jax.jit(lambda x: jnp.tanh(x) * 17.25)
    for device in jax.devices("cpu"):
        result = program(jax.device_put(np.float32(1), device))
        assert result.devices() == {device}
        assert float(result) == pytest.approx(17.25 * np.tanh(1))
    if not pytestconfig.getoption("--plain-jax"):
        assert len(misses) <= 1


def test_several_devices_in_any_order():
    devices = jax.devices("cpu")

    def shift(x):
        return lax.ppermute(x * 17.5, "axis", [(i, (i + 1) % 3) for i in range(3)])

    for order in ([0, 1, 2], [2, 0, 1], [7, 3, 5]):
        mesh = Mesh(np.asarray([devices[i] for i in order]), ("axis",))
        sharding = NamedSharding(mesh, PartitionSpec("axis"))
        program = jax.jit(
            jax.shard_map(shift, mesh=mesh, in_specs=PartitionSpec("axis"), out_specs=PartitionSpec("axis"))
        )
        result = program(jax.device_put(np.arange(3.0, dtype=np.float32), sharding))
        parts = {shard.device.id: float(shard.data[0]) for shard in result.addressable_shards}
        assert parts == {devices[i].id: 17.5 * ((k - 1) % 3) for k, i in enumerate(order)}


def test_a_context_is_used_for_a_limited_number_of_programs():
    made = []

    def make_context():
        made.append(object())
        return made[-1]

    make = quick_jax._share_contexts(make_context)
    contexts = [make() for _ in range(quick_jax.PROGRAMS_PER_CONTEXT + 1)]
    assert set(contexts[:-1]) == {made[0]} and contexts[-1] is made[1]
