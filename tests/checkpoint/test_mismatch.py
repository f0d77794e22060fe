"""What does not fit is said by name, and leaves everything as it was."""

import logging
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.checkpoint.helpers import FIRST, NONE, ON_READ, mirrored, replica_id, variable

import replicax as rx
from replicax.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ContextError,
    ReplicaxError,
)


def saved(tmp_path, **objects):
    return rx.Checkpoint(**objects).save(tmp_path)


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Not all of it.


def test_a_partial_restore_is_reported_in_one_line(tmp_path, caplog):
    path = saved(tmp_path, a=rx.Variable(1.0), b=2, c=3)
    a = rx.Variable(0.0)
    status = rx.Checkpoint(a=a, d=4).restore(path)
    assert (status.unused, status.missing) == (["b", "c"], ["d"])
    assert float(a.read_value()) == 1.0
    assert not warnings_in(caplog)  # there may be a call of expect_partial() to come
    del status
    (line,) = warnings_in(caplog)
    assert path in line
    assert "the checkpoint has no d" in line
    assert "the objects have no b, c" in line


@pytest.mark.parametrize("more_here", [True, False])
def test_the_report_names_only_what_is_wrong(more_here, tmp_path, caplog):
    few, many = {"a": 1}, {"a": 1, "b": 2}
    path = saved(tmp_path, **(few if more_here else many))
    rx.Checkpoint(**(many if more_here else few)).restore(path)
    (line,) = warnings_in(caplog)
    assert "none" not in line
    assert ("the checkpoint has no b" in line) == more_here
    assert ("the objects have no b" in line) != more_here


def test_assert_consumed_names_both_sides(tmp_path):
    path = saved(tmp_path, a=1, b=2)
    status = rx.Checkpoint(a=0, c=3).restore(path)
    with pytest.raises(CheckpointMismatchError, match=r"(?s)no b.*no c") as raised:
        status.assert_consumed()
    assert isinstance(raised.value, AssertionError)
    assert isinstance(raised.value, ValueError)


def test_nothing_is_logged_if_a_partial_restore_is_expected(tmp_path, caplog):
    w = rx.Variable(0.0, name="w")
    path = saved(tmp_path, w=w, a=1, model=[rx.Variable(1.0, name="x")])
    with caplog.at_level(logging.INFO):
        checkpoint = rx.Checkpoint(w=w, b=2, model=[])
        checkpoint.restore(path).expect_partial()
        checkpoint.save(tmp_path)
    assert not [record.getMessage() for record in caplog.records if record.name == "replicax"]


def test_a_status_that_is_held_is_reported_by_the_next_save(tmp_path, caplog):
    path = saved(tmp_path, a=1, b=2)
    checkpoint = rx.Checkpoint(a=0)
    status = checkpoint.restore(path)
    assert not warnings_in(caplog)
    checkpoint.save(tmp_path)
    (line,) = warnings_in(caplog)
    assert "the objects have no b" in line
    del status
    assert len(warnings_in(caplog)) == 1


def test_values_that_no_variable_claims_are_reported_at_exit(tmp_path):
    model = {"a": rx.Variable(1.0, name="a"), "b": rx.Variable(2.0, name="b")}
    path = saved(tmp_path, model=model)
    program = f"""
        import replicax as rx

        status = rx.Checkpoint(model={{"a": rx.Variable(0.0, name="a")}}).restore({path!r})
        print("the end", flush=True)
        """
    for more, reported in (("", True), ("status.expect_partial()", False)):
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program + more)],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ended.stdout == "the end\n"
        assert ("No variable has claimed" in ended.stderr and "model/b" in ended.stderr) == reported, ended


def test_a_complete_restore_is_silent(tmp_path, caplog):
    path = saved(tmp_path, a=1)
    assert rx.Checkpoint(a=0).restore(path).assert_consumed().expect_partial()
    assert not warnings_in(caplog)


def test_a_long_list_of_names_is_cut(tmp_path, caplog):
    path = saved(tmp_path, a=1, **{f"x{i}": i for i in range(100)})
    rx.Checkpoint(a=0).restore(path)
    (line,) = warnings_in(caplog)
    assert "100 in all" in line
    assert len(line) < 400


# Other objects.


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = saved(tmp_path, encoder=[rx.Variable(1.0)], epoch=1)
    w = rx.Variable(5.0)
    with pytest.raises(CheckpointMismatchError, match=r"(?s)decoder/w.*encoder/0"):
        rx.Checkpoint(decoder={"w": w}).restore(path)
    assert float(w.read_value()) == 5.0


def test_another_shape_is_refused_by_name_and_nothing_changes(tmp_path):
    path = saved(tmp_path, a=rx.Variable(1.0), b=rx.Variable(jnp.ones((2, 3))), n=1)
    a, b = rx.Variable(0.0), rx.Variable(jnp.zeros((3, 2)))
    checkpoint = rx.Checkpoint(a=a, b=b, n=0)
    with pytest.raises(CheckpointMismatchError, match=r"b has shape \(3, 2\) here and \(2, 3\) there"):
        checkpoint.restore(path)
    assert (float(a.read_value()), checkpoint.n) == (0.0, 0)
    assert not b.read_value().any()


def test_shapes_that_would_broadcast_are_refused(tmp_path):
    path = saved(tmp_path, a=rx.Variable(1.0))
    with pytest.raises(CheckpointMismatchError, match="shape"):
        rx.Checkpoint(a=rx.Variable(jnp.zeros(3))).restore(path)


def test_all_that_does_not_fit_is_named_at_once(tmp_path):
    path = saved(tmp_path, m=[rx.Variable(jnp.ones(i + 1)) for i in range(3)])
    with pytest.raises(CheckpointMismatchError, match=r"(?s)m/0 .*m/1 .*m/2 "):
        rx.Checkpoint(m=[rx.Variable(jnp.ones(i + 2)) for i in range(3)]).restore(path)


KINDS = {
    "variable": lambda: rx.Variable(1.0),
    "array": lambda: np.ones(()),
    "key": lambda: jax.random.key(0),
    "number": lambda: 1.0,
    "state": lambda: iter(mirrored(1).distribute_dataset([np.ones(2)])),
}


@pytest.mark.parametrize("there", KINDS)
@pytest.mark.parametrize("here", KINDS)
def test_another_kind_of_thing_is_refused(here, there, tmp_path):
    if here == there:
        return
    path = saved(tmp_path, x=KINDS[there](), a=1)
    checkpoint = rx.Checkpoint(x=KINDS[here](), a=0)
    with pytest.raises(CheckpointMismatchError, match=f"x is an? {here} here and an? {there} there"):
        checkpoint.restore(path)
    assert checkpoint.a == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (np.float32([2.7]), np.int32([0])),
        (np.int32([300]), np.int8([0])),
        (np.int32([-1]), np.uint32([0])),
        (np.int32([5]), np.array([False])),
        (np.complex64([1 + 2j]), np.float32([0])),
    ],
    ids=["float_to_int", "int_to_smaller", "signed_to_unsigned", "int_to_bool", "complex_to_float"],
)
def test_a_dtype_that_would_lose_the_value_is_refused(old, new, tmp_path):
    path = saved(tmp_path, v=rx.Variable(old))
    v = rx.Variable(new)
    with pytest.raises(
        CheckpointMismatchError, match=f"v .*{new.dtype}.*{old.dtype}|v .*{old.dtype}.*{new.dtype}"
    ):
        rx.Checkpoint(v=v).restore(path)


@pytest.mark.parametrize("new", ["bfloat16", "float16", "float32"])
def test_floats_may_change_their_precision(new, tmp_path):
    path = saved(tmp_path, v=rx.Variable(np.float32([1.5, 2.25])))
    v = rx.Variable(jnp.zeros(2, new))
    rx.Checkpoint(v=v).restore(path).assert_consumed()
    assert v.dtype == jnp.dtype(new)
    assert v.read_value().tolist() == [1.5, 2.25]


def test_another_random_algorithm_is_refused(tmp_path):
    path = saved(tmp_path, rng=jax.random.key(0, impl="rbg"))
    checkpoint = rx.Checkpoint(rng=jax.random.key(0, impl="threefry2x32"))
    try:
        checkpoint.restore(path)
    except CheckpointMismatchError:
        return
    assert str(jax.random.key_impl(checkpoint.rng)) == "rbg"


def test_a_position_of_another_dataset_is_refused_before_anything_changes(tmp_path):
    strategy = mirrored(2)
    data = rx.from_arrays(np.arange(12))
    old = iter(strategy.distribute_dataset(data.batch(4)))
    next(old)
    path = saved(tmp_path, v=rx.Variable(1.0), data=old)
    old.close()
    v = rx.Variable(0.0)
    new = iter(strategy.distribute_datasets_from_function(lambda context: data.batch(2)))
    with pytest.raises(ReplicaxError, match="data") as raised:
        rx.Checkpoint(v=v, data=new).restore(path)
    new.close()
    assert isinstance(raised.value, CheckpointError)
    assert float(v.read_value()) == 0.0


def test_an_object_that_refuses_its_state_is_named(tmp_path):
    class Picky:
        def state(self):
            return {"n": 1}

        def restore(self, state):
            raise ValueError("I can't")

    path = saved(tmp_path, v=rx.Variable(1.0), picky=Picky())
    with pytest.raises(CheckpointError, match="picky"):
        rx.Checkpoint(v=rx.Variable(0.0), picky=Picky()).restore(path)


def test_a_state_that_is_no_json_is_refused_by_name_when_it_is_saved(tmp_path):
    class Odd:
        def state(self):
            return {"n": np.ones(3)}

        def restore(self, state):
            pass

    with pytest.raises(CheckpointError, match="odd"):
        rx.Checkpoint(odd=Odd()).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", [{1: 2}, {"a": (1, 2)}, {"a": [1, {"b": None}]}])
def test_a_state_comes_back_as_it_was_or_is_refused(state, tmp_path):
    class Holder:
        def __init__(self, held):
            self.held = held

        def state(self):
            return self.held

        def restore(self, state):
            self.held = state

    new = Holder(None)
    try:
        path = saved(tmp_path, h=Holder(state))
    except CheckpointError:
        return
    rx.Checkpoint(h=new).restore(path)
    assert new.held == state


# Variables without one value.


def test_restoring_into_parts_without_aggregation_gives_each_the_value_or_changes_nothing(tmp_path):
    strategy = mirrored(2)
    path = saved(tmp_path, a=rx.Variable(1.0), v=rx.Variable(6.0))
    a = rx.Variable(0.0)
    v = variable(strategy, 0.0, synchronization=ON_READ, aggregation=NONE)
    try:
        rx.Checkpoint(a=a, v=v).restore(path)
    except ReplicaxError:
        assert float(a.read_value()) == 0.0
        return
    assert [float(c.read_value()) for c in strategy.local_results(v)] == [6.0, 6.0]


# In the wrong place.


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("what", ["save", "restore"])
def test_a_replica_function_is_no_place_for_checkpoints(what, compiled, tmp_path):
    """Every replica would write one of its own; TensorFlow writes one in both."""
    strategy = mirrored(2)
    v = variable(strategy, 1.0, aggregation=FIRST)
    checkpoint = rx.Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "before")

    def replica_fn():
        if what == "save":
            checkpoint.save(tmp_path / "inside")
        else:
            checkpoint.restore(path)
        return replica_id()

    def step():
        return strategy.run(replica_fn)

    with pytest.raises(RuntimeError, match=r"(?i)replica function|outside"):
        (rx.function(step) if compiled else step)()
    assert not (tmp_path / "inside").exists()


# Not there.


@pytest.mark.parametrize("name", ["nowhere", "nowhere/3", "7"])
def test_a_checkpoint_that_is_not_there_is_missed_by_its_name(name, tmp_path):
    with pytest.raises(CheckpointMissingError, match=name) as raised:
        rx.Checkpoint(a=1).restore(tmp_path / name)
    assert isinstance(raised.value, FileNotFoundError)


def test_restoring_the_latest_checkpoint_before_the_first_save_says_what_to_call(tmp_path):
    checkpoint = rx.Checkpoint(a=1)
    manager = rx.CheckpointManager(checkpoint, tmp_path)
    with pytest.raises(CheckpointMissingError, match=r"manager\.restore_or_initialize\(\)"):
        checkpoint.restore(manager.latest_checkpoint)


def test_the_message_lists_the_checkpoints_that_are_there(tmp_path):
    saved(tmp_path, a=1)
    saved(tmp_path, a=1)
    with pytest.raises(CheckpointMissingError, match=r"\[0, 1\]"):
        rx.Checkpoint(a=1).restore(tmp_path / "7")


def test_something_that_is_no_checkpoint_is_told_so(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "file").write_text("hello")
    with pytest.raises(CheckpointError, match="could not be read"):
        rx.Checkpoint(a=1).restore(tmp_path / "3")


def test_a_checkpoint_of_a_later_format_is_refused(tmp_path):
    checkpoint = rx.Checkpoint(a=1)
    content = checkpoint.content()
    content.document["format"] = 999
    from replicax.checkpoint._store import Store

    Store(tmp_path).save(0, content)
    with pytest.raises(CheckpointError, match=r"999|format|newer"):
        checkpoint.restore(tmp_path)


def test_a_compiled_step_is_no_place_for_checkpoints(tmp_path):
    manager = rx.CheckpointManager(rx.Checkpoint(w=rx.Variable(1.0)), tmp_path)
    with pytest.raises(ContextError, match="between steps"):
        rx.function(lambda: manager.save())()
    assert manager.latest_checkpoint is None


def test_nothing_changes_if_one_of_several_objects_refuses_its_state(tmp_path):
    class Counter:
        def __init__(self, n, limit=10):
            self.n, self.limit = n, limit

        def state(self):
            return self.n

        def restore(self, state):
            if state > self.limit:
                raise ValueError("too far")
            self.n = state

    path = saved(tmp_path, v=rx.Variable(1.0), a=Counter(3), b=Counter(4), c=Counter(5))
    here = {"v": rx.Variable(0.0), "a": Counter(0), "b": Counter(0, limit=2), "c": Counter(0)}
    with pytest.raises(CheckpointMismatchError, match="b could not be restored: too far"):
        rx.Checkpoint(**here).restore(path)
    assert [here[name].n for name in "abc"] == [0, 0, 0]
    assert float(here["v"].read_value()) == 0.0


def test_a_folder_whose_name_ends_with_a_number_is_a_folder(tmp_path):
    v = rx.Variable(1.0)
    folder = tmp_path / "run7"
    folder.mkdir()
    with pytest.raises(CheckpointMissingError, match="no numbered checkpoint in"):
        rx.Checkpoint(v=v).restore(folder)
    with rx.CheckpointManager(rx.Checkpoint(v=v), folder, prefix="ckpt-") as manager:
        manager.save(3)
    with pytest.raises(CheckpointMissingError, match="There are ckpt-3; pass the path of one"):
        rx.Checkpoint(v=v).restore(folder)
    rx.Checkpoint(v=v).restore(folder / "ckpt-3").assert_consumed()
    path = rx.Checkpoint(v=v).save(folder)
    v.assign(0.0)
    rx.Checkpoint(v=v).restore(folder).assert_consumed()
    assert float(v.read_value()) == 1.0
    assert path.endswith("0")
