"""Every way to write every kind of variable: the model's numbers, or an error of the model's type."""

import itertools

import pytest

from . import model
from .programs import (
    AGGREGATIONS,
    Compute,
    Fit,
    Kind,
    Program,
    Reduce,
    Run,
    Scatter,
    Update,
    VariableKind,
    Write,
    WriteInReplica,
)
from .test_random_programs import check_equal, in_numpy, in_replicax

SHAPE = (3,)


def in_replicas(statement):
    return (Run((0,), (Compute(Fit(SHAPE), (0,)), statement), (1, 2)),)


def outside(statement):
    return (Reduce("SUM", 0, None), Compute(Fit(SHAPE), (1,)), statement)


WAYS = {
    **{f"{how} in replicas": in_replicas(WriteInReplica(0, how, 1)) for how in model.WRITES},
    **{f"{how} outside": outside(Write(0, how, 2)) for how in model.WRITES},
    **{f"{how} in update": outside(Update(0, how, 2)) for how in model.WRITES},
    **{
        f"{how} in replicas": in_replicas(Scatter(0, how, 2, SHAPE, 1, in_replica=True))
        for how in model.SCATTERS
    },
    **{f"{how} outside": outside(Scatter(0, how, 2, SHAPE, 2, in_replica=False)) for how in model.SCATTERS},
}
MODES = {
    "eager": {},
    "compiled": {"compile_all": True},
    "compiled replicas": {"compile_replicas": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("synchronization", "aggregation"),
    list(itertools.product(("ON_WRITE", "ON_READ"), AGGREGATIONS)),
)
@pytest.mark.parametrize("central", [False, True], ids=["mirrored", "central"])
def test_write(central, synchronization, aggregation, way):
    variable = VariableKind(synchronization, aggregation, "float32", SHAPE, 1)
    inputs = (Kind("float32", ((2,), (2,))),)
    program = Program(2, central, (variable,), inputs, WAYS[way])
    try:
        expected = in_numpy(program)
    except (ValueError, NotImplementedError) as error:
        for options in MODES.values():
            with pytest.raises(type(error)):
                in_replicax(program, **options)
    else:
        for mode, options in MODES.items():
            check_equal(expected, in_replicax(program, **options), mode)
