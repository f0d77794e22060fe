"""What TensorFlow 2.21 was seen to do with checkpoints of distributed variables, on two replicas."""

import pytest
from tests.checkpoint.helpers import mirrored, replica_id, variable

import replicax as rx
from replicax.errors import CheckpointMismatchError
from replicax.variables import awaiting_values

STRATEGIES = {
    "mirrored": lambda: mirrored(2),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "onedev": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored1": lambda: mirrored(1),
    "none": rx.get_strategy,
}


@pytest.fixture(autouse=True)
def _nobody_waits_afterwards():
    yield
    awaiting_values.clear()


def make(kind, synchronization, aggregation, value=0.0):
    strategy = STRATEGIES[kind]()
    v = variable(
        strategy,
        value,
        trainable=False,
        synchronization=rx.VariableSynchronization[synchronization],
        aggregation=rx.VariableAggregation[aggregation],
    )
    return strategy, v


def held(strategy, v):
    return [float(copy.read_value()) for copy in strategy.local_results(v)]


@pytest.mark.parametrize(
    ("synchronization", "aggregation", "in_file"),
    [
        ("ON_WRITE", "NONE", 5.0),
        ("ON_WRITE", "SUM", 5.0),
        ("ON_READ", "SUM", 3.0),
        ("ON_READ", "MEAN", 1.5),
        ("ON_READ", "ONLY_FIRST_REPLICA", 1.0),
    ],
)
def test_what_is_written(synchronization, aggregation, in_file):
    strategy, v = make("mirrored", synchronization, aggregation)
    if synchronization == "ON_READ":
        strategy.run(lambda: v.assign(replica_id() + 1.0))
    else:
        v.assign(5.0)
    assert float(rx.Checkpoint(v=v).content().arrays["v"]) == in_file


def test_parts_without_aggregation_come_back(tmp_path):
    """TensorFlow can't save them. Ours to improve: each replica's own part is saved."""
    strategy, v = make("mirrored", "ON_READ", "NONE")
    strategy.run(lambda: v.assign(replica_id() + 1.0))
    checkpoint = rx.Checkpoint(v=v)
    path = checkpoint.save(tmp_path)
    strategy.run(lambda: v.assign(0.0))
    checkpoint.restore(path)
    assert held(strategy, v) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("synchronization", "aggregation", "mirrored_copies"),
    [
        ("ON_WRITE", "NONE", [6.0, 6.0]),
        ("ON_WRITE", "SUM", [6.0, 6.0]),
        ("ON_READ", "SUM", [3.0, 3.0]),
        ("ON_READ", "MEAN", [6.0, 6.0]),
        ("ON_READ", "ONLY_FIRST_REPLICA", [6.0, 6.0]),
        ("ON_READ", "NONE", [6.0, 6.0]),
    ],
)
@pytest.mark.parametrize("kind", ["mirrored", "central", "onedev"])
def test_restoring_six(kind, synchronization, aggregation, mirrored_copies, tmp_path):
    path = rx.Checkpoint(v=rx.Variable(6.0)).save(tmp_path)
    strategy, v = make(kind, synchronization, aggregation)
    rx.Checkpoint(v=v).restore(path).assert_consumed()
    assert held(strategy, v) == (mirrored_copies if kind == "mirrored" else [6.0])
    if (kind, aggregation, synchronization) == ("mirrored", "NONE", "ON_READ"):
        with pytest.raises(ValueError):
            v.read_value()
    else:
        assert float(v.read_value()) == 6.0


def test_restoring_seven_into_two_integers_keeps_the_remainder(tmp_path):
    """TensorFlow: 3 and 3, which reads 6. Ours to improve: the remainder goes to the first replica."""
    path = rx.Checkpoint(v=rx.Variable(7)).save(tmp_path)
    strategy, v = make("mirrored", "ON_READ", "SUM", 0)
    rx.Checkpoint(v=v).restore(path)
    assert held(strategy, v) == [4, 3]
    assert int(v.read_value()) == 7


@pytest.mark.parametrize(
    ("old", "new", "copies"),
    [
        ("mirrored", "mirrored", [1.0, 2.0]),  # TensorFlow: 1.5 and 1.5
        ("mirrored", "onedev", [3.0]),
        ("mirrored", "central", [3.0]),
        ("onedev", "mirrored", [0.5, 0.5]),
        ("onedev", "onedev", [1.0]),
        ("onedev", "central", [1.0]),
        ("central", "mirrored", [1.5, 1.5]),
        ("central", "onedev", [3.0]),
        ("central", "central", [3.0]),
        ("mirrored1", "mirrored", [0.5, 0.5]),
        ("mirrored1", "onedev", [1.0]),
        ("mirrored1", "central", [1.0]),
        ("none", "mirrored", [1.5, 1.5]),
        ("none", "onedev", [3.0]),
        ("none", "central", [3.0]),
    ],
)
def test_a_sum_from_one_strategy_to_another(old, new, copies, tmp_path):
    strategy, v = make(old, "ON_READ", "SUM")
    if old == "none":
        v.assign(3.0)
    else:
        strategy.run(lambda: v.assign(replica_id() + 1.0))
    path = rx.Checkpoint(v=v).save(tmp_path)
    strategy, w = make(new, "ON_READ", "SUM")
    rx.Checkpoint(v=w).restore(path)
    assert held(strategy, w) == copies
    assert float(w.read_value()) == sum(copies)


@pytest.mark.parametrize(
    ("synchronization", "aggregation", "copies"),
    [("AUTO", "NONE", [6.0, 6.0]), ("ON_READ", "SUM", [3.0, 3.0])],
)
def test_a_variable_made_after_restoring(synchronization, aggregation, copies, tmp_path):
    path = rx.Checkpoint(v=rx.Variable(6.0)).save(tmp_path)
    checkpoint = rx.Checkpoint()
    checkpoint.restore(path)
    strategy, checkpoint.v = make("mirrored", synchronization, aggregation)
    assert held(strategy, checkpoint.v) == copies


def test_another_shape_is_a_value_error(tmp_path):
    path = rx.Checkpoint(v=rx.Variable(6.0)).save(tmp_path)
    _, v = make("mirrored", "AUTO", "NONE", [0.0, 0.0])
    with pytest.raises(ValueError):
        rx.Checkpoint(v=v).restore(path)


def test_another_name_fails_an_assertion(tmp_path):
    path = rx.Checkpoint(v=rx.Variable(6.0)).save(tmp_path)
    with pytest.raises(AssertionError):
        rx.Checkpoint(w=make("mirrored", "AUTO", "NONE")[1]).restore(path).assert_consumed()


def test_another_name_alone_is_refused_where_tensorflow_restores_nothing(tmp_path):
    """TensorFlow returns in silence. Ours to improve: a checkpoint of none of the objects is an error."""
    path = rx.Checkpoint(v=rx.Variable(6.0)).save(tmp_path)
    strategy, v = make("mirrored", "AUTO", "NONE")
    with pytest.raises(CheckpointMismatchError):
        rx.Checkpoint(w=v).restore(path)
    assert held(strategy, v) == [0.0, 0.0]


def test_a_manager_in_a_scope_keeps_two_of_three(tmp_path):
    """TensorFlow counts from 1 (ckpt-2, ckpt-3), and ours from 0."""
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        v = rx.Variable(0.0)
    with strategy.scope(), rx.CheckpointManager(rx.Checkpoint(v=v), tmp_path, max_to_keep=2) as manager:
        for _ in range(3):
            manager.save()
    assert manager.checkpoints == [1, 2]
