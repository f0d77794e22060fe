"""What only the recorded programs show: where we mean to differ, what is left out, and what is open.

    (probe, kinds, case) -> (why, what we give), or why

as in `differences.py`, which holds for the programs too.
"""

from __future__ import annotations

import re

from .differences import (
    ALL,
    IDS,
    MC,
    OUTSIDE,
    Ours,
    central,
    each,
    mirrored,
    plain,
    scalar,
)

__all__ = ["LEFT_OUT", "OPEN", "PROGRAM_DIFFERENCES", "with_one_class"]

AUTOGRAPH = (
    "Python's `if` and `while` on traced values are not rewritten; `tf.cond` and `tf.while_loop` are there"
)
OWN_STRATEGY = "every variable knows the strategy that it belongs to"
OWN_NAME = "the error is a class of ours, a subclass of the recorded one"
PER_REPLICA_SHAPES = "one program serves all replicas, so a shape can't depend on the replica id"
SPELLINGS = "every spelling of the four releases is there, and logical devices are there for all strategies"
V1_ONLY = "what is of version 1 alone is in `tf.compat.v1.distribute`"
GRAPHS = "there are no graphs and sessions"
ALL_DEVICES = "the tests run with eight CPU devices"
DEVICES = "devices are a tuple on every strategy"
EVERY_ELEMENT = "functions given to `map` are called for every element: they are Python, not a graph"
ONCE = "state is saved and restored once, outside of replicas"
OWN_PART = (
    "an ON_READ variable is saved and restored part by part, where the number of replicas is the same"
)
RANDOM = "the numbers of TensorFlow's random generator"
WHOLE_BATCH = "losses and weights are those of one device, for every batch size"
KERAS_VALUE = "`value` of a Keras variable is an array; `replicax_variable` is the strategy's variable"
INSIDE_KERAS = "looks at the variable of TensorFlow inside of a Keras variable"
MOVED = "what was made outside of the scope is moved to the strategy"
NO_REPLICAS = "without replicas the average is that of the whole batch"

LEFT_OUT: dict[tuple[str, str, str], str] = {
    ("documents", "mirrored", "v1 experimental_run_steps_on_iterator (graph, 3 its)"): GRAPHS,
    ("documents", "mirrored", "props Default"): "the words of TensorFlow's errors",
    ("generator", "mirrored", "*"): RANDOM,
    (
        "checkpoints",
        "mirrored",
        "save mirrored module, load plain & under mirrored",
    ): "there are no SavedModels",
    ("checkpoints", "mirrored", "SavedModel with ON_READ var (loaded as)"): "there are no SavedModels",
    ("checkpoints", "mirrored", "SaveOptions expand_distributed_variables file content"): (
        "there are no SavedModels"
    ),
    ("extended", "mirrored", "devices=None with logical cpus"): ALL_DEVICES,
    ("extended", "mirrored", "CentralStorage()"): ALL_DEVICES,
    ("keras", "mirrored", "Keras Dropout(seed) per replica"): RANDOM,
    ("keras", "mirrored", "Keras BatchNorm moving_mean update"): INSIDE_KERAS,
    ("keras_fit", "mirrored", "BatchNorm moving_mean copies after fit"): INSIDE_KERAS,
    ("keras_fit", "mirrored", "keras.random.SeedGenerator per replica"): INSIDE_KERAS,
    ("keras_fit", "mirrored", "optimizer variables aggregation"): INSIDE_KERAS,
    ("keras_fit", "mirrored", "keras.Variable default aggregation"): INSIDE_KERAS,
    ("keras_fit", "mirrored", "metric variables aggregation/sync"): INSIDE_KERAS,
}

OPEN: dict[tuple[str, str, str], str] = {}


def with_one_class(text: str) -> str:
    """A recorded result with the one class that all our variables have; `isinstance` tells the kinds."""
    return re.sub(r"'(Mirrored|SyncOnRead|Aggregating)Variable'", "'Variable'", text)


_THREE = "T<int32,[]>(3)@c0"
_RETURNED = f"{each(1.0, 1.0)}, {IDS}, {_THREE}, None, {each(5.0, 5.0)}"

_RUN = {
    ("mirrored", "returned structure from tf.function-wrapped run"): Ours(
        1, f"[({_RETURNED}, {mirrored(7.0)}), 'Variable']"
    ),
    ("central", "returned structure from tf.function-wrapped run"): Ours(
        1, f"[({_RETURNED}, {central(7.0)}), 'Variable']"
    ),
    ("onedev", "returned structure from tf.function-wrapped run"): Ours(
        1, f"[({scalar(1.0)}, T<int32,[]>(0)@c0, {_THREE}, None, {scalar(5.0)}, {plain(7.0)}), 'Variable']"
    ),
    (MC, "*_* under tf.cond*"): Ours(AUTOGRAPH, "!TypeError: tf.function has no AutoGraph here"),
    ("onedev", "*_* under tf.cond*"): Ours(AUTOGRAPH, "!TypeError: tf.function has no AutoGraph here"),
    (ALL, "inside dataset.map fn"): Ours(EVERY_ELEMENT, f"[{OUTSIDE}, {OUTSIDE}]"),
}

_VARS = {
    ("onedev", "default var attrs"): Ours(
        OWN_STRATEGY, "[True, 'Variable:0', ['Variable:0'], 'c1', '[]', True]"
    ),
}

_REDUCE = {
    (MC, "after a collective shape mismatch, next good all_reduce"): Ours(
        OWN_NAME, f"[None, 'CollectiveError', {each(3.0, 3.0)}]"
    ),
    (MC, "after mismatch, even a NEW strategy"): Ours(OWN_NAME, f"['CollectiveError', {each(3.0, 3.0)}]"),
    (MC, "all_gather in tf.function uneven"): Ours(
        PER_REPLICA_SHAPES, "!TypeError: used a traced value as a Python number"
    ),
    ("onedev", "all_gather in tf.function uneven"): Ours(
        PER_REPLICA_SHAPES, "!TypeError: used a traced value as a Python number"
    ),
}

_EXTENDED = {
    (MC, "update in replica ctx (auto merge_call)"): Ours(
        4, "!ValueError: extended.update got a PerReplica argument"
    ),
    ("mirrored", "CentralStorage compute only"): Ours(DEVICES, "[\"('CPU:0', 'CPU:1')\", \"('CPU:0',)\"]"),
    ("mirrored", "CentralStorage param not in computes"): Ours(DEVICES, "[\"('CPU:0',)\", \"('CPU:1',)\"]"),
    ("mirrored", "copy.copy(strategy)"): Ours(
        "a strategy never changes: its copies are itself", "MirroredStrategy(['CPU:0', 'CPU:1'])"
    ),
}

_EXTRA = {
    ("mirrored", "tf.while around run in tf.function"): Ours(
        AUTOGRAPH, "!TypeError: tf.function has no AutoGraph here"
    ),
    ("mirrored", "tf.cond around run (with all_reduce) in tf.function"): Ours(
        AUTOGRAPH, "!TypeError: tf.function has no AutoGraph here"
    ),
    ("mirrored", "InputOptions(experimental_prefetch_to_device=True)"): Ours(
        16,
        "InputOptions(fetch_to_device=True, "
        "replication_mode=<InputReplicationMode.PER_WORKER: 'PER_WORKER'>, place_dataset_on_device=False, "
        "per_replica_buffer_size=2, partial_batch='exact', auto_shard_policy=<AutoShardPolicy.AUTO: 0>)",
    ),
}


_DOCUMENTS = {
    ("mirrored", "S3 run ex.2 DistributedValues input in tf.function (N)"): Ours(
        1, "PerReplica{T<int32,[]>(4)@c0, T<int32,[]>(4)@c1}"
    ),
    ("mirrored", "S3 experimental_make_numpy_dataset (TF2 Strategy)"): Ours(
        16, "<ArrayDataset of float32[10], not batched>"
    ),
    ("mirrored", "S4 experimental_make_numpy_dataset (v1 Strategy)"): Ours(
        "it is the dataset that `rx.from_arrays` makes", "['ArrayDataset', 'TensorSpec<float32,[]>']"
    ),
    ("mirrored", "v1 make_dataset_iterator + experimental_run"): Ours(
        "the class has the name that is documented",
        "['InputIterator', 'None', PerReplica{T<int32,[]>(1)@c0, T<int32,[]>(5)@c1}, "
        "PerReplica{T<int32,[]>(9)@c0, T<int32,[]>(13)@c1}]",
    ),
    ("mirrored", "v1 update_config_proto"): Ours(
        "printed without a line end", "'isolate_session_state: true'"
    ),
    ("mirrored", "colocate_vars_with(non_slot_devices) VERBATIM doc pattern"): Ours(17, mirrored(1.0)),
    ("mirrored", "hasattr Strategy.*"): Ours(SPELLINGS, "True"),
    ("mirrored", "v2 make_dataset_iterator"): Ours(V1_ONLY, "!AttributeError: a method of version 1"),
    ("mirrored", "v2 experimental_run"): Ours(V1_ONLY, "!AttributeError: a method of version 1"),
    ("mirrored", "v2 unwrap/group/colocate/configure"): Ours(
        "never documented", "!AttributeError: experimental_local_results"
    ),
    ("mirrored", "v2 strategy.colocate_vars_with"): Ours(
        "a method of `extended` alone", "!AttributeError: strategy.extended.colocate_vars_with"
    ),
    ("mirrored", "v2 strategy.configure"): Ours(
        "never documented", "!AttributeError: Replicax has no sessions"
    ),
}

_CHECKPOINTS = {
    ("mirrored", "mirrored ON_READ/NONE"): Ours(
        OWN_NAME, "[SyncOnReadVariable<float32>{6.@c0,6.@c1}, 'read:', 'VariableError']"
    ),
    ("mirrored", "mirrored ON_READ/NONE per-replica=[1,2,..]"): Ours(
        OWN_PART, "[SyncOnReadVariable<float32>{1.@c0,2.@c1}, 'file:', {}]"
    ),
    ("mirrored", "ON_READ/SUM mirrored -> mirrored"): Ours(
        OWN_PART,
        "[SyncOnReadVariable<float32>{1.@c0,2.@c1}, '->', SyncOnReadVariable<float32>{1.@c0,2.@c1}, "
        "'read', T<float32,[]>(3.)@c0]",
    ),
    ("mirrored", "save+restore on the SAME run redistributes ON_READ/SUM copies"): Ours(
        OWN_PART, "SyncOnReadVariable<float32>{1.@c0,2.@c1}"
    ),
    ("mirrored", "int64 ON_READ/SUM restore 7 with N replicas"): Ours(
        10, "[SyncOnReadVariable<int32>{4@c0,3@c1}, 'read:', T<int32,[]>(7)@c0]"
    ),
    ("mirrored", "restore inside replica fn"): Ours(ONCE, "!RuntimeError: in a replica function"),
    ("mirrored", "save inside replica fn"): Ours(ONCE, "!RuntimeError: in a replica function"),
}

_FIT = "[1.031221, 0.336086], [1.328372, 1.359605, 0.499729]"
_FIT_UNEVEN = "[[0.777268], [1.176955, 1.197292, 0.325391]]"

_KERAS = {
    ("mirrored", "fit none"): Ours(KERAS_VALUE, f"['Array', {_FIT}]"),
    ("mirrored", "fit onedev"): Ours(KERAS_VALUE, f"['Array', {_FIT}]"),
    ("mirrored", "fit mirrored"): Ours(KERAS_VALUE, f"['Array', {_FIT}]"),
    ("mirrored", "fit central"): Ours(WHOLE_BATCH, f"['Array', {_FIT}]"),
    ("mirrored", "fit uneven 7 of batch 4 mirrored"): Ours(WHOLE_BATCH, _FIT_UNEVEN),
    ("mirrored", "fit uneven 7 of batch 4 central"): Ours(WHOLE_BATCH, _FIT_UNEVEN),
    ("mirrored", "model built OUTSIDE, fit inside scope"): Ours(MOVED, "'ok'"),
    ("mirrored", "Keras SGD.apply_gradients in replica (grads 1,2,.. lr 1): SUM?"): Ours(
        KERAS_VALUE, scalar("-2.")
    ),
    ("mirrored", "Keras SGD.apply_gradients in tf.function{run}"): Ours(
        KERAS_VALUE, f"[{scalar('-2.')}, T<int32,[]>(1)@c0]"
    ),
    ("mirrored", "Keras Adam unbuilt, slots created inside run"): Ours(
        KERAS_VALUE, f"[{scalar('0.9000008')}, T<int32,[]>(1)@c0]"
    ),
    ("mirrored", "Keras SGD unbuilt inside tf.function{run}"): Ours(KERAS_VALUE, scalar("-1.")),
    ("mirrored", "Keras Mean metric in run"): Ours(
        KERAS_VALUE, f"['Array', {scalar('3.')}, {scalar('1.5')}]"
    ),
    ("mirrored", "Keras metric reset_state in xrep"): Ours(
        KERAS_VALUE, f"[{scalar('0.')}, {scalar('0.')}]"
    ),
    ("mirrored", "Keras BatchNorm synchronized=True"): Ours(
        KERAS_VALUE,
        "[T<float32,[1]>([1.5])@c0, PerReplica{T<float32,[2, 1]>([[-1.0688922], [ 0.       ]])@c0, "
        "T<float32,[2, 1]>([[-0.5344461], [ 1.6033384]])@c1}]",
    ),
    ("mirrored", "tf.nn.compute_average_loss in xrep scope"): Ours(NO_REPLICAS, scalar("1.")),
}

_KERAS_FIT = {
    ("mirrored", "same with synchronized=True"): Ours(
        KERAS_VALUE, "'T<float32,[4]>([12.5 ,13.25,14. ,14.75])@c0'"
    ),
}

_CLUSTER = {
    ("default", "MWMS as evaluator"): Ours("an evaluator runs alone; TensorFlow trips over it", "1"),
}

PROGRAM_DIFFERENCES: dict[tuple[str, str, str], Ours] = {
    (probe, *key): ours
    for probe, differences in {
        "run": _RUN,
        "vars": _VARS,
        "reduce": _REDUCE,
        "extended": _EXTENDED,
        "extra": _EXTRA,
        "documents": _DOCUMENTS,
        "checkpoints": _CHECKPOINTS,
        "cluster": _CLUSTER,
        "keras": _KERAS,
        "keras_fit": _KERAS_FIT,
    }.items()
    for key, ours in differences.items()
}
