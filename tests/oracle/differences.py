"""Where Replicax means to differ from what was recorded, and what it gives instead.

    (probe, kinds, case) -> (why, what we give)

`kinds` are joined with "+"; in a case's name `*` stands for anything. The reason is the number of one of
our decisions (`DECISIONS`), or says why TensorFlow's behaviour has no meaning on JAX. Nothing is listed
because it is not done yet, and everything listed is asserted.
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
    9: "`gather` goes leaf by leaf and takes negative axes",
    10: "parts of an ON_READ/SUM variable add up to what was assigned",
    11: "a strategy owns no process-wide state",
    12: "collectives and assignments work in control flow and nested functions",
    13: "a scope object can be used again",
    14: "`try` around `merge_call` catches",
    16: "every spelling of the four releases is accepted",
    20: "a variable converts to Python values like the array that it holds",
}


class Ours(NamedTuple):
    """Why we differ, and the description of what we give."""

    why: int | str
    gives: str

    @property
    def because(self) -> str:
        """The reason in words."""
        return (
            f"decision {self.why}: {DECISIONS[self.why]}" if isinstance(self.why, int) else self.why
        )


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
    # Reductions of one object.
    (MC, "two sequential merge_calls"): Ours(2, scalar(4.0)),
    # Control flow.
    (MC, "merge_call under tf.cond (autograph if)"): Ours(12, each(2.0, 2.0)),
    (MC, "merge_call under tf.while (autograph for)"): Ours(12, each(8.0, 8.0)),
    (MC, "all_reduce under tf.cond"): Ours(12, each(2.0, 2.0)),
    (MC, "all_reduce under tf.while in outer tf.function"): Ours(12, each(8.0, 8.0)),
    (MC, "gradient through merge_call (eager)"): Ours(12, "!RuntimeError"),
    (MC, "try/except around merge_call in replica fn"): Ours(14, "'caught'"),
}

_VARS = {
    ("mirrored", "creation inside run (eager, closure-once)"): Ours(
        2, f"[{each(3.0, 3.0)}, {mirrored(3.0)}]"
    ),
    ("central", "creation inside run (eager, closure-once)"): Ours(
        2, f"[Handle<float32,3.>@c0, {central(3.0)}]"
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
    ("central", "ON_READ/SUM reduce(SUM,v)"): Ours(2, scalar(6.0)),
    ("central", "ON_READ/MEAN reduce(SUM,v)"): Ours(2, scalar(3.0)),
    ("central", "ON_READ/ONLY_FIRST_REPLICA reduce(SUM,v)"): Ours(2, scalar(2.0)),
    # Writes without aggregation.
    ("mirrored", "ON_WRITE/NONE assign*(rid+1)"): Ours(3, "!ValueError"),
    ("mirrored", "ON_WRITE/NONE tf.function{run} assign_add(rid+1)"): Ours(3, "!ValueError"),
    ("mirrored", "ON_WRITE/NONE run(tf.function) assign_add then read"): Ours(3, "!ValueError"),
    ("mirrored", "scatter replica NONE *"): Ours(3, "!ValueError"),
    (MC, "* scope ON_*/* assign(PerReplica)"): Ours(4, "!ValueError"),
    (MC, "outside var assign_add(1.) in run eager"): Ours(5, "!RuntimeError"),
    (MC, "outside var assign_add(1.) in tf.function{run}"): Ours(5, "!RuntimeError"),
    (MC, "outside var w/ MEAN assign(rid) in run"): Ours(5, "!RuntimeError"),
    ("mirrored", "int ON_READ/SUM assign(7) in scope (div by N)"): Ours(
        10, "SyncOnReadVariable<int32>{4@c0,3@c1}"
    ),
    # Conversions.
    ("mirrored", "ON_WRITE/* float() *"): Ours(20, "10.0"),
    ("mirrored", "ON_READ/NONE float() *"): Ours(20, "!ValueError"),
    ("mirrored", "ON_READ/SUM float() *"): Ours(20, "3.0"),
    ("mirrored", "ON_READ/MEAN float() *"): Ours(20, "1.5"),
    ("mirrored", "ON_READ/ONLY_FIRST_REPLICA float() *"): Ours(20, "1.0"),
    ("mirrored", "bool(v) outside"): Ours(20, "!ValueError"),
    (ALL, "len outside"): Ours(20, "3"),
    (MC, "embedding gradient type in replica"): Ours(
        "gradients of jax.grad are dense arrays",
        "PerReplica{T<float32,[3, 1]>([[1.], [0.], [1.]])@c0, T<float32,[3, 1]>([[1.], [0.], [1.]])@c1}",
    ),
    ("onedev", "embedding gradient type in replica"): Ours(
        "gradients of jax.grad are dense arrays", "T<float32,[3, 1]>([[1.], [0.], [1.]])@c1"
    ),
}
for _agg, _value in {"SUM": 13.0, "MEAN": 11.5, "ONLY_FIRST_REPLICA": 11.0}.items():
    _VARS["central", f"*/{_agg} tf.function{{run}} assign_add(rid+1)"] = Ours(
        1, f"[{central(_value)}, 'ret:', {each(_value, _value)}]"
    )

_REDUCE = {
    (MC, "plain tensor SUM"): Ours(2, scalar(6.0)),
    (MC, "python 0 SUM"): Ours(2, "T<int32,[]>(0)@c0"),
    (MC, "python 3.5 SUM"): Ours(2, scalar(7.0)),
    (MC, "run result same-object const SUM"): Ours(2, "T<int32,[]>(10)@c0"),
    ("central", "ON_READ var SUM"): Ours(2, scalar(2.0)),
    ("mirrored", "reduce_to plain tensor SUM dest=v"): Ours(2, copies(6.0)),
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
    (MC, "args PerReplica"): Ours(4, "!ValueError"),
    (MC, "kwargs PerReplica"): Ours(4, "!ValueError"),
    (MC, "update in replica ctx args PerReplica values differ"): Ours(4, "!ValueError"),
    (MC, "update_non_slot PerReplica arg"): Ours(4, "!ValueError"),
    ("mirrored", "reuse the scope object sequentially"): Ours(
        13, "'strategy=MirroredStrategy has=True xrep=True rctx=None'"
    ),
    ("central", "reuse the scope object sequentially"): Ours(
        13, "'strategy=CentralStorageStrategy has=True xrep=True rctx=None'"
    ),
    ("onedev", "reuse the scope object sequentially"): Ours(
        13, "'strategy=OneDeviceStrategy has=True xrep=True rctx=None'"
    ),
}

_EXTRA = {
    ("mirrored", "eager all_reduce(SUM, shared tensor C=1)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "run(tf.function) all_reduce(SUM, captured C=1)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "tf.function{run} all_reduce(SUM, captured C=1)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "tf.function{run} all_reduce(SUM, passed tensor arg)"): Ours(2, each(2.0, 2.0)),
    ("mirrored", "reduce(SUM, mirrored var)"): Ours(2, scalar(6.0)),
    ("mirrored", "batch_reduce_to SUM shared tensor"): Ours(2, f"[{copies(2.0)}]"),
    ("mirrored", "reduce(SUM, run(lambda: C))"): Ours(2, scalar(2.0)),
    ("mirrored", "reduce(SUM, tuple from local_results)"): Ours(
        2, f"({scalar(2.0)}, {scalar(4.0)})"
    ),
    ("mirrored", "tf.function{run} ON_WRITE/SUM assign_add(python 1.)"): Ours(2, mirrored(12.0)),
    ("mirrored", "eager ON_WRITE/SUM int64 assign_add(python 1) (step counter)"): Ours(
        2, "MirroredVariable<int32>{2@c0,2@c1}"
    ),
    ("mirrored", "gather({dict}) keeps only r0?"): Ours(9, "{'a': T<float32,[2]>([0.,1.])@c0}"),
    ("mirrored", "gather((tuple))"): Ours(9, "(T<float32,[2]>([0.,1.])@c0,)"),
    ("mirrored", "eager run(fn) where fn calls nested tf.function with all_reduce"): Ours(
        12, each(1.0, 1.0)
    ),
    ("mirrored", "tf.function{run(fn)} nested tf.function with all_reduce"): Ours(
        12, each(1.0, 1.0)
    ),
    ("mirrored", "nested tf.function with aggregating assign"): Ours(12, each(11.0, 11.0)),
    ("mirrored", "run(tf.function(jit_compile=True)) all_reduce"): Ours(12, each(1.0, 1.0)),
    ("mirrored", "tf.function(jit_compile){run all_reduce}"): Ours(12, each(1.0, 1.0)),
    ("mirrored", "ReplicaContext.all_reduce(experimental_hints=)"): Ours(16, each(1.0, 1.0)),
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
    ("mirrored", "12 strategies created in a loop with different shapes"): Ours(
        11, str([4.0] * 12)
    ),
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
    }.items()
    for key, ours in differences.items()
}
