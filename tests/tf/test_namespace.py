"""`replicax.tf` as a namespace: functions, modules, checkpoints, devices, and names that it has not."""

import importlib
import importlib.metadata
import logging
import os
import pkgutil
import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.checkpoint import Store

DEVICES = ["CPU:0", "CPU:1"]


def modules():
    found = [tf]
    for info in pkgutil.walk_packages(tf.__path__, "replicax.tf."):
        if not any(part.startswith("_") for part in info.name.split(".")[2:]):
            found.append(importlib.import_module(info.name))
    return found


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_what_a_module_says_it_has_it_has(module):
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name), name
    assert module.__doc__
    with pytest.raises(AttributeError, match="has no"):
        module.no_such_name  # noqa: B018


def test_everything_with_a_docstring():
    for module in modules():
        for name in () if ".keras" in module.__name__ else module.__all__:  # Keras' own
            value = getattr(module, name)
            if isinstance(value, types.FunctionType | type):
                assert value.__doc__, f"{module.__name__}.{name}"


@pytest.mark.parametrize(
    ("name", "instead"),
    {
        "Graph": "no graphs",
        "SparseTensor": "jax.experimental.sparse",
        "RaggedTensor": "mask",
        "saved_model": "jax.export",
        "strings": "strings on the host",
        "summary.trace_on": "jax.profiler",
        "recompute_grad": "jax.checkpoint",
        "autodiff": "jax.jvp",
        "compat.v1.Session": "no graphs and sessions",
        "compat.v1.data": "`tf.data`",
        "debugging.set_log_device_placement": "x.devices()",
        "io.VarLenFeature": "FixedLenSequenceFeature",
        "train.AdamOptimizer": "rx.Optimizer",
        "nn.ctc_loss": "optax.ctc_loss",
        "data.FixedLengthRecordDataset": "np.memmap",
        "train.SequenceExample": "tf.train.Example",
        "linalg.lu_solve": "`jax.scipy.linalg.lu_solve`",
        "math.no_such_name": "docs/porting.md",
        "image.ssim": "dm-pix",
        "Varable": "Did you mean 'Variable'?",
        "distribute.MirorStrategy": "Did you mean 'MirroredStrategy'?",
        "distribute.experimental.MultiWorkerMiroredStrategy": "Did you mean 'MultiWorkerMirroredStrategy'?",
    }.items(),
)
def test_a_missing_name_says_what_to_use(name, instead):
    holder = tf
    *folders, last = name.split(".")
    for folder in folders:
        holder = getattr(holder, folder)
    with pytest.raises(AttributeError) as caught:
        getattr(holder, last)
    assert instead in str(caught.value) and "replicax.tf" in str(caught.value)
    assert not hasattr(holder, last)


def test_the_core_does_not_import_it():
    unwanted = ("replicax.tf", "replicax.compat", "grain", "keras")
    code = f"import replicax, sys; print([m for m in sys.modules if m.startswith({unwanted})])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert result.stdout.strip() == "[]"


def test_the_namespace_does_not_import_grain_or_keras():
    code = (
        "import replicax.tf, sys; print([m for m in sys.modules if m in ('grain', 'keras', 'tensorflow')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert result.stdout.strip() == "[]"


# tf.function.


def test_functions_return_tensors():
    @tf.function
    def f(x):
        return {"n": 3, "x": x, "flag": True, "text": "text", "none": None}

    result = f(tf.constant(1.0))
    assert isinstance(result["n"], jax.Array) and result["n"].dtype == tf.int32
    assert result["flag"].dtype == tf.bool and result["text"] == "text" and result["none"] is None
    v = tf.Variable(1.0)
    assert tf.function(lambda: v)() is v


def test_options_of_functions(caplog):
    with caplog.at_level(logging.INFO, "replicax"):
        double = tf.function(jit_compile=True, reduce_retracing=True, autograph=False)(lambda x: 2 * x)
        tf.function(lambda x: x, reduce_retracing=True)
    assert float(double(tf.constant(2.0))) == 4.0
    assert [record.getMessage().split(":")[0] for record in caplog.records] in (
        [],  # said before in this process
        ["tf.function(reduce_retracing=...) has no effect here"],
    )
    with pytest.raises(ValueError, match="only XLA compiles"):
        tf.function(lambda: 1, jit_compile=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'jit'"):
        tf.function(lambda: 1, jit=True)
    signed = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None], tf.float32)])
    assert signed(tf.ones([3])).shape == (3,)
    with pytest.raises(TypeError, match="expected TensorSpec"):
        signed(tf.ones([2, 2]))


def test_an_epoch_in_a_function():
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))

    @tf.function
    def epoch(dataset):
        total = 0
        for x in dataset:
            total += strategy.reduce(
                tf.distribute.ReduceOp.SUM, strategy.run(tf.reduce_sum, args=(x,)), axis=None
            )
        return total

    assert int(epoch(dataset)) == int(epoch(dataset)) == 28


# tf.Module and friends.


def test_modules_find_their_variables():
    class Inner(tf.Module):
        def __init__(self):
            super().__init__()
            self.b = tf.Variable(1.0, name="b")

    class Outer(tf.Module):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = [Inner(), Inner()]
            self.table = {"z": tf.Variable(2.0, name="z"), "a": tf.Variable(3.0, name="a")}
            self.again = self.inner[0]
            self.count = tf.Variable(0, trainable=False, name="count")

    outer = Outer()
    assert [v.name for v in outer.variables] == ["b:0", "count:0", "b:0", "a:0", "z:0"]
    assert len(outer.trainable_variables) == 4 and len(outer.non_trainable_variables) == 1
    assert outer.submodules == (outer.inner[0], outer.inner[1])
    assert outer.name == "outer" and Inner().name == "inner"
    with outer.name_scope:
        pass


def test_devices():
    with tf.device("/cpu:3"):
        assert tf.constant(1.0).device == jax.devices("cpu")[3]
    with tf.device(None):
        pass
    with pytest.raises(ValueError, match="no device"), tf.device("/cpu:99"):
        pass
    assert len(tf.config.list_logical_devices("CPU")) == 8
    assert tf.config.list_physical_devices("GPU") == []
    assert tf.config.list_physical_devices()[0].device_type == "CPU"
    (cpu,) = tf.config.list_physical_devices("CPU")
    with pytest.raises(RuntimeError, match="too late"):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    with pytest.raises(ValueError, match="memory"):
        tf.config.LogicalDeviceConfiguration(memory_limit=100)
    with pytest.raises(ValueError, match="Only the CPU"):
        tf.config.set_logical_device_configuration(tf.config.PhysicalDevice("g", "GPU"), [])


def test_memory_that_grows(caplog, monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    set_memory_growth = tf.config.experimental.set_memory_growth
    with caplog.at_level(logging.WARNING, "replicax"):
        set_memory_growth(None, True)
        assert "already initialized" in caplog.records[0].getMessage()
        assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
        monkeypatch.setattr("replicax.tf.config.experimental.backends_are_initialized", lambda: False)
        set_memory_growth(None, True)
    assert os.environ.pop("XLA_PYTHON_CLIENT_PREALLOCATE") == "false" and len(caplog.records) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda x: 1 if x > 0 else 2,
        lambda x: [1, 2][tf.cast(x, tf.int32)],
        lambda x: list(range(int(x))),
        lambda x: np.asarray(x),
        lambda x: tf.function(bool)(x),
    ],
    ids=["if", "index", "range", "array", "nested"],
)
def test_a_traced_value_in_python_says_what_to_use(use):
    with pytest.raises(
        rx.errors.TracedValueError, match=r"tf\.cond, tf\.while_loop or tf\.where.*JAX says: ."
    ):
        tf.function(use)(tf.constant(1.0))


def test_a_traced_value_in_a_replicas_python_says_what_to_use():
    strategy = tf.distribute.MirroredStrategy(DEVICES)

    @tf.function
    def step(x):
        return strategy.run(lambda x: 1 if x > 0 else 2, args=(x,))

    with pytest.raises(rx.errors.TracedValueError, match="replica function") as caught:
        step(tf.constant(1.0))
    assert [note for note in caught.value.__notes__ if "tf.cond" in note]
    with pytest.raises(rx.errors.TracedValueError, match=r"tf\.cond"):
        strategy.run(tf.function(lambda x: 1 if x > 0 else 2), args=(tf.constant(1.0),))


def test_there_are_no_concrete_functions():
    class Model(tf.Module):
        @tf.function
        def double(self, x):
            return 2 * x

    model = Model()
    for function in (tf.function(lambda x: x), model.double):
        with pytest.raises(NotImplementedError, match=r"jax\.export"):
            function.get_concrete_function(tf.TensorSpec([], tf.float32))
    assert float(model.double(tf.constant(2.0))) == 4.0


def test_the_version_is_that_of_replicax():
    assert tf.__version__ == importlib.metadata.version("replicax")


# tf.train.


def test_the_newest_checkpoint_is_found_while_an_older_one_is_deleted(tmp_path, monkeypatch):
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    old, new = (checkpoint.save(tmp_path / "ckpt") for _ in range(2))
    find = Store.others

    def find_and_delete(store):
        found = find(store)
        shutil.rmtree(old)
        return found

    monkeypatch.setattr(Store, "others", find_and_delete)
    assert tf.train.latest_checkpoint(tmp_path) == new


def test_checkpoints_are_numbered_after_their_prefix(tmp_path):
    v = tf.Variable([1.0, 2.0])
    checkpoint = tf.train.Checkpoint(v=v)
    paths = [checkpoint.save(tmp_path / "model" / "ckpt") for _ in range(2)]
    assert [os.path.basename(path) for path in paths] == ["ckpt-1", "ckpt-2"]
    (tmp_path / "model" / "logs-2024").mkdir()
    assert tf.train.latest_checkpoint(tmp_path / "model") == paths[-1]
    v.assign([0.0, 0.0])
    checkpoint.restore(paths[0]).assert_consumed()
    assert v.numpy().tolist() == [1.0, 2.0]
    reader = tf.train.load_checkpoint(tmp_path / "model")
    key = "v/.ATTRIBUTES/VARIABLE_VALUE"
    assert reader.get_variable_to_shape_map()[key] == [2] and reader.has_tensor(key)
    assert reader.get_variable_to_dtype_map()[key] == np.float32
    assert tf.train.load_variable(paths[0], key).tolist() == [1.0, 2.0]
    assert (key, [2]) in tf.train.list_variables(paths[0])
    with pytest.raises(rx.errors.CheckpointMissingError, match="has no 'w'"):
        reader.get_tensor("w")


def test_restoring_no_checkpoint(tmp_path):
    v = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(v=v)
    status = checkpoint.restore(tf.train.latest_checkpoint(tmp_path))
    assert status.expect_partial() is status and float(v) == 1.0
    with pytest.raises(AssertionError, match="Nothing was restored"):
        status.assert_consumed()


def test_a_manager(tmp_path):
    step = tf.Variable(0)
    begun = []
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=step),
        tmp_path,
        max_to_keep=2,
        step_counter=step,
        checkpoint_interval=5,
        init_fn=lambda: begun.append(1),
    )
    assert manager.restore_or_initialize() is None and begun == [1]
    saved = []
    for _ in range(12):
        step.assign_add(1)
        saved.append(manager.save())
    assert [i + 1 for i, path in enumerate(saved) if path] == [1, 6, 11]
    assert [os.path.basename(path) for path in manager.checkpoints] == ["ckpt-2", "ckpt-3"]
    assert manager.latest_checkpoint == saved[10] == manager.checkpoints[-1]
    assert os.path.basename(manager.save(checkpoint_number=40, check_interval=False)) == "ckpt-40"
    step.assign(0)
    assert manager.restore_or_initialize() == manager.latest_checkpoint and int(step) == 12
    with pytest.raises(ValueError, match="pass both"):
        tf.train.CheckpointManager(tf.train.Checkpoint(), tmp_path, 1, step_counter=step)
    with pytest.raises(ValueError, match="kept by number"):
        tf.train.CheckpointManager(tf.train.Checkpoint(), tmp_path, 1, keep_checkpoint_every_n_hours=2)


# The rest.


def test_what_is_replicax_is_replicax():
    assert tf.Variable is rx.Variable and tf.distribute.MirroredStrategy is rx.MirroredStrategy
    assert tf.distribute.get_replica_context is rx.get_replica_context
    assert tf.nn.compute_average_loss is rx.compute_average_loss
    assert tf.get_logger() is logging.getLogger("replicax")


def test_older_names_of_strategies():
    workers = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    assert isinstance(workers, rx.MultiWorkerMirroredStrategy)
    assert isinstance(tf.distribute.experimental.TPUStrategy(), rx.TPUStrategy)
    ring = tf.distribute.experimental.CollectiveCommunication.RING
    assert tf.distribute.experimental.MultiWorkerMirroredStrategy(ring).num_replicas_in_sync == 1


def test_keras_is_keras_on_jax():
    keras = pytest.importorskip("keras")
    assert tf.keras.layers.Dense is keras.layers.Dense and keras.backend.backend() == "jax"


def test_keras_on_another_backend(monkeypatch):
    pytest.importorskip("keras")
    monkeypatch.delattr(tf, "keras", raising=False)
    monkeypatch.setattr("keras.backend.backend", lambda: "torch")
    with pytest.raises(AttributeError, match="KERAS_BACKEND=jax"):
        tf.keras  # noqa: B018


def test_files(tmp_path):
    gfile = tf.io.gfile
    gfile.makedirs(str(tmp_path / "a" / "b"))
    gfile.makedirs(str(tmp_path / "a" / "b"))
    assert (
        gfile.isdir(str(tmp_path / "a"))
        and gfile.exists(str(tmp_path))
        and gfile.listdir(str(tmp_path)) == ["a"]
    )
    assert gfile.glob(str(tmp_path / "*")) == [str(tmp_path / "a")]
    gfile.rmtree(str(tmp_path / "a"))
    assert not gfile.exists(str(tmp_path / "a"))
