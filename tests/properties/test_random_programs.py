"""Random programs give the same numbers eagerly, compiled, compiled in part, and in the NumPy model."""

import functools

import numpy as np
import pytest
from hypothesis import given, note

import replicax as rx

from . import model
from .budget import examples
from .programs import NumpyWorld, Program, Replicated, as_numpy, interpret, programs

NUM_CALLS = 2


@functools.cache
def make_strategy(num_replicas, central):
    devices = [f"CPU:{i}" for i in range(num_replicas)]
    if central:
        return rx.CentralStorageStrategy(devices, parameter_device="CPU:0")
    return rx.MirroredStrategy(devices)


def make_variables(world, program):
    return [
        world.variable(kind.initial_value, kind.synchronization, kind.aggregation)
        for kind in program.variables
    ]


def in_numpy(program: Program):
    """The values that each call computes, and each replica's copies of the variables in the end."""
    world = NumpyWorld(program.num_replicas, central=program.central)
    variables = make_variables(world, program)
    inputs = [
        parts[0] if kind.plain else model.PerReplica(parts)
        for kind, parts in zip(program.inputs, program.input_arrays(), strict=True)
    ]
    calls = []
    for _ in range(NUM_CALLS):
        values = interpret(program.statements, world, variables, list(inputs))[len(inputs) :]
        calls.append([world.each(value) for value in values])
    return calls, [list(variable.copies) for variable in variables]


def in_replicax(program: Program, *, compile_all=False, compile_replicas=False):
    """The same from Replicax."""
    strategy = make_strategy(program.num_replicas, program.central)
    world = Replicated(strategy, compile_replicas=compile_replicas)
    variables = make_variables(world, program)
    inputs = [
        parts[0]
        if kind.plain
        else strategy.distribute_values_from_function(
            lambda ctx, parts=parts: parts[ctx.replica_id_in_sync_group]
        )
        for kind, parts in zip(program.inputs, program.input_arrays(), strict=True)
    ]

    def step(inputs):
        return interpret(program.statements, world, variables, list(inputs))[len(inputs) :]

    if compile_all:
        step = rx.function(step)
    calls = []
    for _ in range(NUM_CALLS):
        calls.append([[as_numpy(x) for x in world.each(value)] for value in step(inputs)])
    copies = [[as_numpy(x) for x in strategy.local_results(v.variable)] for v in variables]
    return calls, [c if len(c) == program.num_replicas else c * program.num_replicas for c in copies]


def check_equal(expected, actual, mode):
    for call, (wanted, got) in enumerate(zip(expected[0], actual[0], strict=True)):
        assert len(wanted) == len(got)
        for i, (parts, other) in enumerate(zip(wanted, got, strict=True)):
            check_parts(parts, other, f"{mode}, call {call}, value {i}")
    for i, (parts, other) in enumerate(zip(expected[1], actual[1], strict=True)):
        check_parts(parts, other, f"{mode}, variable {i} in the end")


def check_parts(expected, actual, what):
    assert len(expected) == len(actual), what
    for replica, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        where = f"{what}, replica {replica}"
        assert np.shape(wanted) == np.shape(got), where
        assert np.asarray(wanted).dtype == np.asarray(got).dtype, where
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=where)


@pytest.mark.timeout(0)  # the explore profile takes as long as it is asked to
@examples(60)
@given(programs())
def test_random_program(program):
    note(str(program))
    expected = in_numpy(program)
    check_equal(expected, in_replicax(program), "eager")
    check_equal(expected, in_replicax(program, compile_all=True), "compiled")
    check_equal(expected, in_replicax(program, compile_replicas=True), "compiled replicas")
