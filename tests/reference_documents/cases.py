"""What each code block of the documents needs in order to run, and what it must do then.

A case is a generator that yields once. Before the yield it defines the block's placeholders; then the
block runs; afterwards the case checks what the block did. Outputs that are documented in the block are
always compared. `replaced` fixes code that can't run as published: bodies that consist of a comment,
lost indentation, a wrapped comment. The rest of a block is unchanged, except that GPUs become CPU
devices.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.reference_documents.running import expect_output, on_cpu
from tests.tf.records import write_record

import replicax.tf as tf

HERE, ONE_DEVICE, TWO_WORKERS = "8 devices", "1 device", "2 workers"
TWO = ["CPU:0", "CPU:1"]
CASES: dict[str, "Case"] = {}


@dataclass(frozen=True)
class Case:
    """How to run a block.

    Args:
        program: puts in the placeholders, yields, and checks.
        placeholders: what they are, in words.
        where: in which process it runs.
        replaced: (old, new) pairs, for what can't run as published.
        after: the blocks that run before it, in the same program.
        ends_with: the exception that ends it, for a block that would never end.
    """

    program: Callable[..., Any]
    placeholders: str
    where: str
    replaced: tuple[tuple[str, str], ...]
    after: tuple[str, ...]
    ends_with: type[Exception] | None

    def completed(self, text):
        for old, new in self.replaced:
            assert old in text, f"the block has no {old!r} to be replaced"
            text = text.replace(old, new)
        return on_cpu(text)


def case(*names, placeholders="none", where=HERE, replaced=(), after=(), ends_with=None):
    """The decorated function is the case of the blocks `names`."""

    def register(program):
        for name in names:
            CASES[name] = Case(program, placeholders, where, tuple(replaced), tuple(after), ends_with)
        return program

    return register


class Enough(Exception):
    """Ends a loop over a dataset that never ends."""


def local(run, value):
    """The parts of a distributed value as NumPy arrays."""
    return [np.asarray(part) for part in run["strategy"].experimental_local_results(value)]


# The blocks with prompts: their documented outputs are the whole check.


@case("000_batch_reduce_to_1", "000_reduce_to_1")
def reduced_and_assigned(run):
    yield
    assert len(run.printed) == 3


@case(
    "000_variable_created_in_scope_1",
    "000_variable_created_in_scope_2",
    "002_variable_created_in_scope_1",
    "002_variable_created_in_scope_2",
    "003_experimental_distribute_values_from_function_1",
    "003_experimental_distribute_values_from_function_2",
    "003_experimental_distribute_values_from_function_3",
    "003_run_1",
    "003_run_2",
    "003_scope_1",
    "004_overview_1",
    "004_overview_2",
    "004_run_1",
    "004_run_2",
    where=ONE_DEVICE,
)
def with_documented_output(run):
    yield
    assert run.printed


@case("003_experimental_make_numpy_dataset_1", where=ONE_DEVICE)
def numpy_dataset(run):
    yield
    batches = [local(run, batch) for batch in run["dist_dataset"]]
    np.testing.assert_array_equal(batches, np.ones((5, 1, 2), np.float32))


# Values and variables.


@case(
    "000_call_for_each_replica_1",
    "001_call_for_each_replica_2",
    "002_call_for_each_replica_1",
    placeholders="distribution",
)
def merged(run):
    run["distribution"] = tf.distribute.MirroredStrategy(TWO)
    yield
    (printed,) = run.printed
    expect_output("(Array(10, dtype=int32), Array(11, dtype=int32))", printed)


@case(
    "000_colocate_vars_with_1",
    "001_colocate_vars_with_2",
    "002_colocate_vars_with_1",
    placeholders="strategy, the variables' values, the body of `fn`",
    replaced=[
        ("(...)", "(1.0)"),
        ("def fn(v1, v2, v3):\n", "def fn(v1, v2, v3):\n    return v1.assign(v1 + 2 * v2 + 3 * v3)\n"),
    ],
)
def colocated(run):
    run["strategy"] = tf.distribute.MirroredStrategy(TWO)
    yield
    np.testing.assert_array_equal(local(run, run["var1"]), [6.0, 6.0])
    assert run["var2"].mesh == run["var3"].mesh == run["var1"].mesh


@case(
    "000_non_slot_devices_1",
    placeholders="the strategy (published as its class), the variables",
    replaced=[
        ("tf.distribute.StrategyExtended", "strategy.extended"),
        ("non_slot_devices(...)", "non_slot_devices([v])"),
        ("  ...\n", "  step = tf.Variable(0)\n"),
    ],
)
def beside_no_variable(run):
    run["strategy"] = strategy = tf.distribute.MirroredStrategy(TWO)
    with strategy.scope():
        run["v"] = tf.Variable(1.0)
        yield
    assert strategy.extended.variable_created_in_scope(run["step"])


def updated(run):
    yield
    documented = run.text.partition("# result is\n")[2].replace("#", "")
    expect_output(documented, repr(run["result"]))
    np.testing.assert_array_equal(local(run, run["v"]), [1.0, 1.0])


case("000_update_1", placeholders="a comment that was wrapped", replaced=[("\ndevices\n", "\n")])(updated)
case("002_update_1")(updated)


@case(
    "000_update_2",
    "001_update_2",
    "002_update_2",
    placeholders="var, fn, args, kwargs, merged, the `def` that it is the body of",
    replaced=[
        ("results = {}\n", "def update(var, fn, args, kwargs):\n  results = {}\n"),
        ("\nfor device", "\n  for device"),
        ("\n  with tf.device", "\n    with tf.device"),
        ("\n    results[device]", "\n      results[device]"),
        ("\nreturn", "\n  return"),
    ],
)
def update_in_words(run):
    strategy = tf.distribute.MirroredStrategy(TWO)
    with strategy.scope():
        v = tf.Variable(5.0)
    run["merged"] = lambda results: results
    yield

    def fn(v, x, scale):
        return v + x * scale

    copies = zip(TWO, strategy.experimental_local_results(v), strict=True)
    results = run["update"](copies, fn, (2.0,), {"scale": 3.0})
    ours = strategy.extended.update(v, fn, args=(2.0,), kwargs={"scale": 3.0})
    assert list(results) == TWO
    for theirs, our in zip(results.values(), strategy.experimental_local_results(ours), strict=True):
        assert float(theirs) == float(our) == 11.0
        assert theirs.device == our.device


@case(
    "001_variable_created_in_scope_2",
    placeholders="strategy, lost indentation, `.extended`",
    replaced=[("\nv = ", "\n  v = "), ("strategy.variable_", "strategy.extended.variable_")],
)
@case(
    "001_variable_created_in_scope_3",
    placeholders="strategy, `.extended`",
    replaced=[("strategy.variable_", "strategy.extended.variable_")],
)
def owned(run):
    run["strategy"] = tf.distribute.MirroredStrategy(TWO)
    yield
    computed, documented = run.printed  # the last line of the block is the output of the one before
    assert computed == documented


# Input.


def epochs(run):
    run["my_strategy"] = tf.distribute.MirroredStrategy(TWO)
    run["dataset"] = tf.data.Dataset.range(10).batch(4)
    run["EPOCHS"] = 2
    yield
    assert int(run["train_result"]) == 45


_RESULT = [("      return result\n", "      result = tf.reduce_sum(input)\n      return result\n")]
case("003_overview_1", placeholders="my_strategy, dataset, EPOCHS, result", replaced=_RESULT)(epochs)
case("004_overview_3", placeholders="dataset, EPOCHS, result", replaced=_RESULT)(epochs)


def records_in(folder):
    """Four files of four records each, a float32 in each record; what reads them under other names."""
    for i in range(4):
        with open(folder / f"{i + 1}.tfr", "wb") as file:
            for j in range(4):
                write_record(file, np.float32(4 * i + j).tobytes())

    def read(filenames):
        files = [str(folder / Path(name).name) for name in filenames]
        return (
            tf.data.TFRecordDataset(files).map(lambda record: np.frombuffer(record, np.float32)[0]).batch(8)
        )

    return SimpleNamespace(Dataset=SimpleNamespace(TFRecordDataset=read))


_RECORDS = "dataset_ops (the files are elsewhere; records are parsed and batched)"


@case(
    "003_experimental_distribute_dataset_1",
    "004_experimental_distribute_dataset_1",
    placeholders=f"{_RECORDS}, replica_fn, train_step",
)
def over_records(run):
    seen = []
    run["replica_fn"] = run["train_step"] = lambda x: seen.append(np.asarray(x))
    with tempfile.TemporaryDirectory() as folder:
        run["dataset_ops"] = records_in(Path(folder))
        yield
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(16, dtype=np.float32))
    assert len(seen) == 2 * run["strategy"].num_replicas_in_sync


@case(
    "003_experimental_distribute_dataset_2",
    "004_experimental_distribute_dataset_2",
    placeholders=_RECORDS,
)
def over_records_with_signature(run):
    with tempfile.TemporaryDirectory() as folder:
        run["dataset_ops"] = records_in(Path(folder))
        yield
    last = np.concatenate(local(run, run["x"]))
    np.testing.assert_array_equal(last, np.arange(8, 16, dtype=np.float32))


_FROM_FUNCTION = "003_experimental_distribute_datasets_from_function_"


@case(f"{_FROM_FUNCTION}1", where=ONE_DEVICE)
def dataset_function(run):
    yield
    context = tf.distribute.InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=2)
    assert next(iter(run["dataset_fn"](context))).shape == (4, 1, 1)


@case(
    f"{_FROM_FUNCTION}2",
    placeholders="the block before it",
    where=ONE_DEVICE,
    after=[f"{_FROM_FUNCTION}1"],
)
def datasets_from_function(run):
    yield
    (batch,) = local(run, next(iter(run["ds"])))
    np.testing.assert_array_equal(batch, np.ones((8, 1, 1), np.float32))


@case(
    f"{_FROM_FUNCTION}3",
    placeholders="the blocks before it, a call of the step",
    where=ONE_DEVICE,
    after=[f"{_FROM_FUNCTION}1", f"{_FROM_FUNCTION}2"],
    replaced=[("...     return inputs\n", "...     return inputs\n...   return step_fn\n")],
)
def step_with_signature(run):
    yield
    step_fn = run["train"](run["ds"])
    (result,) = local(run, run["strategy"].run(step_fn, args=(next(iter(run["ds"])),)))
    np.testing.assert_array_equal(result, np.ones((8, 1, 1), np.float32))


@case(
    "004_experimental_distribute_datasets_from_function_1",
    placeholders="strategy, global_batch_size, replica_fn (which ends the loop)",
    ends_with=Enough,
)
def endless(run):
    shapes = []

    def replica_fn(batch):
        shapes.append(batch.shape)
        if len(shapes) > 6:
            raise Enough
        return tf.reduce_sum(batch)

    run["strategy"] = tf.distribute.MirroredStrategy(TWO)
    run["global_batch_size"] = 8
    run["replica_fn"] = replica_fn
    yield
    assert shapes == [(4, 1, 1)] * 7
    np.testing.assert_array_equal(local(run, run["replica_results"]), [4.0, 4.0])


@case(
    "004_experimental_distribute_datasets_from_function_2",
    placeholders="strategy, inputs, steps",
)
def iterator_with_signature(run):
    run["strategy"] = strategy = tf.compat.v1.distribute.MirroredStrategy(TWO)
    run["inputs"] = strategy.experimental_distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(12).batch(2)
    )
    run["steps"] = 2
    yield
    rest = [np.concatenate(local(run, batch)).tolist() for batch in run["iterator"]]
    assert rest == [[8, 9, 10, 11]]


@case(
    "004_experimental_make_numpy_dataset_1",
    placeholders="strategy; a line that puts the rows into batches, as document 003 has it",
    replaced=[("(numpy_input)\n", "(numpy_input)\ndataset = dataset.batch(2)\n")],
)
def numpy_dataset_of_version_1(run):
    run["strategy"] = tf.compat.v1.distribute.MirroredStrategy(TWO)
    yield
    batches = [local(run, batch) for batch in run["dist_dataset"]]
    np.testing.assert_array_equal(batches, np.ones((5, 2, 1), np.float32))


@case("004_make_input_fn_iterator_1", placeholders="strategy, global_batch_size, replica_fn")
def input_function(run):
    run["strategy"] = tf.compat.v1.distribute.MirroredStrategy(TWO)
    run["global_batch_size"] = 8
    run["replica_fn"] = tf.reduce_sum
    yield
    np.testing.assert_array_equal(local(run, run["replica_results"]), [4.0, 4.0])


# TPUs; virtual CPU devices stand in for the cores.


@case(
    "003_experimental_assign_to_logical_device_1",
    placeholders="inputs, and that other devices are the cores",
    replaced=[("tpu=''", "tpu='local'")],
)
def assigned(run):
    run["inputs"] = [tf.constant([1.0, 2.0])]
    yield
    assert run["strategy"].num_replicas_in_sync == 4
    result = run["strategy"].run(run["step_fn"], args=(run["inputs"][0],))
    np.testing.assert_array_equal(local(run, result), [[2.0, 4.0]] * 4)


@case(
    "003_experimental_distribute_values_from_function_4",
    placeholders="a line break after a dot",
    replaced=[("strategy.\n  experimental", "strategy.experimental")],
)
def values_on_devices(run):
    yield
    assert run["strategy"].num_replicas_in_sync == 8
    np.testing.assert_array_equal(local(run, run["distributed_values"]), np.ones(8))
    where = [next(iter(x.devices())).id for x in run["multiple_values"]]
    assert where == list(range(8))


def convolved(images):
    """A model that mixes neighbouring pixels, so that devices must exchange parts of images."""
    return images + tf.roll(images, 1, axis=1) + tf.roll(images, 1, axis=2)


@case(
    "003_experimental_replicate_to_logical_devices_1",
    placeholders="inputs, model, loss_fn; 8 logical devices, not 2; `images` is split, not `inputs`",
    replaced=[
        ("tpu=''", "tpu='local'"),
        ("computation_shape=[1, 1, 1, 2]", "computation_shape=[1, 2, 2, 2]"),
        ("num_replicas=4", "num_replicas=1"),
        ("    inputs, [1, 2, 4, 1])", "    images, [1, 2, 4, 1])"),
        ("model(inputs)", "model(images)"),
    ],
)
def replicated(run):
    images = np.arange(2 * 4 * 8 * 3, dtype=np.float32).reshape(2, 4, 8, 3)
    labels = np.ones((2, 4, 8, 3), np.float32)
    run["inputs"] = [(images, labels)]
    run["model"] = convolved
    run["loss_fn"] = lambda labels, output: tf.reduce_mean(output - labels)
    yield
    (loss,) = run["strategy"].experimental_local_results(
        run["strategy"].run(run["step_fn"], args=((images, labels),))
    )
    np.testing.assert_allclose(loss, 3 * images.mean() - 1, rtol=1e-6)
    # As published there are two logical devices, and the split is for eight: documented to be refused.
    namespace = dict(run.names, inputs=[(images, labels)])
    published = run.text.replace("    inputs, [1, 2, 4, 1])", "    images, [1, 2, 4, 1])")
    published = published.replace("tpu=''", "tpu='local'")
    with pytest.raises(ValueError, match="logical"):
        exec(published, namespace)


@case(
    "003_experimental_split_to_logical_devices_1",
    placeholders="inputs, model, and that other devices are the cores",
    replaced=[("tpu=''", "tpu='local'")],
)
def split(run):
    images = np.arange(2 * 4 * 8 * 3, dtype=np.float32).reshape(2, 4, 8, 3)
    run["inputs"] = [images]
    run["model"] = convolved
    yield
    assert run["strategy"].num_replicas_in_sync == 1
    result = run["strategy"].run(run["step_fn"], args=(images,))
    np.testing.assert_allclose(local(run, result)[0], convolved(images))


# Several processes.


@case(
    "003_overview_2",
    placeholders="addresses, the number of the worker, bodies of `if` and `elif`",
    where=TWO_WORKERS,
    replaced=[
        ("== 'worker':\n", "== 'worker':\n  role = 'a worker'\n"),
        ("== 'ps':\n", "== 'ps':\n  role = 'a parameter server'\n"),
    ],
)
def workers(run):
    yield
    strategy = run["strategy"]
    assert run["role"] == "a worker"
    assert strategy.num_replicas_in_sync == 2
    resolver = strategy.cluster_resolver
    assert resolver.task_id == run["INDEX"]
    assert resolver.cluster_spec().as_dict()["worker"] == run["ADDRESSES"]
    total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
    assert float(total) == 2.0
