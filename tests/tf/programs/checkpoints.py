"""`tf.train`: checkpoints and managers."""

import os
import tempfile

import numpy as np

from .running import raised


def _folder():
    return tempfile.mkdtemp()


def statuses(tf):
    v, w = tf.Variable(1.0), tf.Variable(2.0)
    path = tf.train.Checkpoint(v=v).save(_folder() + "/ckpt")
    v.assign(5.0)
    both = tf.train.Checkpoint(v=v, w=w)
    status = both.restore(path)
    return (
        v,
        raised(lambda: status.assert_existing_objects_matched(), AssertionError),
        raised(lambda: status.assert_consumed(), AssertionError),
        raised(lambda: status.assert_nontrivial_match(), AssertionError),
        raised(lambda: status.expect_partial()),
        raised(lambda: tf.train.Checkpoint(v=v).restore(path).assert_consumed().run_restore_ops()),
        raised(lambda: tf.train.Checkpoint(v=v).restore(path).initialize_or_restore()),
    )


def trivial_match(tf):
    path = tf.train.Checkpoint(v=tf.Variable(1.0)).save(_folder() + "/ckpt")
    status = tf.train.Checkpoint(w=tf.Variable(1.0)).restore(path)
    return raised(lambda: status.assert_nontrivial_match(), AssertionError)


def save_counter(tf):
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    folder = _folder()
    checkpoint.save(folder + "/ckpt")
    checkpoint.save(folder + "/ckpt")
    other = tf.train.Checkpoint(v=tf.Variable(0.0))
    other.restore(tf.train.latest_checkpoint(folder))
    return checkpoint.save_counter, other.save_counter, os.path.basename(other.save(folder + "/ckpt"))


def write_and_read(tf):
    v = tf.Variable([1.0, 2.0])
    checkpoint = tf.train.Checkpoint(v=v)
    path = checkpoint.write(_folder() + "/state")
    v.assign([0.0, 0.0])
    checkpoint.read(path).assert_consumed()
    return os.path.basename(path), v


def writing_twice(tf):
    v = tf.Variable(1.0)
    checkpoint, path = tf.train.Checkpoint(v=v), _folder() + "/state"
    checkpoint.write(path)
    v.assign(2.0)
    checkpoint.write(path)
    v.assign(3.0)
    checkpoint.read(path)
    checkpoint.sync()
    return v


def a_root(tf):
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable([1.0, 2.0])

    model = Model()
    path = tf.train.Checkpoint(model).save(_folder() + "/ckpt")
    model.w.assign([0.0, 0.0])
    tf.train.Checkpoint(model).restore(path).assert_consumed()
    other = Model()
    other.w.assign([9.0, 9.0])
    tf.train.Checkpoint(root=other).restore(path)
    return model.w, other.w


def managers(tf):
    step, folder = tf.Variable(0), _folder()
    checkpoint = tf.train.Checkpoint(step=step)
    manager = tf.train.CheckpointManager(
        checkpoint, folder, max_to_keep=2, step_counter=step, checkpoint_interval=2
    )
    saved = []
    for _ in range(5):
        step.assign_add(1)
        saved.append(manager.save() is not None)
    manager.sync()
    return (
        saved,
        [os.path.basename(path) for path in manager.checkpoints],
        manager.checkpoint is checkpoint,
        manager.checkpoint_interval,
        os.path.basename(manager.latest_checkpoint),
        manager.directory == folder,
        int(checkpoint.save_counter),
    )


def manager_without_steps(tf):
    folder = _folder()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable(1.0)), folder, max_to_keep=1)
    paths = [os.path.basename(manager.save()), os.path.basename(manager.save(checkpoint_number=7))]
    return paths, manager.restore_or_initialize() is not None


def states(tf):
    folder = _folder()
    nothing = tf.train.get_checkpoint_state(folder)
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    for _ in range(3):
        manager.save()
    state = tf.train.get_checkpoint_state(folder)
    return (
        nothing is None,
        os.path.basename(state.model_checkpoint_path),
        [os.path.basename(path) for path in state.all_model_checkpoint_paths],
    )


def iterated(tf):
    folder = _folder()
    tf.train.Checkpoint(v=tf.Variable(1.0)).save(folder + "/ckpt")
    paths = []
    for path in tf.train.checkpoints_iterator(folder, timeout=0):
        paths.append(os.path.basename(path))
        break
    empty = list(tf.train.checkpoints_iterator(_folder(), timeout=0))
    return paths, empty


def values_by_name(tf):
    path = tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).save(_folder() + "/ckpt")
    reader = tf.train.load_checkpoint(path)
    name = "v/.ATTRIBUTES/VARIABLE_VALUE"
    return (
        reader.get_tensor(name),
        reader.has_tensor(name),
        tf.train.load_variable(path, name),
        name in dict(tf.train.list_variables(path)),
        reader.get_variable_to_shape_map()[name],
    )


def an_optimizer(tf):
    w = tf.Variable([1.0, 2.0])
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)
    checkpoint = tf.train.Checkpoint(w=w, optimizer=optimizer)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    step()
    path = checkpoint.save(_folder() + "/ckpt")
    step()
    after_two = np.asarray(w)
    checkpoint.restore(path)
    step()
    return after_two, w


def restoring_before_creating(tf):
    path = tf.train.Checkpoint(v=tf.Variable([3.0])).save(_folder() + "/ckpt")
    later = tf.train.Checkpoint()
    status = later.restore(path)
    later.v = tf.Variable([0.0])
    return later.v, raised(lambda: status.assert_consumed())
