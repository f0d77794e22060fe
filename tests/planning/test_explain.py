"""`rx.explain`: what it says is what XLA says of the program that runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.planning.helpers import HIDDEN, NUM_PARAMETERS, ROWS, WIDTH, batch_for, make_step

import replicax as rx
from replicax._jax import planned_cpu_devices
from replicax.errors import ContextError
from replicax.planning import _plan

DEVICES = [f"CPU:{i}" for i in range(8)]
STRATEGIES = {
    "mirrored": rx.MirroredStrategy,
    "optimizer": lambda devices: rx.ShardedStrategy(devices, shard="optimizer", min_shard_bytes=1024),
    "all": lambda devices: rx.ShardedStrategy(devices, shard="all", min_shard_bytes=1024),
}
SPEC = rx.PerReplicaSpec(rx.TensorSpec([ROWS, WIDTH]))


@pytest.fixture
def no_spare_devices(monkeypatch):
    """Compile for devices of another client, as on a machine without them."""
    monkeypatch.setattr(_plan, "_devices", lambda platform, count: planned_cpu_devices(count))


@pytest.mark.parametrize("shard", STRATEGIES)
def test_numbers_are_those_of_the_compiled_program(shard):
    strategy = STRATEGIES[shard](DEVICES[:2])
    step, _, _ = make_step(strategy)
    with strategy.scope():
        found = rx.explain(step, SPEC, compare=False)
    compiled = step.lower(batch_for(strategy)).compile()
    memory = compiled.memory_analysis()
    assert found.memory.state + found.memory.arguments == memory.argument_size_in_bytes
    assert found.memory.temporaries == memory.temp_size_in_bytes
    assert found.memory.results == memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert found.memory.arguments == ROWS * WIDTH * 4
    assert found.flops == compiled.cost_analysis()["flops"] > 0
    parts = 1 if shard == "mirrored" else 2
    assert found.memory.optimizer == pytest.approx(2 * NUM_PARAMETERS * 4 / parts, abs=64)
    assert found.memory.parameters == pytest.approx(
        NUM_PARAMETERS * 4 / (2 if shard == "all" else 1), abs=64
    )
    assert found.shard == shard


@pytest.mark.usefixtures("no_spare_devices")
def test_a_prediction_for_8_devices_made_with_2_is_what_8_devices_compile_to():
    strategy, wide = rx.MirroredStrategy(DEVICES[:2]), STRATEGIES["all"](DEVICES)
    step, _, _ = make_step(strategy)
    strategy.answers.__dict__["min_shard_bytes"] = 1024
    predicted = rx.explain(step, batch_for(strategy), num_replicas=8, shard="all")
    wide_step, _, _ = make_step(wide)
    actual = rx.explain(wide_step, batch_for(wide))
    for this, that in zip(predicted.settings, actual.settings, strict=True):
        assert this.memory == that.memory
        assert this.flops == that.flops
        assert sorted(_facts(this)) == sorted(_facts(that))
    compiled = wide_step.lower(batch_for(wide)).compile()
    assert predicted.memory.temporaries == compiled.memory_analysis().temp_size_in_bytes
    assert [v.holders for v in predicted.variables] == [v.holders for v in actual.variables]


def _facts(effect):
    return [(c.kind, c.bytes, c.axis, c.times, c.num_devices) for c in effect.collectives]


def test_explaining_changes_nothing():
    strategy = rx.MirroredStrategy(DEVICES[:2])
    step, params, optimizer = make_step(strategy)
    batch = batch_for(strategy)
    explained = rx.explain(step, batch, num_replicas=64)
    assert explained.num_replicas == explained.num_devices == 64
    assert strategy.num_replicas_in_sync == 2
    assert step.num_programs == 0
    other_step, _, _ = make_step(rx.MirroredStrategy(DEVICES[:2]))
    assert [float(step(batch)) for _ in range(2)] == [float(other_step(batch)) for _ in range(2)]
    assert isinstance(params["hidden"], rx.MirroredVariable)
    assert int(optimizer.iterations) == 2


def test_collectives_have_kind_size_axis_and_line():
    strategy = STRATEGIES["all"](DEVICES[:4])
    step, _, _ = make_step(strategy)
    found = rx.explain(step, batch_for(strategy), compare=False)
    matrix = WIDTH * HIDDEN * 4
    gathers = [c for c in found.collectives if c.kind == "all-gather"]
    assert {(c.bytes, c.axis, c.times, c.num_devices) for c in gathers} == {(matrix, "replica", 1, 4)}
    with open(__file__.replace("test_explain", "helpers")) as file:
        lines = file.read().splitlines()
    used = {lines[int(c.line.rpartition(":")[2]) - 1].strip() for c in gathers}
    assert any('x @ params["hidden"]' in line for line in used)
    assert any('hidden @ params["out"]' in line for line in used)
    (scatter, _) = [c for c in found.collectives if c.kind == "reduce-scatter"]
    assert scatter.bytes == matrix
    assert scatter.bytes_sent == matrix * 3 // 4
    assert lines[int(scatter.line.rpartition(":")[2]) - 1].strip().startswith("optimizer.apply_gradients")


def test_a_collective_in_a_loop_counts_for_each_iteration():
    strategy = rx.MirroredStrategy(DEVICES[:2])

    @rx.function
    def step(x):
        def replica_step(x):
            sums = lambda total, _: (jax.lax.psum(total, strategy.axis_name) / 2, None)  # noqa: E731
            return jax.lax.scan(sums, x, None, length=5)[0]

        return strategy.run(replica_step, args=(x,))

    with strategy.scope():
        found = rx.explain(step, rx.PerReplicaSpec(rx.TensorSpec([8])))
    assert [(c.kind, c.bytes, c.times) for c in found.collectives] == [("all-reduce", 32, 5)]
    assert found.settings[0].bytes_sent == 5 * 32


def test_the_effect_of_other_settings():
    strategy = rx.MirroredStrategy(DEVICES)
    step, _, _ = make_step(strategy)
    found = rx.explain(step, batch_for(strategy))
    mirrored, optimizer, everything = found.settings
    assert [e.shard for e in found.settings] == ["mirrored", "optimizer", "all"]
    assert found.memory == mirrored.memory
    assert optimizer.memory.optimizer == pytest.approx(mirrored.memory.optimizer / 8, rel=0.05)
    assert everything.memory.parameters == pytest.approx(mirrored.memory.parameters / 8, rel=0.05)
    assert mirrored.bytes_sent == pytest.approx(optimizer.bytes_sent, rel=0.05)
    assert everything.bytes_sent > 1.2 * mirrored.bytes_sent


def test_how_a_variable_is_divided():
    strategy = rx.ShardedStrategy(DEVICES[:3], min_shard_bytes=1)
    with strategy.scope():
        v = rx.Variable(jnp.zeros((5, 7)), name="v")
    (use,) = rx.explain(lambda: strategy.run(lambda: v + 1)).variables
    assert (use.name, use.shape, use.padded_shape, use.parts) == ("v:0", (5, 7), (5, 9), (1, 3))
    assert use.holders == (0, 1, 2)
    assert use.bytes == 5 * 3 * 4
    assert use.kind == "parameters"


def test_replicas_with_several_devices_share_the_memory_of_the_machine():
    strategy = rx.MirroredStrategy(DEVICES[:4], logical_devices=2)
    with strategy.scope():
        v = rx.Variable(jnp.zeros((4, 8)), name="v", partition=[1, 2])
        found = rx.explain(lambda: strategy.run(lambda: v + 1), compare=False)
        alone = rx.explain(lambda: jnp.ones(3))
    assert found.mesh_shape == {"replica": 2, "logical_0": 2}
    assert found.variables[0].parts == (1, 2)
    assert found.variables[0].holders == (0, 1, 0, 1)
    assert found.device_memory == alone.device_memory // 4


def test_shapes_in_place_of_arrays_and_constants():
    v = rx.Variable(jnp.zeros(10))

    @rx.function
    def step(x, *, factor, flag):
        v.assign_add(x["a"] * factor)
        return v + 1 if flag else v

    spec = {"a": jax.ShapeDtypeStruct((10,), jnp.float32)}
    by_spec = rx.explain(step, spec, factor=jnp.float32(2), flag=True)
    by_array = rx.explain(step, {"a": np.ones(10, np.float32)}, factor=jnp.float32(2), flag=True)
    assert by_spec == by_array
    assert by_spec.memory.arguments == 44
    assert by_spec.num_devices == 1
    assert by_spec.collectives == ()


def test_a_padded_batch_keeps_its_mask():
    strategy = rx.MirroredStrategy(DEVICES[:2])
    rows = np.ones((6, WIDTH), np.float32)
    dataset = strategy.distribute_dataset(
        rx.from_arrays(rows).batch(4), rx.InputOptions(partial_batch="pad")
    )
    *_, last = dataset
    step, _, _ = make_step(strategy)
    assert last.mask is not None
    found = rx.explain(step, last, num_replicas=4, compare=False)
    assert found.memory.arguments == 2 * WIDTH * 4 + 2  # and a byte of the mask for each row


def test_a_model_with_many_variables_on_64_devices():
    strategy = rx.MirroredStrategy(DEVICES[:2])
    with strategy.scope():
        weights = [rx.Variable(jnp.zeros((64, 64)), name=f"w{i}", aggregation="MEAN") for i in range(100)]

    def replica_step(x):
        for w in weights:
            w.assign(w + x)

    step = rx.function(lambda x: strategy.run(replica_step, args=(x,)))
    with strategy.scope():
        spec = rx.PerReplicaSpec(rx.TensorSpec([64, 64]))
        found = rx.explain(step, spec, num_replicas=64, shard="all", compare=False)
    assert found.memory.parameters == 100 * 64 * 64 * 4
    assert len(found.variables) == 100


# Text, pages and mistakes.


def test_the_text_and_the_page():
    strategy = rx.MirroredStrategy(DEVICES[:2])
    step, _, _ = make_step(strategy)
    found = rx.explain(step, batch_for(strategy), device_memory=1 << 20)
    assert found.fits is False
    text = str(found)
    assert 'step on 2 CPU devices, shard="mirrored"' in text
    assert "-> mirrored" in text
    assert "it does not fit" in text
    assert 'rx.ShardedStrategy(shard="all")' in text
    named = dataclasses.replace(found.variables[0], name="</script><b>")
    html = dataclasses.replace(found, variables=(named,))._repr_html_()
    assert "</script><b>" not in html
    assert "http:" not in html.replace("http://www.w3.org", "")


def test_one_device_is_not_advised_to_divide_its_state():
    strategy = rx.MirroredStrategy(DEVICES[:1])
    step, _, _ = make_step(strategy)
    found = rx.explain(step, batch_for(strategy), device_memory=1 << 20)
    assert len(found.settings) == 1
    assert not any("rx.ShardedStrategy(" in tip for tip in found.advice)


def test_a_step_is_a_function():
    with pytest.raises(TypeError, match=r"takes a step, a function, got an array float32\[3\]"):
        rx.explain(jnp.ones(3))


def test_mistakes():
    strategy = rx.MirroredStrategy(DEVICES[:2])
    step, _, _ = make_step(strategy)
    with pytest.raises(ContextError, match=r"strategy\.scope"):
        rx.explain(step, SPEC)
    with strategy.scope(), pytest.raises(ValueError, match="needs a fully known shape"):
        rx.explain(step, rx.PerReplicaSpec(rx.TensorSpec([None, WIDTH])))
    with pytest.raises(ValueError, match="'mirrored', 'optimizer', 'all'"):
        rx.explain(step, batch_for(strategy), shard="none")
    with pytest.raises(ValueError, match="1 or more"):
        rx.explain(step, batch_for(strategy), num_replicas=0)
    with pytest.raises(TypeError, match="element_spec"):
        rx.explain(step, strategy.distribute_dataset(rx.from_arrays(np.ones((4, 4))).batch(4)))
    with pytest.raises(ContextError, match="this step uses none"):
        rx.explain(lambda x: x + 1, jnp.ones(3), num_replicas=4)
