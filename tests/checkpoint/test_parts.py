"""ON_READ variables, of which each replica has a part of its own."""

import numpy as np
import pytest
from tests.checkpoint.helpers import (
    FIRST,
    MEAN,
    NONE,
    ON_READ,
    STRATEGIES,
    SUM,
    copies,
    identical,
    mirrored,
    replica_id,
    variable,
)

import replicax as rx
from replicax.errors import CheckpointMismatchError

AGGREGATIONS = {"SUM": SUM, "MEAN": MEAN, "FIRST": FIRST, "NONE": NONE}


def on_read(strategy, aggregation, value=(0.0, 0.0)):
    value = np.asarray(value, np.float32)
    return variable(strategy, value, synchronization=ON_READ, aggregation=aggregation, name="v")


def written(strategy, aggregation):
    """A variable whose parts are 0.1, 1.1, 2.1, ..."""
    v = on_read(strategy, aggregation)
    strategy.run(lambda: v.assign(np.float32([0.1, -7]) + np.float32(replica_id())))
    return v


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("aggregation", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_on_as_many_replicas_each_gets_its_part(aggregation, n, tmp_path):
    first, second = mirrored(n), mirrored(n)
    old, new = written(first, aggregation), on_read(second, aggregation)
    rx.Checkpoint(v=new).restore(rx.Checkpoint(v=old).save(tmp_path)).assert_consumed()
    for there, here in zip(copies(first, old), copies(second, new), strict=True):
        identical(here, there)


def test_scalars_and_arrays_without_elements(tmp_path):
    strategy = mirrored(2)
    vs = [on_read(strategy, SUM, value) for value in (0.0, np.zeros((0, 3)))]
    checkpoint = rx.Checkpoint(vs=vs)
    strategy.run(lambda: vs[0].assign(replica_id() + 0.5))
    path = checkpoint.save(tmp_path)
    vs[0].assign(0.0)
    checkpoint.restore(path).assert_consumed()
    assert [float(part) for part in copies(strategy, vs[0])] == [0.5, 1.5]
    assert vs[1].shape == (0, 3)


@pytest.mark.parametrize("to", ["default", "one_device", "central", "mirrored1", "mirrored3"])
@pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST], ids=["SUM", "MEAN", "FIRST"])
def test_on_another_number_the_combined_value_is_restored(aggregation, to, tmp_path):
    first, second = mirrored(2), STRATEGIES[to]()
    old, new = written(first, aggregation), on_read(second, aggregation)
    rx.Checkpoint(v=new).restore(rx.Checkpoint(v=old).save(tmp_path)).assert_consumed()
    np.testing.assert_allclose(new.read_value(), old.read_value(), rtol=1e-6)


@pytest.mark.parametrize("to", ["default", "central", "mirrored1", "mirrored3"])
def test_parts_that_do_not_combine_are_refused_on_another_number(to, tmp_path):
    path = rx.Checkpoint(v=written(mirrored(2), NONE), w=rx.Variable(1.0)).save(tmp_path)
    w = rx.Variable(0.0)
    new = on_read(STRATEGIES[to](), NONE)
    with pytest.raises(
        CheckpointMismatchError, match=r"v was saved as 2 replicas' own parts.*NONE.*Nothing"
    ):
        rx.Checkpoint(v=new, w=w).restore(path)
    assert float(w.read_value()) == 0.0


def test_another_aggregation_gets_the_combined_value(tmp_path):
    """So that reading gives the same, as on any other number of replicas."""
    old, new = written(mirrored(2), MEAN), on_read(mirrored(2), SUM)
    rx.Checkpoint(v=new).restore(rx.Checkpoint(v=old).save(tmp_path))
    np.testing.assert_allclose(new.read_value(), old.read_value(), rtol=1e-6)


def test_a_plain_variable_and_parts(tmp_path):
    """Parts without an aggregation each get the value of a plain variable."""
    strategy = mirrored(2)
    path = rx.Checkpoint(v=rx.Variable([1.0, 2.0])).save(tmp_path)
    new = on_read(strategy, NONE)
    rx.Checkpoint(v=new).restore(path)
    assert [part.tolist() for part in copies(strategy, new)] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("aggregation", [SUM, MEAN], ids=["SUM", "MEAN"])
def test_a_checkpoint_without_parts_is_restored_as_its_combined_value(aggregation, tmp_path):
    """As they were written by earlier versions."""
    strategy = mirrored(2)
    content = rx.Checkpoint(v=written(strategy, aggregation)).content()
    assert content.document["format"] == 1
    entry = content.document["entries"]["v"]
    del entry["parts"], entry["aggregation"], content.arrays["v//parts"]
    new = on_read(strategy, aggregation)
    rx.Checkpoint(v=new).restore_content(content, "here").assert_consumed()
    np.testing.assert_allclose(new.read_value(), content.arrays["v"], rtol=1e-6)


def test_parts_are_restored_in_the_scope_of_another_strategy(tmp_path):
    strategy, other = mirrored(2), mirrored(3)
    v = written(strategy, SUM)
    checkpoint = rx.Checkpoint(v=v)
    path = checkpoint.save(tmp_path)
    before = copies(strategy, v)
    v.assign([0.0, 0.0])
    with other.scope():
        checkpoint.restore(path)
        checkpoint.save(tmp_path)
    for there, here in zip(before, copies(strategy, v), strict=True):
        identical(here, there)
