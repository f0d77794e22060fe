"""Collectives do not depend on replicas and variables; predictions agree with published results."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.planning.helpers import batch_for, make_step

import replicax as rx
from replicax.planning import Collective
from replicax.planning._scaling import predict


def step_with(num_variables):
    """A step of two replicas with small variables and Adam, and what it takes."""
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        params = rx.create_variables([np.ones((4, 4), np.float32) for _ in range(num_variables)])
        optimizer = rx.Optimizer(optax.adam(1e-3))

    def replica_step(x):
        def loss():
            return rx.compute_average_loss(sum(jnp.mean((x @ w) ** 2, axis=-1) for w in params))

        return optimizer.minimize(loss, params)

    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    with strategy.scope():
        spec = rx.PerReplicaSpec(rx.TensorSpec([2, 4]))
        return step, spec, strategy


def test_collectives_do_not_depend_on_the_number_of_replicas_and_variables():
    for num_variables, counts in ((2, (2, 16)), (12, (16,))):
        step, spec, strategy = step_with(num_variables)
        for num_replicas in counts:
            with strategy.scope():
                found = rx.explain(step, spec, num_replicas=num_replicas, compare=False)
            assert [(c.kind, c.times) for c in found.collectives] == [("all-reduce", 1)]


def all_reduce(num_bytes, axis="replica", num_devices=2):
    return Collective("all-reduce", int(num_bytes), axis, "", 1, num_devices)


def test_a_prediction_by_hand():
    wires = rx.Interconnect(
        bandwidth=1e9, latency=1e-3, devices_per_host=4, local_bandwidth=1e10, local_latency=1e-4
    )
    (inside, alone, among) = predict([all_reduce(1e8)], 1.0, [4, 1, 32], wires, overlap=0.25).points
    assert alone.seconds == 1.0 and alone.efficiency == 1.0
    local = 2 * (3 / 4 * 1e8 / 1e10 + 2 * 1e-4)
    assert inside.collectives == pytest.approx(local)
    between = 2 * (7 / 8 * 1e8 / 1e9 + 3 * 1e-3)
    assert among.collectives == pytest.approx(local + between)
    assert among.exposed == pytest.approx(0.75 * (local + between))
    assert among.efficiency == pytest.approx(1 / (1 + 0.75 * (local + between)))


def test_collectives_of_logical_devices_stay_as_they_are_and_their_replicas_share_a_host():
    wires = rx.Interconnect(bandwidth=1e9, latency=0.0, devices_per_host=4)
    inside, among = all_reduce(1e8, "logical_0"), all_reduce(1e8, "replica")
    options = {"devices_per_replica": 2}
    (point,) = predict([inside], 1.0, [64], wires, **options).points
    assert point.collectives == 0.0
    (point,) = predict([among], 1.0, [64], wires, **options).points
    assert point.collectives == pytest.approx(2 * 31 / 32 * 2 * 1e8 / 1e9)


# Horovod's benchmark on 128 servers of 4 P100 each, with 25 Gbit/s: 90, 90 and 68 % of 512 times one GPU.
# One GPU does 142 (Inception V3) and 154 (VGG-16) images/s with TensorFlow, batches of 64 (TensorFlow's
# benchmarks of May 2017), and 16 do 1,656.82 with ResNet-101 (Horovod's documentation).
HOROVOD = {
    "Inception V3": (23.9e6, 64 / 142, 0.90),
    "ResNet-101": (44.7e6, 64 / (1656.82 / 16), 0.90),
    "VGG-16": (138.4e6, 64 / 154, 0.68),
}


@pytest.mark.parametrize("model", HOROVOD)
def test_horovod_on_512_gpus(model):
    num_parameters, compute, published = HOROVOD[model]
    servers = rx.Interconnect(bandwidth=25e9 / 8, devices_per_host=4)
    scaling = predict([all_reduce(4 * num_parameters)], compute, [512], servers, overlap=0.4)
    assert scaling.points[0].efficiency == pytest.approx(published, abs=0.03)


# MaxText on 1 to 32 slices of 256 TPU v5e: model FLOPs utilization in percent, 16 billion parameters.
MAXTEXT = {1: 61.10, 2: 59.37, 4: 59.14, 8: 58.27, 16: 56.56, 32: 54.65}


def test_maxtext_on_8192_chips():
    """The bandwidth is that of two slices; the model does not know what slows down many of them."""
    lost = MAXTEXT[1] / MAXTEXT[2] - 1
    wires = rx.Interconnect(bandwidth=1 / lost, latency=0.0)
    points = predict([all_reduce(1)], 1.0, list(MAXTEXT), wires).points
    errors = {p.num_replicas: p.efficiency - MAXTEXT[p.num_replicas] / MAXTEXT[1] for p in points}
    assert all(abs(errors[n]) < 0.011 for n in (1, 2, 4, 8))
    assert 0 < errors[16] < 0.03 and 0 < errors[32] < 0.06


def test_the_scaling_of_an_explanation():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step, _, _ = make_step(strategy)
    found = rx.explain(step, batch_for(strategy), compare=False)
    wires = rx.Interconnect(bandwidth=1e9, devices_per_host=8)
    by_time = found.scaling(interconnect=wires, step_seconds=found.flops / 1e9)
    assert [p.num_replicas for p in by_time.points] == [8, 64, 512, 4096]
    assert by_time == found.scaling(interconnect=wires, flops_per_second=1e9)
    assert by_time.points[0].efficiency == 1.0
    efficiencies = [p.efficiency for p in by_time.points]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert "4,096" in str(by_time)


def test_mistakes():
    found = rx.explain(lambda x: x, jax.ShapeDtypeStruct((3,), jnp.float32))
    wires = rx.Interconnect(bandwidth=1e9)
    with pytest.raises(ValueError, match="pass exactly one positive number"):
        found.scaling(interconnect=wires)
    with pytest.raises(ValueError, match="Pass step_seconds="):
        found.scaling(interconnect=wires, flops_per_second=1e12)
    with pytest.raises(ValueError, match="0 to 1"):
        found.scaling(interconnect=wires, step_seconds=1.0, overlap=40)
    with pytest.raises(ValueError, match="a list of ints"):
        found.scaling([0], interconnect=wires, step_seconds=1.0)
    with pytest.raises(ValueError, match="num_replicas=2"):  # or it would seem to scale perfectly
        found.scaling(interconnect=wires, step_seconds=1.0)
    with pytest.raises(ValueError, match="bytes per second"):
        rx.Interconnect(bandwidth=0)
    with pytest.raises(ValueError, match="devices_per_host"):
        rx.Interconnect(bandwidth=1e9, devices_per_host=0.5)
