"""Where Replicax means to differ from what was recorded, and what it gives instead.

    (probe, kinds, case) -> (why, what we give)

`kinds` are joined with "+"; in a case's name `*` stands for anything. The reason is the number of one
of our decisions (`DECISIONS`), or says why TensorFlow's behaviour has no meaning on JAX or in a library
that refuses by name what it can't honour. Nothing is listed because it is not done yet, and everything
listed is asserted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["DECISIONS", "DIFFERENCES", "Ours"]

DECISIONS = {
    1: "a compiled step returns arrays as PerReplica, variables as themselves, the rest as it is",
    2: "in a reduction every replica contributes what it holds; MEAN of one value is that value",
    3: "a mirrored variable without aggregation can't be written in a replica",
    4: "a PerReplica can't be assigned to a variable across replicas, nor passed to `update`",
    5: "a variable made outside of the scope can't be written in `run`",
    6: "one split rule: sizes differ by at most one, the larger ones first",
    8: "MEAN of integers is float32",
    9: "`gather` goes leaf by leaf and takes negative axes",
    10: "parts of an ON_READ/SUM variable add up to what was assigned",
    11: "a strategy owns no process-wide state",
    12: "collectives and assignments work in control flow and nested functions",
    13: "a scope object can be used again",
    14: "`try` around `merge_call` catches",
    16: "every spelling of the four releases is accepted",
    17: "`colocate_vars_with(non_slot_devices(...))` works, so these are devices on every strategy",
    19: "PER_REPLICA works on every strategy, and changes none",
    20: "a variable converts to Python values like the array that it holds",
}


class Ours(NamedTuple):
    """Why we differ, and the description of what we give."""

    why: int | str
    gives: str

    @property
    def because(self) -> str:
        """The reason in words."""
        return f"decision {self.why}: {DECISIONS[self.why]}" if isinstance(self.why, int) else self.why


def scalar(value: Any) -> str:
    return f"T<float32,[]>({value})@c0"


def each(first: Any, second: Any) -> str:
    return f"PerReplica{{T<float32,[]>({first})@c0, T<float32,[]>({second})@c1}}"


def copies(value: Any) -> str:
    return f"Mirrored{{T<float32,[]>({value})@c0, T<float32,[]>({value})@c1}}"


def mirrored(value: Any) -> str:
    return f"MirroredVariable<float32>{{{value}@c0,{value}@c1}}"


def central(value: Any) -> str:
    return f"AggregatingVariable<float32,{value}>@c0"


def plain(value: Any) -> str:
    return f"Variable<float32,{value}>@c1"


def in_cross_replica(strategy: str) -> str:
    return f"'strategy={strategy} has=True xrep=True rctx=None'"


def in_replica(strategy: str, num_replicas: int) -> str:
    return f"'strategy={strategy} has=True xrep=False rctx=replica(n={num_replicas})'"


OUTSIDE = "'strategy=default has=False xrep=False rctx=default(id=0,n=1)'"

# Reasons that are not a numbered decision.
ARRAYS = "JAX has no variable handles: an assignment gives each replica the new value on its device"
DENSE = "gradients of jax.grad are dense arrays"
TREE = "IndexedSlices is a pytree: its parts are distributed, not the whole"
LOCAL_READ = "a read in a replica is that of its own part, by every spelling"
OUTSIDER = "a variable made outside of the scope is not this strategy's to update"
BY_LEAF = "a structure is reduced leaf by leaf, with an axis too"
CHECKED = "a destination that means nothing is refused on every strategy"
PARTS_DIFFER = "the parts of an ON_READ variable may differ, so they are not Mirrored"
NESTED = "an update inside an update returns its result"
NOT_ONE_VALUE = "a value per replica is not one value, also not for bool() and NumPy"
IMMUTABLE = "a strategy never changes: its copies are itself"
HONOURED = "an argument that is accepted is honoured"
NO_SOFT_PLACEMENT = "JAX has no soft placement: a device that does not exist can't be used"
ONE_COPY = "a variable with one copy is its own component"
ONE_TRACE = "a compiled replica function is traced once for all replicas"
PLAIN_UNWRAPPED = "`run` unwraps PerReplica arguments on every strategy"
REFUSED = "an argument that can't be honoured is refused by name; this strategy of TensorFlow ignores it"
NOT_CONNECTED = "TensorFlow gives None for such a gradient, in silence"
ONE_OPTION = "the two options contradict each other: what is on the device need not be fetched"
ONE_SHAPE = "a compiled program has one shape for each variable"
ORDERED = "scopes are left in the reverse order of entering"
OTHER_COPIES = "a copy that is written alone differs from the others afterwards"
PARTS_OF_ANOTHER = (
    "the parts of an ON_READ variable may differ; TensorFlow gives each copy the part of its replica"
)
SCATTER = "scatters are combined as the aggregation says, also where there is one copy"
TRIPPED = "TensorFlow fails inside of its own code; here it works, or the error says what to pass"
VALUES = "a reduction or a read gives a value, never a variable that may change later"

# Of input.
A_LIST = "a list of batches is a dataset; what is in it is checked when it is read"
COUNT = "the cardinality is a Python int, and counts the steps that a pass gives"
HOST = "data in host memory is NumPy's"
LENGTH = "a dataset with a known number of steps has a length"
NOT_LOST = "no example is lost: at the end a replica that has no batch left gets an empty one"
OFFHAND = "an optional answers in Python, outside of compiled programs"
ONE_CLASS = "every distributed dataset is a DistributedDataset"
OUTSIDE_OF_STEPS = "a batch read while a step is traced would be a constant of it; loop outside"
SAYS_ALL = "printed, an InputContext says all that it knows"
STRINGS = "JAX has no strings: they stay in host memory"
UNBATCHED = "data without a batch axis can't be split, and features are never split"
NO_BATCH_SIZE = "`rx.from_arrays` without `.batch` is refused at once: most often it was forgotten"
PER_DATASET = "one dataset can't be made anew for each replica; only a function can"
WHOSE = "a dataset is for all replicas, so it is not distributed by one of them"

# Errors, with a part of the message.
_DESTINATION = "!ValueError: destinations must be a variable"
_GOT_PARTS = "!ValueError: got a PerReplica value"
_NON_SLOT = "!ValueError: pass what `extended.non_slot_devices(var_list)` returns"
_NOT_COMBINED = "!ValueError: does not say how to combine them"
_NO_AXES = "!ValueError: A scalar has no axes"
_NO_DEVICE = "!ValueError: There is no device"
_NO_ORDER = "!NotImplementedError: the order in which the replicas write their rows"
_NO_VARIABLE = "!ValueError: needs a variable to update"
_ONE_FOR_EACH = "!TypeError: holds one value for each replica"
_OUTSIDE = "!RuntimeError: created outside of that strategy's scope"
_UPDATE_GOT_PARTS = "!ValueError: extended.update got a PerReplica argument"

MC = "mirrored+central"
ALL = "mirrored+central+onedev"
IDS = "PerReplica{T<int32,[]>(0)@c0, T<int32,[]>(1)@c1}"

_RUN = {
    # Compiled steps.
    ("mirrored", "returned structure from tf.function-wrapped run"): Ours(
        1,
        f"[({each(1.0, 1.0)}, {IDS}, 3, None, {each(5.0, 5.0)}, {mirrored(7.0)}), 'MirroredVariable']",
    ),
    ("central", "returned structure from tf.function-wrapped run"): Ours(
        1,
        f"[({each(1.0, 1.0)}, {IDS}, 3, None, {each(5.0, 5.0)}, {central(7.0)}), 'AggregatingVariable']",
    ),
    ("onedev", "returned structure from tf.function-wrapped run"): Ours(
        1, f"[({scalar(1.0)}, T<int32,[]>(0)@c0, 3, None, {scalar(5.0)}, {plain(7.0)}), 'Variable']"
    ),
    (MC, "merge_call in tf.function inside replica fn"): Ours(1, each(2.0, 2.0)),
    (MC, "trace count of tf.function passed to run twice"): Ours(ONE_TRACE, "1"),
    (MC, "python call count when run is in tf.function, 2 calls"): Ours(ONE_TRACE, "1"),
    ("mirrored", "tf.function called in run then outside"): Ours(
        ONE_TRACE, f"[{in_replica('MirroredStrategy', 2)}, {OUTSIDE}]"
    ),
    ("central", "tf.function called in run then outside"): Ours(
        ONE_TRACE, f"[{in_replica('CentralStorageStrategy', 2)}, {OUTSIDE}]"
    ),
    ("onedev", "tf.function called in run then outside"): Ours(
        "a function is traced for each context; TensorFlow goes on with the replica's trace",
        f"[{in_replica('OneDeviceStrategy', 1)}, {OUTSIDE}]",
    ),
    ("onedev", "PerReplica made for fewer replicas"): Ours(PLAIN_UNWRAPPED, scalar(1.0)),
    ("central", "assign MEAN result returned from run (eager)"): Ours(ARRAYS, each(4.0, 4.0)),
    ("central", "inside update fn"): Ours(
        "TensorFlow's id is a device string here", f"[({in_cross_replica('CentralStorageStrategy')}, 0)]"
    ),
    ("onedev", "inside update fn"): Ours(
        "TensorFlow's id is a device string here", f"[({in_cross_replica('OneDeviceStrategy')}, 0)]"
    ),
    # Reductions of one object.
    (MC, "two sequential merge_calls"): Ours(2, scalar(4.0)),
    # Control flow.
    (MC, "merge_call under tf.cond (autograph if)"): Ours(12, each(2.0, 2.0)),
    (MC, "merge_call under tf.while (autograph for)"): Ours(12, each(8.0, 8.0)),
    (MC, "all_reduce under tf.cond"): Ours(12, each(2.0, 2.0)),
    (MC, "all_reduce under tf.while in outer tf.function"): Ours(12, each(8.0, 8.0)),
    (MC, "gradient through merge_call (eager)"): Ours(
        NOT_CONNECTED, "!RuntimeError: all_reduce and all_gather are differentiable"
    ),
    (MC, "try/except around merge_call in replica fn"): Ours(14, "'caught'"),
}

_VARS = {
    ("mirrored", "creation inside run (eager, closure-once)"): Ours(
        2, f"[{each(3.0, 3.0)}, {mirrored(3.0)}]"
    ),
    ("central", "creation inside run (eager, closure-once)"): Ours(
        2, f"[{each(3.0, 3.0)}, {central(3.0)}]"
    ),
    # A value that is one object on all replicas.
    ("mirrored", "ON_WRITE/SUM assign_add(python 1.)"): Ours(2, mirrored(12.0)),
    ("central", "ON_WRITE/SUM assign_add(python 1.)"): Ours(2, central(12.0)),
    ("mirrored", "ON_WRITE/SUM assign_add(same tensor object)"): Ours(2, mirrored(12.0)),
    ("central", "ON_WRITE/SUM assign_add(same tensor object)"): Ours(2, central(12.0)),
    ("mirrored", "ON_WRITE/SUM assign_add(mirrored var)"): Ours(2, mirrored(16.0)),
    ("central", "ON_WRITE/SUM assign_add(mirrored var)"): Ours(2, central(16.0)),
    ("mirrored", "read_value=False"): Ours(2, f"['ret', None, {mirrored(12.0)}]"),
    ("central", "read_value=False"): Ours(2, f"['ret', None, {central(12.0)}]"),
    (MC, "ON_WRITE/* reduce(SUM,v)"): Ours(2, scalar(20.0)),
    ("onedev", "ON_WRITE/* reduce(SUM,v)"): Ours(VALUES, scalar(10.0)),
    ("onedev", "ON_READ/* reduce(SUM,v)"): Ours(VALUES, scalar(1.0)),
    ("mirrored", "ON_READ/ONLY_FIRST_REPLICA extended.read_var outside"): Ours(VALUES, f"[{scalar(1.0)}]"),
    ("central", "ON_READ/SUM reduce(SUM,v)"): Ours(2, scalar(3.0)),
    ("central", "ON_READ/MEAN reduce(SUM,v)"): Ours(2, scalar(3.0)),
    # Writes without aggregation.
    ("mirrored", "ON_WRITE/NONE assign*(rid+1)"): Ours(3, _NOT_COMBINED),
    ("mirrored", "ON_WRITE/NONE tf.function{run} assign_add(rid+1)"): Ours(3, _NOT_COMBINED),
    ("mirrored", "ON_WRITE/NONE run(tf.function) assign_add then read"): Ours(3, _NOT_COMBINED),
    ("mirrored", "scatter replica NONE *"): Ours(3, _NOT_COMBINED),
    (MC, "* scope ON_WRITE/* assign(PerReplica)"): Ours(4, _GOT_PARTS),
    ("central", "* scope ON_READ/* assign(PerReplica)"): Ours(4, _GOT_PARTS),
    ("mirrored", "* scope ON_READ/NONE assign(PerReplica)"): Ours(TRIPPED, "!TypeError: Pass one value"),
    ("mirrored", "* scope ON_READ/MEAN assign(PerReplica)"): Ours(TRIPPED, "!TypeError: Pass one value"),
    ("mirrored", "* scope ON_READ/ONLY_FIRST_REPLICA assign(PerReplica)"): Ours(
        TRIPPED, "!TypeError: Pass one value"
    ),
    ("mirrored", "in scope ON_WRITE.assign(ON_READ var)"): Ours(PARTS_OF_ANOTHER, _GOT_PARTS),
    (ALL, "outside var assign_add(1.) in run eager"): Ours(5, _OUTSIDE),
    (ALL, "outside var assign_add(1.) in tf.function{run}"): Ours(5, _OUTSIDE),
    (ALL, "outside var w/ MEAN assign(rid) in run"): Ours(5, _OUTSIDE),
    (MC, "var of ANOTHER strategy read in run"): Ours(
        "TensorFlow runs out of copies; a mirrored value is one array that any device can read",
        each(2.0, 2.0),
    ),
    ("mirrored", "int ON_READ/SUM assign(7) in scope (div by N)"): Ours(
        10, "SyncOnReadVariable<int32>{4@c0,3@c1}"
    ),
    # Conversions.
    ("mirrored", "ON_WRITE/* float() *"): Ours(20, "10.0"),
    ("mirrored", "ON_READ/NONE float() *"): Ours(20, "!ValueError: its aggregation is NONE"),
    ("mirrored", "ON_READ/SUM float() *"): Ours(20, "3.0"),
    ("mirrored", "ON_READ/MEAN float() *"): Ours(20, "1.5"),
    ("mirrored", "ON_READ/ONLY_FIRST_REPLICA float() *"): Ours(20, "1.0"),
    ("mirrored", "bool(v) outside"): Ours(20, "!ValueError: truth value of an array"),
    (ALL, "len outside"): Ours(20, "3"),
    (MC, "embedding gradient type in replica"): Ours(
        DENSE,
        "PerReplica{T<float32,[3, 1]>([[1.], [0.], [1.]])@c0, T<float32,[3, 1]>([[1.], [0.], [1.]])@c1}",
    ),
    ("onedev", "embedding gradient type in replica"): Ours(
        DENSE, "T<float32,[3, 1]>([[1.], [0.], [1.]])@c1"
    ),
}
for _agg, _new in {"SUM": 3.0, "MEAN": 1.5, "ONLY_FIRST_REPLICA": 1.0}.items():
    for _method, _value in {"assign": _new, "assign_add": 10 + _new, "assign_sub": 10 - _new}.items():
        _VARS["central", f"ON_*/{_agg} {_method}(rid+1)"] = Ours(
            ARRAYS, f"[{central(_value)}, 'ret:', {each(_value, _value)}]"
        )
    _VARS["central", f"*/{_agg} tf.function{{run}} assign_add(rid+1)"] = Ours(
        1, f"[{central(10 + _new)}, 'ret:', {each(10 + _new, 10 + _new)}]"
    )

# With one copy TensorFlow forgets the aggregation and lets every replica scatter in turn.
_SCATTERED = {
    "NONE": dict.fromkeys(("add", "sub", "mul", "div", "min", "max", "update"), _NOT_COMBINED),
    "SUM": dict.fromkeys(("min", "max", "update"), _NO_ORDER),
    "MEAN": {
        "add": central("[6.,7.5,3.]"),
        "sub": central("[-4.,-3.5,3.]"),
        "mul": central("[5.,11.,3.]"),
        "div": central("[0.2,0.36363637,3.]"),
        "min": _NO_ORDER,
        "max": _NO_ORDER,
        "update": _NO_ORDER,
    },
    "ONLY_FIRST_REPLICA": {
        "add": central("[11.,2.,3.]"),
        "sub": central("[-9.,2.,3.]"),
        "mul": central("[10.,2.,3.]"),
        "div": central("[0.1,2.,3.]"),
        "max": central("[10.,2.,3.]"),
        "update": central("[10.,2.,3.]"),
    },
}
for _agg, _scatters in _SCATTERED.items():
    for _method, _gives in _scatters.items():
        _VARS["central", f"scatter replica {_agg} scatter_{_method} *"] = Ours(SCATTER, _gives)
_VARS["central", "scatter ON_READ replica scatter_update"] = Ours(SCATTER, _NO_ORDER)

_REDUCE = {
    (MC, "plain tensor SUM"): Ours(2, scalar(6.0)),
    (MC, "python 0 SUM"): Ours(2, "0"),
    (MC, "python 3.5 SUM"): Ours(2, "7.0"),
    (MC, "run result same-object const SUM"): Ours(2, "10"),
    (MC, "reduce_to python 0 SUM dest=v"): Ours(2, "0"),
    ("mirrored", "PerReplica of python ints SUM"): Ours(2, "T<int32,[]>(3)@c0"),
    ("onedev", "None"): Ours(REFUSED, "!ValueError: Only arrays and numbers"),
    ("onedev", "ON_READ var SUM"): Ours(VALUES, scalar(1.0)),
    ("onedev", "reduce(MEAN,int [2],axis=None)"): Ours(8, "T<float32,[2]>([1.,2.])@c0"),
    ("onedev", "int MEAN axis None"): Ours(8, scalar(1.0)),
    ("onedev", "reduce_to int MEAN"): Ours(8, "T<float32,[2]>([1.,2.])@c0"),
    ("onedev", "all_reduce int MEAN"): Ours(8, scalar(1.0)),
    ("central", "nested dict value"): Ours(
        TRIPPED, f"{{'a': {scalar(3.0)}, 'b': T<float32,[4]>([12.,14.,16.,18.])@c0}}"
    ),
    ("central", "tuple value"): Ours(TRIPPED, f"({scalar(3.0)}, T<float32,[4]>([12.,14.,16.,18.])@c0)"),
    ("central", "reduce_to nested value"): Ours(TRIPPED, f"{{'a': {scalar(3.0)}}}"),
    ("mirrored", "reduce_to dest=None"): Ours(TRIPPED, _DESTINATION),
    (MC, "reduce_to dest=bad device string"): Ours(NO_SOFT_PLACEMENT, _NO_DEVICE),
    ("mirrored", "reduce_to mirrored var value MEAN"): Ours(VALUES, copies(0.0)),
    ("central", "reduce_to mirrored var value MEAN"): Ours(VALUES, scalar(0.0)),
    ("onedev", "reduce_to mirrored var value *"): Ours(VALUES, scalar(0.0)),
    (MC, "batch_reduce_to []"): Ours(TRIPPED, "[]"),
    ("mirrored", "batch_reduce_to mixed dest"): Ours(HONOURED, f"[{copies(3.0)}, {scalar(3.0)}]"),
    ("onedev", "gather axis out of range"): Ours(REFUSED, "!ValueError: which has no axis 2"),
    ("onedev", "gather scalar"): Ours(REFUSED, _NO_AXES),
    ("onedev", "gather mirrored var"): Ours(VALUES, "T<float32,[2]>([0.,0.])@c1"),
    ("mirrored", "gather bool"): Ours(
        "XLA gathers arrays of any dtype", "T<bool,[4]>([ True,False, True,False])@c0"
    ),
    ("mirrored", "all_reduce int32+float32 list"): Ours(
        "TensorFlow keeps int32 on the host; JAX does not",
        "[PerReplica{T<int32,[]>(3)@c0, T<int32,[]>(3)@c1}, " + each(3.0, 3.0) + "]",
    ),
    (MC, "all_reduce empty list"): Ours(TRIPPED, "[]"),
    ("mirrored", "all_reduce None"): Ours(TRIPPED, "!ValueError: takes arrays and numbers"),
    ("onedev", "all_gather scalar"): Ours(REFUSED, _NO_AXES),
    (ALL, "all_gather python"): Ours(REFUSED, _NO_AXES),
    (MC, "broadcast_to PerReplica"): Ours(REFUSED, "!TypeError: takes one array"),
    ("mirrored", "cross_device_ops wrong type"): Ours(REFUSED, "!TypeError: must be an rx.CrossDeviceOps"),
    ("mirrored", "bare CrossDeviceOps subclass"): Ours(
        "on CPUs, `reduce` of TensorFlow does not use the strategy's operations",
        "!NotImplementedError: does not define `batch_reduce_implementation",
    ),
    ("mirrored", "CommunicationOptions({'timeout_seconds': *})"): Ours(
        REFUSED, "!ValueError: timeout_seconds must be positive"
    ),
    ("central", "ON_READ var SUM"): Ours(2, scalar(1.0)),
    ("mirrored", "reduce_to plain tensor SUM dest=v"): Ours(2, scalar(6.0)),
    ("central", "reduce_to plain tensor SUM dest=v"): Ours(2, scalar(6.0)),
    ("mirrored", "reduce_to mirrored var value SUM"): Ours(2, copies(0.0)),
    ("central", "reduce_to mirrored var value SUM"): Ours(2, scalar(0.0)),
    ("mirrored", "reduce_to Mirrored value SUM"): Ours(2, copies(6.0)),
    ("central", "reduce_to Mirrored value SUM"): Ours(2, scalar(6.0)),
    (MC, "all_reduce python const"): Ours(2, each(2.0, 2.0)),
    (MC, "all_reduce python const MEAN"): Ours(2, each(1.0, 1.0)),
    (MC, "all_reduce same-object tensor"): Ours(2, each(2.0, 2.0)),
    (MC, "all_reduce same-object in nested list w/ differing"): Ours(
        2, f"[{each(2.0, 2.0)}, {each(3.0, 3.0)}]"
    ),
    ("mirrored", "gather axis=-1"): Ours(
        9, "T<float32,[2, 6]>([[ 0., 1., 2.,10.,11.,12.], [ 3., 4., 5.,13.,14.,15.]])@c0"
    ),
    (MC, "gather nested dict"): Ours(9, "{'a': T<float32,[8]>([1.,2.,3.,4.,11.,12.,13.,14.])@c0}"),
    ("mirrored", "after a collective shape mismatch, next good all_reduce"): Ours(
        11, f"[None, 'InvalidArgumentError', {each(3.0, 3.0)}]"
    ),
    ("mirrored", "after mismatch, even a NEW strategy"): Ours(
        11, f"['InvalidArgumentError', {each(3.0, 3.0)}]"
    ),
    ("mirrored", "reduce_to experimental_hints kw"): Ours(16, copies(3.0)),
    ("central", "reduce_to experimental_hints kw"): Ours(16, scalar(3.0)),
    ("onedev", "reduce_to experimental_hints kw"): Ours(16, scalar(1.0)),
}

_EXTENDED = {
    (MC, "args PerReplica"): Ours(4, _UPDATE_GOT_PARTS),
    (MC, "kwargs PerReplica"): Ours(4, _UPDATE_GOT_PARTS),
    (MC, "update in replica ctx args PerReplica values differ"): Ours(4, _UPDATE_GOT_PARTS),
    (MC, "update_non_slot PerReplica arg"): Ours(4, _UPDATE_GOT_PARTS),
    ("central", "type of var inside fn"): Ours(ONE_COPY, "'AggregatingVariable'"),
    ("onedev", "update of tensor (not var)"): Ours(REFUSED, _NO_VARIABLE),
    ("onedev", "update of PerReplica"): Ours(REFUSED, _NO_VARIABLE),
    ("mirrored", "update in tf.function in scope"): Ours(
        "a compiled step returns what the eager one returns", f"[{copies(6.0)}, {mirrored(6.0)}]"
    ),
    ("central", "non_slot_devices([v])"): Ours(17, "\"('CPU:0',)\""),
    ("central", "non_slot_devices(None)"): Ours(17, "\"('CPU:0',)\""),
    ("central", "update_non_slot with colocate_with=[v]"): Ours(TRIPPED, _NON_SLOT),
    ("onedev", "update_non_slot with colocate_with=[v]"): Ours(REFUSED, _NON_SLOT),
    ("onedev", "PerReplica indexing P[0]"): Ours(
        "one replica's value is a JAX array", "!IndexError: Too many indices"
    ),
    ("mirrored", "reuse the scope object sequentially"): Ours(13, in_cross_replica("MirroredStrategy")),
    ("central", "reuse the scope object sequentially"): Ours(
        13, in_cross_replica("CentralStorageStrategy")
    ),
    ("onedev", "reuse the scope object sequentially"): Ours(13, in_cross_replica("OneDeviceStrategy")),
    ("onedev", "exit scope inside replica fn"): Ours(ORDERED, "!RuntimeError: not the innermost open one"),
    ("mirrored", "devices=[]"): Ours(
        "the tests run with eight CPU devices",
        f"MirroredStrategy({[f'CPU:{i}' for i in range(8)]})",
    ),
    ("mirrored", "nonexistent device"): Ours(NO_SOFT_PLACEMENT, _NO_DEVICE),
    ("mirrored", "gpu device on cpu box"): Ours(NO_SOFT_PLACEMENT, _NO_DEVICE),
    ("mirrored", "mixed gpu+cpu"): Ours(NO_SOFT_PLACEMENT, _NO_DEVICE),
    ("mirrored", "OneDevice bad"): Ours(NO_SOFT_PLACEMENT, _NO_DEVICE),
    ("mirrored", "OneDevice None"): Ours(REFUSED, "!ValueError: Expected a device name"),
}

_EXTRA = {
    ("mirrored", "eager all_reduce(SUM, shared tensor C=1)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "run(tf.function) all_reduce(SUM, captured C=1)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "tf.function{run} all_reduce(SUM, captured C=1)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "tf.function{run} all_reduce(SUM, passed tensor arg)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "reduce(SUM, mirrored var)"): Ours(2, scalar(6.0)),
    ("mirrored", "batch_reduce_to SUM shared tensor"): Ours(2, f"[{scalar(2.0)}]"),
    ("mirrored", "reduce(SUM, run(lambda: C))"): Ours(2, scalar(2.0)),
    ("mirrored", "reduce(SUM, tuple from local_results)"): Ours(2, f"({scalar(2.0)}, {scalar(4.0)})"),
    ("mirrored", "tf.function{run} ON_WRITE/SUM assign_add(python 1.)"): Ours(2, mirrored(12.0)),
    ("mirrored", "eager ON_WRITE/SUM int64 assign_add(python 1) (step counter)"): Ours(
        2, "MirroredVariable<int32>{2@c0,2@c1}"
    ),
    ("mirrored", "gather({dict}) keeps only r0?"): Ours(9, "{'a': T<float32,[2]>([0.,1.])@c0}"),
    ("mirrored", "gather((tuple))"): Ours(9, "(T<float32,[2]>([0.,1.])@c0,)"),
    ("mirrored", "eager run(fn) where fn calls nested tf.function with all_reduce"): Ours(
        12, each(1.0, 1.0)
    ),
    ("mirrored", "tf.function{run(fn)} nested tf.function with all_reduce"): Ours(12, each(1.0, 1.0)),
    ("mirrored", "nested tf.function with aggregating assign"): Ours(12, each(11.0, 11.0)),
    ("mirrored", "run(tf.function(jit_compile=True)) all_reduce"): Ours(12, each(1.0, 1.0)),
    ("mirrored", "tf.function(jit_compile){run all_reduce}"): Ours(12, each(1.0, 1.0)),
    ("mirrored", "reduce(MEAN, mirrored var)"): Ours(VALUES, scalar(3.0)),
    ("mirrored", "fn python calls for 2 tf.function steps"): Ours(ONE_TRACE, "1"),
    ("mirrored", "variable with unknown shape"): Ours(
        ONE_SHAPE, "!ValueError: A variable's shape is that of its initial value"
    ),
    ("mirrored", "poking a component desyncs silently"): Ours(
        OTHER_COPIES, "!RuntimeError: would make it differ from the others"
    ),
    ("mirrored", "ReplicaContext.all_reduce(experimental_hints=)"): Ours(16, each(1.0, 1.0)),
    ("mirrored", "InputOptions(experimental_prefetch_to_device=True)"): Ours(16, "True"),
}

_TWOS = "PerReplica{T<float32,[3]>([2.,2.,2.])@c0, T<float32,[3]>([2.,2.,2.])@c1}"
_SEVERAL = {
    ("mirrored", "two MirroredStrategy objects, eager all_reduce [3] then []"): Ours(
        11, f"[{_TWOS}, {each(2.0, 2.0)}]"
    ),
    ("mirrored", "strategy A all_reduce [3] in tf.function, then B all_reduce [] eager"): Ours(
        11, f"[{_TWOS}, {each(2.0, 2.0)}]"
    ),
    ("mirrored", "A [3] in tf.function, then B [] in tf.function"): Ours(
        11, f"[{_TWOS}, {each(2.0, 2.0)}]"
    ),
    ("mirrored", "12 strategies created in a loop with different shapes"): Ours(11, str([4.0] * 12)),
}


def rows(wrapper: str, values: str, size: int, indices: str) -> str:
    def part(dtype: str, numbers: str) -> str:
        on_each = ", ".join(f"T<{dtype},[{size}]>({numbers})@c{i}" for i in (0, 1))
        return f"{wrapper}{{{on_each}}}"

    return f"IndexedSlices(values={part('float32', values)},indices={part('int32', indices)})"


_RUN[MC, "IndexedSlices"] = Ours(TREE, rows("PerReplica", "[1.]", 1, "[0]"))
_VARS["mirrored", "ON_READ/* extended.read_var in replica"] = Ours(LOCAL_READ, each(1.0, 2.0))
_VARS["central+onedev", "extended.update of outside var"] = Ours(
    OUTSIDER, "!ValueError: created outside of this strategy's scope"
)
_REDUCE |= {
    (MC, "nested dict axis=0"): Ours(BY_LEAF, f"{{'a': {scalar(60.0)}}}"),
    ("onedev", "nested dict axis=0"): Ours(BY_LEAF, f"{{'a': {scalar(10.0)}}}"),
    ("onedev", "reduce_to dest=None"): Ours(CHECKED, _DESTINATION),
    ("onedev", "reduce_to dest=bad device string"): Ours(NO_SOFT_PLACEMENT, _NO_DEVICE),
    ("onedev", "reduce_to dest=garbage string"): Ours(CHECKED, _NO_DEVICE),
    ("mirrored", "reduce_to IndexedSlices"): Ours(TREE, rows("Mirrored", "[1.,2.]", 2, "[0,1]")),
    ("mirrored", "batch_reduce_to dense+sparse"): Ours(
        TREE, f"[{copies(1.5)}, {rows('Mirrored', '[0.5,1. ]', 2, '[0,1]')}]"
    ),
    (MC, "all_reduce IndexedSlices"): Ours(TREE, rows("PerReplica", "[1.,2.]", 2, "[0,1]")),
    (MC, "all_reduce dense+IndexedSlices list"): Ours(
        TREE, f"[{each(0.5, 0.5)}, {rows('PerReplica', '[0.5,1. ]', 2, '[0,1]')}]"
    ),
    ("central", "gather mirrored var"): Ours(2, "T<float32,[4]>([0.,0.,0.,0.])@c0"),
}
_TOLD = "'InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)'"
_EXTENDED |= {
    ("mirrored", "InputContext repr"): Ours(SAYS_ALL, f"[{_TOLD}, {_TOLD}, 2]"),
    ("mirrored", "InputOptions()"): Ours(
        "there are more options, and two batches are kept ready",
        "InputOptions(fetch_to_device=None, replication_mode=<InputReplicationMode.PER_WORKER: "
        "'PER_WORKER'>, place_dataset_on_device=False, per_replica_buffer_size=2, "
        "partial_batch='exact', auto_shard_policy=<AutoShardPolicy.AUTO: 0>)",
    ),
    ("mirrored", "InputOptions(bad)"): Ours(REFUSED, "!ValueError: is not an InputReplicationMode"),
    ("mirrored", "update ON_READ var"): Ours(
        PARTS_DIFFER, f"[{each(3.0, 3.0)}, SyncOnReadVariable<float32>{{3.@c0,3.@c1}}]"
    ),
    ("mirrored", "nested update inside update"): Ours(NESTED, copies(4.0)),
    (MC, "bool(PerReplica)"): Ours(NOT_ONE_VALUE, _ONE_FOR_EACH),
    (MC, "np.asarray(PerReplica)"): Ours(NOT_ONE_VALUE, _ONE_FOR_EACH),
    ("mirrored", "copy.copy(strategy)"): Ours(IMMUTABLE, "True"),
    ("mirrored", "deepcopy(strategy)"): Ours(IMMUTABLE, "True"),
}


def ints(values: str, replica: int = 1) -> str:
    return f"T<int32,[{len(values.split(',')) if values else 0}]>([{values}])@c{replica}"


def host_ints(values: str) -> str:
    return f"np<int32,[{len(values.split(','))}]>([{values}])"


def both(first: str, second: str) -> str:
    return f"PerReplica{{{ints(first, 0)}, {ints(second, 1)}}}"


def both_on_host(first: str, second: str) -> str:
    return f"PerReplica{{{host_ints(first)}, {host_ints(second)}}}"


_AGAIN = "'then after ONE PER_REPLICA call, a plain call sees pipelines:', [(1, 0)], 'and policy OFF gives'"
_HALVES, _WHOLES = "[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]", "[[[0, 1, 2, 3]], [[4, 5, 6, 7]]]"
_SAME_TWICE = f"[[{both('0,1', '0,1')}, {both('2,3', '2,3')}], [(2, 0, 2), (2, 1, 2)]]"
_SAME_ON_HOST = f"[[{both_on_host('0,1', '0,1')}, {both_on_host('2,3', '2,3')}], [(2, 0, 2), (2, 1, 2)]]"

_DATA = {
    # What a batch is.
    (ALL, "unbatched range(4)"): Ours(NO_BATCH_SIZE, "!ValueError: .batch(global_batch_size)"),
    (ALL, "unbatched vectors"): Ours(NO_BATCH_SIZE, "!ValueError: .batch(global_batch_size)"),
    (MC, "from_tensors scalar"): Ours(UNBATCHED, "!ValueError: is the single value"),
    (MC, "batch then map to scalar (reduce)"): Ours(UNBATCHED, "!ValueError: is the single value"),
    (MC, "batch then flat_map/unbatch"): Ours(UNBATCHED, "!ValueError: is the single value"),
    (ALL, "not a dataset (list)"): Ours(A_LIST, "<DistributedDataset object>"),
    (MC, "string elements"): Ours(
        STRINGS, "[PerReplica{np<object,[2]>([b'a',b'b']), np<object,[1]>([b'c'])}]"
    ),
    ("onedev", "string elements"): Ours(STRINGS, "[np<object,[3]>([b'a',b'b',b'c'])]"),
    # Where it is read.
    (ALL, "next(it) past end in tf.function"): Ours(
        OUTSIDE_OF_STEPS, "!ValueError: would become a constant of the program"
    ),
    (ALL, "called in replica ctx"): Ours(WHOSE, "!RuntimeError: needs the cross-replica context"),
    (MC, "get_next_as_optional"): Ours(OFFHAND, f"[True, {both('0,1', '2,3')}, False, 'OptionalBatch']"),
    ("onedev", "get_next_as_optional"): Ours(OFFHAND, f"[True, {ints('0,1,2,3')}, False, 'OptionalBatch']"),
    # What a dataset says of itself.
    (ALL, "element_spec & dataset attributes: .cardinality"): Ours(COUNT, "2"),
    (ALL, "len()"): Ours(LENGTH, "2"),
    (MC, "distribute_datasets_from_function: .cardinality"): Ours(COUNT, "3"),
    ("onedev", "distribute_datasets_from_function: .cardinality"): Ours(COUNT, "5"),
    (ALL, "experimental_ alias"): Ours(ONE_CLASS, "'DistributedDataset'"),
    # The last step of a dataset function.
    ("central", "context + elements"): Ours(
        NOT_LOST,
        f"[[{both('0,1', '2,3')}, {both('4,5', '6,7')}, {both('8,9', '')}], [(1, 0, 2)]]",
    ),
    ("central", "5 batches over N replicas: last step"): Ours(
        NOT_LOST, "[[[0], [1]], [[2], [3]], [[4], []]]"
    ),
    (MC, "static shape (drop_remainder) uneven count"): Ours(
        NOT_LOST, "[[[0], [1]], [[2], [3]], [[4], []]]"
    ),
    # Options.
    ("mirrored", "fetch_to_device=False"): Ours(HOST, f"[{both_on_host('0,1', '2,3')}]"),
    ("onedev", "fetch_to_device=False"): Ours(HOST, f"[{host_ints('0,1,2,3')}]"),
    ("central", "fetch_to_device=False"): Ours(TRIPPED, f"[{both_on_host('0,1', '2,3')}]"),
    ("central", "fetch_to_device=True"): Ours(TRIPPED, f"[{both('0,1', '2,3')}]"),
    ("central", "per_replica_buffer_size=*"): Ours(TRIPPED, f"[{both('0,1', '2,3')}]"),
    ("central", "place_dataset_on_device=True alone"): Ours(TRIPPED, f"[{both('0,1', '2,3')}]"),
    ("central", "dataset PER_REPLICA *"): Ours(
        PER_DATASET, "!NotImplementedError: is for strategy.distribute_datasets_from_function"
    ),
    (ALL, "options not InputOptions"): Ours(REFUSED, "!TypeError: must be an rx.InputOptions"),
    ("mirrored", "from_function PER_REPLICA fetch=False place=False"): Ours(HOST, _SAME_ON_HOST),
    ("central", "from_function PER_REPLICA fetch=False place=False"): Ours(19, _SAME_ON_HOST),
    ("central", "from_function PER_REPLICA fetch=False place=True"): Ours(19, _SAME_TWICE),
    ("central", "from_function PER_REPLICA fetch=True place=False"): Ours(19, _SAME_TWICE),
    ("onedev", "from_function PER_REPLICA fetch=False place=False"): Ours(
        19, f"[[{host_ints('0,1')}, {host_ints('2,3')}], [(1, 0, 1)]]"
    ),
    ("onedev", "from_function PER_REPLICA fetch=False place=True"): Ours(
        19, f"[[{ints('0,1')}, {ints('2,3')}], [(1, 0, 1)]]"
    ),
    ("onedev", "from_function PER_REPLICA fetch=True place=False"): Ours(
        19, f"[[{ints('0,1')}, {ints('2,3')}], [(1, 0, 1)]]"
    ),
    ("onedev", "from_function PER_REPLICA fetch=True place=True"): Ours(
        ONE_OPTION, "!ValueError: needs fetch_to_device=False"
    ),
    ("mirrored", "PER_REPLICA option mutates the strategy permanently"): Ours(
        19, f"[{_HALVES}, {_AGAIN}, {_HALVES}]"
    ),
    ("onedev", "PER_REPLICA option mutates the strategy permanently"): Ours(
        19, f"[{_WHOLES}, {_AGAIN}, {_WHOLES}]"
    ),
}

_SPLIT = {
    ("mirrored", f"{_dataset} {_policy}"): Ours(6, _gives)
    for _dataset, _gives in {
        "range(14).batch(8)": "[[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 10], [11, 12, 13]]]",
        "range(10).batch(4)": "[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]",
        "range(7).batch(5)": "[[[0, 1, 2], [3, 4]], [[5], [6]]]",
    }.items()
    for _policy in ("OFF", "FILE")
}

DIFFERENCES: dict[tuple[str, str, str], Ours] = {
    (probe, *key): ours
    for probe, differences in {
        "run": _RUN,
        "vars": _VARS,
        "reduce": _REDUCE,
        "extended": _EXTENDED,
        "several": _SEVERAL,
        "extra": _EXTRA,
        "default": {("default", "type of distributed dataset"): Ours(ONE_CLASS, "'DistributedDataset'")},
        "data": _DATA,
        "split": _SPLIT,
    }.items()
    for key, ours in differences.items()
}
