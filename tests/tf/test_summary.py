"""`tf.summary`: what TensorBoard would read."""

import pathlib

import numpy as np
import pytest

from replicax import tf
from replicax.tf.data._tfrecord import read_record

tensorboardx = pytest.importorskip("tensorboardX")


def written(writer, folder):
    """The steps, tags and numbers in the files of a folder."""
    from tensorboardX.proto.event_pb2 import Event

    writer.close()
    found = []
    for path in sorted(pathlib.Path(folder).iterdir()):
        with path.open("rb") as file:
            while (record := read_record(file)) is not None:
                event = Event.FromString(record)
                found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


@pytest.fixture
def writer(tmp_path):
    with tf.summary.create_file_writer(tmp_path, flush_millis=1000) as made:
        yield made


def test_numbers_and_their_steps(writer, tmp_path):
    step = tf.Variable(3)
    with writer.as_default(step=step):
        assert tf.summary.scalar("a", tf.constant(0.5), step=1)
        assert tf.summary.scalar("b", 2)
        step.assign_add(4)
        assert tf.summary.scalar("b", np.float32(1.0))
    assert not tf.summary.scalar("c", 1.0, step=1), "there is no writer any more"
    assert written(writer, tmp_path) == [(1, "a", 0.5), (3, "b", 2.0), (7, "b", 1.0)]


def test_other_kinds(writer, tmp_path):
    pytest.importorskip("PIL")
    with writer.as_default(step=0):
        tf.summary.histogram("weights", tf.Variable([1.0, 2.0, 3.0]), buckets=4)
        tf.summary.image("pictures", np.zeros((5, 2, 2, 3), np.uint8), max_outputs=2)
        tf.summary.text("note", "some *text*")
    tags = [tag for _, tag, _ in written(writer, tmp_path)]
    assert tags == ["weights", "pictures/image/0", "pictures/image/1", "note/text_summary"]


def test_conditions(writer, tmp_path):
    with writer.as_default():
        with tf.summary.record_if(False):
            assert not tf.summary.scalar("a", 1.0, step=1)
        with tf.summary.record_if(lambda: True):
            assert tf.summary.scalar("b", 1.0, step=1)
    assert written(writer, tmp_path) == [(1, "b", 1.0)]


def test_only_the_first_replica_writes(writer, tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with writer.as_default():
        strategy.run(lambda: tf.summary.scalar("a", 1.0, step=1) or None)
    assert written(writer, tmp_path) == [(1, "a", 1.0)]


def test_a_writer_that_writes_nothing():
    with tf.summary.create_noop_writer().as_default():
        assert tf.summary.scalar("a", 1.0, step=1)


def test_errors(writer):
    with writer.as_default():
        with pytest.raises(ValueError, match=r"scalar\('a'\): there is no step"):
            tf.summary.scalar("a", 1.0)
        with pytest.raises(NotImplementedError, match="Return the value from the"):
            tf.function(lambda x: tf.summary.scalar("a", x, step=1))(tf.constant(1.0))
    with pytest.raises(AttributeError, match=r"Use `jax.profiler.start_trace"):
        tf.summary.trace_on  # noqa: B018
