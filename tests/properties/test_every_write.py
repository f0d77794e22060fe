"""Every way to write every kind of variable: the model's numbers, or an error of the model's type."""

import dataclasses

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
from .test_random_programs import check_equal, check_parts, in_numpy, in_replicax

SHAPE = (3,)
# Value 1 of a replica, and value 2 outside of replicas, is an array that fits the variable.
IN_REPLICAS = {
    **{f"{how} in replicas": WriteInReplica(0, how, 1) for how in model.WRITES},
    **{f"{how} in replicas": Scatter(0, how, 2, SHAPE, 1, in_replica=True) for how in model.SCATTERS},
}
OUTSIDE = {
    **{f"{how} outside": Write(0, how, 2) for how in model.WRITES},
    **{f"{how} in update": Update(0, how, 2) for how in model.WRITES},
    **{f"{how} outside": Scatter(0, how, 2, SHAPE, 2, in_replica=False) for how in model.SCATTERS},
}
MODES = {
    "eager": {},
    "compiled": {"compile_all": True},
    "compiled replicas": {"compile_replicas": True},
}


def writing(kind, central, ways):
    """A program in which each way writes a variable of its own."""

    def statements(table):
        return tuple(
            dataclasses.replace(table[way], variable=i) for i, way in enumerate(ways) if way in table
        )

    inside = statements(IN_REPLICAS)
    run = Run((0,), (Compute(Fit(SHAPE), (0,)), *inside), tuple(range(1, 2 + len(inside))))
    total = (Reduce("SUM", 0, None), Compute(Fit(SHAPE), (1,)))
    inputs = (Kind("float32", ((2,), (2,))),)
    return Program(2, central, (kind,) * len(ways), inputs, (*total, *statements(OUTSIDE), run))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
@pytest.mark.parametrize("central", [False, True], ids=["mirrored", "central"])
def test_writes(central, synchronization, aggregation, subtests):
    kind = VariableKind(synchronization, aggregation, "float32", SHAPE, 1)
    allowed = []
    for way in (*IN_REPLICAS, *OUTSIDE):
        program = writing(kind, central, [way])
        try:
            in_numpy(program)
        except (ValueError, NotImplementedError) as error:
            for mode, options in MODES.items():
                with subtests.test(way=way, mode=mode), pytest.raises(type(error)):
                    in_replicax(program, **options)
        else:
            allowed.append(way)
    assert allowed
    program = writing(kind, central, allowed)
    expected = in_numpy(program)
    for mode, options in MODES.items():
        actual = in_replicax(program, **options)
        for i, way in enumerate(allowed):
            with subtests.test(way=way, mode=mode):
                check_parts(expected[1][i], actual[1][i], f"{mode}, {way}")
        check_equal(expected, actual, mode)
