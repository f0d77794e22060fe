"""The comparison forgives what the semantics leaves open, and nothing else."""

import jax.numpy as jnp
import pytest

import replicax as rx

from .describe import Observation, compare, describe, observe

ONE, TWO = "T<float32,[]>(1.)@c0", "T<float32,[]>(2.)@c0"


@pytest.mark.parametrize(
    ("recorded", "ours"),
    [
        (ONE, "T<float32,[]>(1.)@c1"),  # a plain array may be anywhere
        (ONE, "T<float64,[]>(1.)@c0"),  # 64 bits
        ("T<float32,[]>(1.1666666)@c0", "T<float32,[]>(1.1666667)@c0"),  # the last digit
        (f"PerReplica{{{ONE}, {ONE}}}", f"PerReplica{{{ONE}, T<float32,[]>(1.)@c1}}"),
        ("Handle<float32,1.>@c0", ONE),
        ("Handle<float32,1.>@c0", "Variable<float32,1.>@c0"),
        ("np.float32(1.0)", "np<float32,[]>(1.)"),
        ("TensorSpec<int64,[None, 2]>", "TensorSpec<int32,[None, 2]>"),
    ],
)
def test_what_is_forgiven(recorded, ours):
    assert compare(recorded, Observation(ours)) == []


@pytest.mark.parametrize(
    ("recorded", "ours"),
    [
        (ONE, TWO),
        (ONE, "T<int32,[]>(1)@c0"),
        (ONE, "T<float32,[1]>([1.])@c0"),
        (ONE, "1.0"),
        (ONE, "np.float32(1.0)"),
        (ONE, f"PerReplica{{{ONE}, {ONE}}}"),
        (f"PerReplica{{{ONE}, {ONE}}}", f"Mirrored{{{ONE}, {ONE}}}"),
        (f"PerReplica{{{ONE}, {TWO}}}", f"PerReplica{{{TWO}, {ONE}}}"),
        (f"PerReplica{{{ONE}, {ONE}}}", f"PerReplica{{{ONE}}}"),
        (f"PerReplica{{{ONE}, {ONE}}}", f"PerReplica{{T<float32,[]>(1.)@c1, {ONE}}}"),
        ("MirroredVariable<float32>{1.@c0,1.@c1}", "MirroredVariable<float32>{1.@c0,1.@c0}"),
        ("MirroredVariable<float32>{1.@c0,1.@c1}", "SyncOnReadVariable<float32>{1.@c0,1.@c1}"),
        ("Variable<float32,1.>@c0", ONE),
        ("Handle<float32,1.>@c0", TWO),
        (f"({ONE},)", f"[{ONE}]"),
        (f"{{'a': {ONE}}}", f"{{'b': {ONE}}}"),
        (f"OrderedDict{{'a': {ONE}}}", f"{{'a': {ONE}}}"),
        ("1", "True"),
        ("TensorSpec<float32,[None, 2]>", "TensorSpec<float32,[4, 2]>"),
        ("TensorSpec<float32,[2]>", "PerReplicaSpec{TensorSpec<float32,[2]>}"),
        ("T<string,[1]>([b'a'])@c0", "T<string,[1]>([b'b'])@c0"),
        ("!ValueError", ONE),
    ],
)
def test_what_is_not(recorded, ours):
    assert compare(recorded, Observation(ours)) != []


def test_an_exception_must_be_catchable_as_the_recorded_one():
    observed = observe(lambda: {}["x"])
    assert compare("!LookupError", observed) == []
    assert compare("!ValueError", observed) != []
    assert compare("!OutOfRangeError", observed) != []
    assert compare(ONE, observed) != []


def test_values_are_described_in_the_notation():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = rx.Variable([1.0, 2.0])
    spec = rx.TensorSpec((None, 2), jnp.int32)
    replica_ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    assert describe({"a": (jnp.float32(1), None)}) == f"{{'a': ({ONE}, None)}}"
    assert describe(variable) == "MirroredVariable<float32>{[1.,2.]@c0,[1.,2.]@c1}"
    assert describe(replica_ids) == "PerReplica{T<int32,[]>(0)@c0, T<int32,[]>(1)@c1}"
    assert describe({"a": spec}) == "{'a': TensorSpec<int32,[None, 2]>}"
    assert describe(rx.PerReplicaSpec(spec)) == "PerReplicaSpec{TensorSpec<int32,[None, 2]>}"
