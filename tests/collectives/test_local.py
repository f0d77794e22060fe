"""When small values are packed into one buffer."""

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.collectives._local import AllReduce

SIZES = range(1, 13)


def num_reductions(recipe):
    """The all-reduces in the program of one replica."""
    values = [np.ones(size, np.float32) for size in SIZES]
    program = jax.make_jaxpr(lambda *values: recipe("replica", *values), axis_env=[("replica", 2)])(*values)
    return sum(equation.primitive.name.startswith("psum") for equation in program.jaxpr.eqns)


@pytest.mark.parametrize(
    ("options", "num_packs", "packed", "unpacked"),
    [
        ({}, None, 1, len(SIZES)),
        ({"bytes_per_pack": 1 << 20}, None, 1, 1),
        ({}, 1, 1, 1),
    ],
)
def test_eager_reductions_are_not_packed_unless_the_user_chose_the_packs(
    options, num_packs, packed, unpacked
):
    options = rx.CommunicationOptions(**options)
    recipe = AllReduce(rx.ReduceOp.SUM, "cpu", options, num_packs=num_packs)
    assert num_reductions(recipe) == packed
    assert num_reductions(recipe.unpacked) == unpacked
