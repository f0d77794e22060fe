"""Random programs: what they are made of, how they are drawn, and the adapter that runs them on Replicax.

A program is a list of statements over variables and numbered values; each statement adds values to the
list. The same statements run against `model.World` and against `Replicated`, which have the same methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import replicax as rx

from . import model

SYNCHRONIZATIONS = ("AUTO", "ON_WRITE", "ON_READ")
AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
SHAPES = ((), (3,), (2, 2), (1, 3))


# Replicax, with the methods of the model.


class RealVariable:
    """An `rx.Variable` with the methods of `model.Variable`."""

    def __init__(self, world: Replicated, variable: Any) -> None:
        self.world, self.variable = world, variable

    def read(self):
        return self.variable.read_value()

    read_in_replicas = read

    def write(self, how, value):
        getattr(self.variable, how)(value)

    def write_in_replicas(self, how, value):
        return getattr(self.variable, how)(value)

    def update(self, how, value):
        extended = self.world.strategy.extended
        extended.update(self.variable, lambda v, x: getattr(v, how)(x), args=(value,))

    def scatter(self, how, rows, indices):
        return getattr(self.variable, how)(rx.IndexedSlices(rows, indices))

    scatter_in_replicas = scatter


class Replicated:
    """A strategy with the methods of `model.World`; `compile_replicas` compiles each `run` by itself."""

    def __init__(self, strategy: Any, *, compile_replicas: bool = False) -> None:
        self.strategy, self.compile_replicas = strategy, compile_replicas

    def variable(self, initial, synchronization, aggregation):
        with self.strategy.scope():
            return RealVariable(
                self,
                rx.Variable(
                    initial,
                    synchronization=rx.VariableSynchronization[synchronization],
                    aggregation=rx.VariableAggregation[aggregation],
                ),
            )

    def run(self, fn, *args):
        def replica_fn(structure, *, last):
            return nest(fn(*flat(structure), last))

        step = rx.function(replica_fn) if self.compile_replicas else replica_fn
        structure = nest(args[:-1])
        return flat(self.strategy.run(step, args=(structure,), kwargs={"last": args[-1]}))

    def reduce(self, op, value, axis):
        return self.strategy.reduce(op, value, axis)

    def reduce_to(self, op, value, variable):
        return self.strategy.extended.reduce_to(op, value, variable.variable)

    def gather(self, value, axis):
        return self.strategy.gather(value, axis)

    def replica_id(self):
        return rx.get_replica_context().replica_id_in_sync_group

    def compute(self, fn, *values):
        return fn(jnp, *values)

    def all_reduce(self, op, values):
        first, *rest = values
        reduced = rx.get_replica_context().all_reduce(op, {"first": first, "rest": (rest,)})
        return [reduced["first"], *reduced["rest"][0]]

    def all_gather(self, value, axis):
        return rx.get_replica_context().all_gather(value, axis)

    def merge_call(self, fn, *values):
        return rx.get_replica_context().merge_call(lambda _, *merged: fn(*merged), args=values)

    def each(self, value):
        """The parts of `value`, for looking at results."""
        parts = self.strategy.local_results(value)
        count = self.strategy.num_replicas_in_sync
        return list(parts) if len(parts) == count else list(parts) * count


class NumpyWorld(model.World):
    """The model with `reduce_to`."""

    def reduce_to(self, op, value, variable):
        """The numbers do not depend on where the result is placed."""
        return self.reduce(op, value, None)


def nest(values: Any) -> Any:
    """A structure of dicts, tuples, lists and None that holds `values`; it depends on their number only."""
    values = list(values)
    if len(values) < 2:
        return {"only": values, "nothing": None}
    return {"a first": values[0], "rest": (values[1], [*values[2:], None])}


def flat(structure: Any) -> list[Any]:
    """The values that `nest` put into a structure."""
    if "only" in structure:
        return list(structure["only"])
    return [structure["a first"], structure["rest"][0], *structure["rest"][1][:-1]]


# What replicas compute: functions of `numpy` or `jax.numpy` and arrays.


@dataclasses.dataclass(frozen=True)
class Fit:
    """Something of the given shape that depends on every element of x, in its dtype, and stays small."""

    shape: tuple[int, ...]

    def __call__(self, xp, x):
        x = xp.asarray(x)
        total = xp.sum(x, dtype=x.dtype)
        if xp.issubdtype(x.dtype, xp.floating):
            total = total / (1 + abs(total))
        steps = xp.arange(int(np.prod(self.shape))).reshape(self.shape)
        return xp.asarray(total + steps.astype(x.dtype), dtype=x.dtype)


def negate(xp, x):
    return -xp.asarray(x)


def double(xp, x):
    return xp.asarray(x) * 2


def add_replica_id(xp, x, replica_id):
    x = xp.asarray(x)
    return x + xp.asarray(replica_id).astype(x.dtype)


def add_sums(xp, x, y):
    x, y = xp.asarray(x), xp.asarray(y)
    return x + xp.sum(y, dtype=y.dtype).astype(x.dtype)


# Statements.


@dataclasses.dataclass(frozen=True)
class Compute:
    """values += fn(values[i], ...)"""

    fn: Callable[..., Any]
    values: tuple[int, ...]

    def do(self, world, variables, values):
        return [world.compute(self.fn, *(values[i] for i in self.values))]


@dataclasses.dataclass(frozen=True)
class ReplicaId:
    """values += the replica's id"""

    def do(self, world, variables, values):
        return [world.replica_id()]


@dataclasses.dataclass(frozen=True)
class Read:
    """values += the variable, read in a replica or outside"""

    variable: int
    in_replica: bool

    def do(self, world, variables, values):
        variable = variables[self.variable]
        return [variable.read_in_replicas() if self.in_replica else variable.read()]


@dataclasses.dataclass(frozen=True)
class WriteInReplica:
    """values += variable.assign(values[i]) or another write"""

    variable: int
    how: str
    value: int

    def do(self, world, variables, values):
        return [variables[self.variable].write_in_replicas(self.how, values[self.value])]


@dataclasses.dataclass(frozen=True)
class Write:
    """variable.assign(values[i]) or another write, outside of replicas"""

    variable: int
    how: str
    value: int

    def do(self, world, variables, values):
        variables[self.variable].write(self.how, values[self.value])
        return []


@dataclasses.dataclass(frozen=True)
class WriteReduced:
    """variable.assign(reduce_to(values[i])) or another write, directly or in `extended.update`"""

    variable: int
    how: str
    op: str
    value: int
    update: bool

    def do(self, world, variables, values):
        variable = variables[self.variable]
        reduced = world.reduce_to(self.op, values[self.value], variable)
        (variable.update if self.update else variable.write)(self.how, reduced)
        return []


@dataclasses.dataclass(frozen=True)
class Update:
    """extended.update(variable, assign, values[i]) or another write of a plain value"""

    variable: int
    how: str
    value: int

    def do(self, world, variables, values):
        variables[self.variable].update(self.how, values[self.value])
        return []


@dataclasses.dataclass(frozen=True)
class Scatter:
    """variable.scatter_*(rows); in replicas each has its own rows"""

    variable: int
    how: str
    num_rows: int
    shape: tuple[int, ...]
    value: int
    in_replica: bool

    def do(self, world, variables, values):
        variable = variables[self.variable]
        rows = world.compute(self._rows, values[self.value])
        if not self.in_replica:
            variable.scatter(self.how, rows, np.arange(self.num_rows, dtype=np.int32))
            return []
        indices = world.compute(self._indices, world.replica_id())
        return [variable.scatter_in_replicas(self.how, rows, indices)]

    def _rows(self, xp, x):
        rows = Fit((self.num_rows, *self.shape[1:]))(xp, x)
        return 0 * rows + 2 if self.how in ("scatter_mul", "scatter_div") else rows

    def _indices(self, xp, replica_id):
        return (xp.asarray(replica_id) + xp.arange(self.num_rows)) % self.shape[0]


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """values += all_reduce of a structure of values"""

    op: str
    values: tuple[int, ...]

    def do(self, world, variables, values):
        return list(world.all_reduce(self.op, [values[i] for i in self.values]))


@dataclasses.dataclass(frozen=True)
class AllGather:
    """values += all_gather(values[i])"""

    value: int
    axis: int

    def do(self, world, variables, values):
        return [world.all_gather(values[self.value], self.axis)]


@dataclasses.dataclass(frozen=True)
class Merge:
    """values += merge_call of values[i], with some statements in the merge function"""

    statements: tuple[Any, ...]
    value: int
    result: str

    def do(self, world, variables, values):
        def merge_fn(value):
            interpret(self.statements, world, variables, [value])
            if self.result == "sum":
                return world.reduce("SUM", value, None)
            return value

        return [world.merge_call(merge_fn, values[self.value])]


@dataclasses.dataclass(frozen=True)
class Reduce:
    """values += strategy.reduce(values[i])"""

    op: str
    value: int
    axis: Any

    def do(self, world, variables, values):
        return [world.reduce(self.op, values[self.value], self.axis)]


@dataclasses.dataclass(frozen=True)
class Gather:
    """values += strategy.gather(values[i])"""

    value: int
    axis: int

    def do(self, world, variables, values):
        return [world.gather(values[self.value], self.axis)]


@dataclasses.dataclass(frozen=True)
class Run:
    """values += strategy.run of a replica function, which gets some values and returns some of its own"""

    args: tuple[int, ...]
    body: tuple[Any, ...]
    results: tuple[int, ...]

    def do(self, world, variables, values):
        def replica_fn(*args):
            inner = interpret(self.body, world, variables, list(args))
            return [inner[i] for i in self.results]

        return list(world.run(replica_fn, *(values[i] for i in self.args)))


def interpret(statements: Any, world: Any, variables: list[Any], values: list[Any]) -> list[Any]:
    """Run the statements in order and return all values, given and computed."""
    for statement in statements:
        values += statement.do(world, variables, values)
    return values


# Drawing programs. The dtype and per-replica shapes of every value are known, so that programs are valid.


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is known about a value: its dtype, its shape on each replica, and whether replicas share it."""

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    plain: bool = False
    # One object on all replicas, which an eager `run` returns as a plain value.
    shared: bool = False

    @property
    def alike(self):
        return len(set(self.shapes)) == 1


@dataclasses.dataclass(frozen=True)
class VariableKind:
    """How to create a variable."""

    synchronization: str
    aggregation: str
    dtype: str
    shape: tuple[int, ...]
    initial: int

    @property
    def initial_value(self):
        size = int(np.prod(self.shape))
        return (np.arange(size) - self.initial).reshape(self.shape).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Program:
    """A random program with everything that it needs."""

    num_replicas: int
    central: bool
    variables: tuple[VariableKind, ...]
    inputs: tuple[Kind, ...]
    statements: tuple[Any, ...]

    def input_arrays(self) -> list[list[np.ndarray]]:
        """For each input, one array for each replica; those of a plain input are equal."""
        arrays = []
        for number, kind in enumerate(self.inputs):
            parts, start = [], number + 1
            for shape in kind.shapes:
                size = int(np.prod(shape))
                parts.append((start - 4 + np.arange(size)).reshape(shape).astype(kind.dtype))
                start += 0 if kind.plain else size + 1
            arrays.append(parts)
        return arrays


class _Drawer:
    """Draws statements, keeping track of the kinds of all values."""

    def __init__(self, draw, num_replicas, central, variables):
        self.draw, self.n, self.central, self.variables = draw, num_replicas, central, variables

    def one_of(self, options):
        return self.draw(st.sampled_from(list(options)))

    def pick(self, kinds, condition=lambda kind: True):
        """The number of a value that meets a condition, or None."""
        fitting = [i for i, kind in enumerate(kinds) if condition(kind)]
        return self.one_of(fitting) if fitting else None

    def same(self, dtype, shape, **more):
        return Kind(dtype, (shape,) * self.n, **more)

    def fitted(self, statements, kinds, dtype, shape):
        """A new value of the given dtype and shape, made from another one."""
        source = self.pick(kinds, lambda kind: kind.dtype == dtype)
        if source is None:
            return None
        statements.append(Compute(Fit(shape), (source,)))
        kinds.append(dataclasses.replace(kinds[source], shapes=(shape,) * self.n, shared=False))
        return len(kinds) - 1

    def variable(self, condition=lambda kind: True):
        fitting = [i for i, kind in enumerate(self.variables) if condition(kind)]
        return self.one_of(fitting) if fitting else None

    def on_read(self, kind):
        return kind.synchronization == "ON_READ" and not self.central

    # In replicas.

    def body(self, arguments):
        statements: list[Any] = []
        kinds = [dataclasses.replace(a, plain=False, shared=a.plain) for a in arguments]
        for _ in range(self.draw(st.integers(1, 6))):
            self.one_of(
                (
                    self.compute,
                    self.replica_id,
                    self.read,
                    self.write,
                    self.write,
                    self.scatter,
                    self.all_reduce,
                    self.all_gather,
                    self.merge,
                )
            )(statements, kinds)
        results = self.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=4))
        return tuple(statements), kinds, tuple(results)

    def compute(self, statements, kinds):
        x = self.pick(kinds)
        fn = self.one_of((negate, double, add_replica_id, add_sums))
        others = ()
        if fn is add_replica_id:
            self.replica_id(statements, kinds)
            others = (len(kinds) - 1,)
        elif fn is add_sums:
            y = self.pick(kinds, lambda kind: kind.dtype == kinds[x].dtype)
            others = (y,)
        statements.append(Compute(fn, (x, *others)))
        kinds.append(dataclasses.replace(kinds[x], shared=False))

    def replica_id(self, statements, kinds):
        statements.append(ReplicaId())
        kinds.append(self.same("int32", ()))

    def read(self, statements, kinds):
        number = self.variable()
        statements.append(Read(number, in_replica=True))
        kind = self.variables[number]
        kinds.append(self.same(kind.dtype, kind.shape, shared=True))

    def write(self, statements, kinds):
        number = self.variable(lambda v: self.on_read(v) or v.aggregation != "NONE")
        if number is None:
            return
        kind = self.variables[number]
        value = self.fitted(statements, kinds, kind.dtype, kind.shape)
        if value is not None:
            statements.append(WriteInReplica(number, self.one_of(model.WRITES), value))
            kinds.append(self.same(kind.dtype, kind.shape, shared=True))

    def scatter(self, statements, kinds):
        number = self.variable(
            lambda v: v.shape and not self.on_read(v) and v.aggregation != "NONE" and v.dtype == "float32"
        )
        if number is None:
            return
        kind = self.variables[number]
        ordered = kind.aggregation == "ONLY_FIRST_REPLICA"
        how = self.one_of(m for m in model.SCATTERS if ordered or m not in model.ORDERED)
        value = self.pick(kinds, lambda k: k.dtype == kind.dtype)
        if value is not None:
            rows = self.draw(st.integers(1, kind.shape[0]))
            statements.append(Scatter(number, how, rows, kind.shape, value, in_replica=True))
            kinds.append(self.same(kind.dtype, kind.shape, shared=True))

    def all_reduce(self, statements, kinds):
        fitting = [i for i, kind in enumerate(kinds) if kind.alike]
        if not fitting:
            return
        values = self.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3))
        op = self.one_of(("SUM", "MEAN"))
        statements.append(AllReduce(op, tuple(values)))
        for i in values:
            dtype = "float32" if op == "MEAN" else kinds[i].dtype
            kinds.append(dataclasses.replace(kinds[i], dtype=dtype, shared=False))

    def all_gather(self, statements, kinds):
        value = self.pick(kinds, lambda kind: kind.shapes[0] != ())
        if value is None:
            return
        axis = self._gather_axis(kinds[value])
        statements.append(AllGather(value, axis))
        whole = self._gathered(kinds[value], axis)
        kinds.append(self.same(kinds[value].dtype, whole))

    def _gather_axis(self, kind):
        """Uneven values can be joined along their first axis only."""
        ndim = len(kind.shapes[0])
        return self.one_of(range(-ndim, ndim) if kind.alike else (0, -ndim))

    def _gathered(self, kind, axis):
        shape = list(kind.shapes[0])
        shape[axis] = sum(s[axis] for s in kind.shapes)
        return tuple(shape)

    def merge(self, statements, kinds):
        value = self.pick(kinds, lambda kind: kind.alike)
        if value is None:
            return
        inner: list[Any] = []
        inner_kinds = [dataclasses.replace(kinds[value], plain=False)]
        for _ in range(self.draw(st.integers(0, 2))):
            self.one_of((self.outer_read, self.outer_write, self.write_reduced, self.reduce))(
                inner, inner_kinds
            )
        result = self.one_of(("sum", "same"))
        statements.append(Merge(tuple(inner), value, result))
        kinds.append(dataclasses.replace(kinds[value], shared=True))

    # Outside of replicas.

    def outer_read(self, statements, kinds):
        number = self.variable(lambda v: not self.on_read(v) or v.aggregation != "NONE")
        if number is not None:
            kind = self.variables[number]
            statements.append(Read(number, in_replica=False))
            kinds.append(self.same(kind.dtype, kind.shape, plain=True))

    def _writable(self, how):
        def condition(kind):
            if not self.on_read(kind):
                return True
            return kind.aggregation in (
                ("SUM", "MEAN", "ONLY_FIRST_REPLICA") if how == "assign" else ("MEAN", "ONLY_FIRST_REPLICA")
            )

        return condition

    def outer_write(self, statements, kinds):
        how, update = self.one_of(model.WRITES), self.draw(st.booleans())
        number = self.variable(self._writable(how))
        if number is None:
            return
        kind = self.variables[number]
        value = self.pick(kinds, lambda k: k.plain and k.dtype == kind.dtype)
        if value is None:
            return
        statements.append(Compute(Fit(kind.shape), (value,)))
        kinds.append(self.same(kind.dtype, kind.shape, plain=True))
        statements.append((Update if update else Write)(number, how, len(kinds) - 1))

    def outer_scatter(self, statements, kinds):
        number = self.variable(lambda v: v.shape and not self.on_read(v) and v.dtype == "float32")
        value = self.pick(kinds, lambda k: k.plain and k.dtype == "float32")
        if number is None or value is None:
            return
        kind = self.variables[number]
        ordered = kind.aggregation in ("NONE", "ONLY_FIRST_REPLICA")
        how = self.one_of(m for m in model.SCATTERS if ordered or m not in model.ORDERED)
        rows = self.draw(st.integers(1, kind.shape[0]))
        statements.append(Scatter(number, how, rows, kind.shape, value, in_replica=False))

    def write_reduced(self, statements, kinds):
        how, update = self.one_of(model.WRITES), self.draw(st.booleans())
        number = self.variable(lambda v: (update or self._writable(how)(v)) and v.aggregation != "NONE")
        if number is None:
            return
        kind = self.variables[number]
        op = "SUM" if kind.dtype == "int32" else self.one_of(("SUM", "MEAN"))
        value = self.pick(
            kinds,
            lambda k: not k.plain and k.dtype == kind.dtype and set(k.shapes) == {kind.shape},
        )
        if value is not None:
            statements.append(WriteReduced(number, how, op, value, update))

    def reduce(self, statements, kinds):
        value = self.pick(kinds)
        kind = kinds[value]
        ndim = len(kind.shapes[0])
        axes = [None] if kind.alike else []
        axes += [0, -ndim] if ndim else []
        axes += [*range(-ndim, ndim), tuple(range(ndim))] if ndim and kind.alike else []
        axis = self.one_of(axes)
        op = self.one_of(("SUM", "MEAN"))
        count = kind.shapes[0] if axis is None else [sum(s[a] for s in kind.shapes) for a in np.ravel(axis)]
        if op == "MEAN" and 0 in count:
            op = "SUM"  # the mean of nothing is not a number
        dtype = "float32" if op == "MEAN" else kind.dtype
        statements.append(Reduce(op, value, axis))
        gone = {a % ndim for a in np.ravel(axis)} if axis is not None else set()
        shape = tuple(d for a, d in enumerate(kind.shapes[0]) if a not in gone)
        kinds.append(self.same(dtype, shape, plain=True))

    def gather(self, statements, kinds):
        # Plain values are returned unchanged, and which values are plain depends on the mode.
        value = self.pick(kinds, lambda k: k.shapes[0] and not k.plain and not k.shared)
        if value is None:
            return
        axis = self._gather_axis(kinds[value])
        statements.append(Gather(value, axis))
        kinds.append(self.same(kinds[value].dtype, self._gathered(kinds[value], axis), plain=True))

    def run(self, statements, kinds):
        args = self.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=4))
        body, inner, results = self.body([kinds[i] for i in args])
        statements.append(Run(tuple(args), body, results))
        kinds += [inner[i] for i in results]

    def program(self, inputs):
        statements: list[Any] = []
        kinds = list(inputs)
        for _ in range(self.draw(st.integers(1, 5))):
            self.one_of(
                (
                    self.run,
                    self.run,
                    self.run,
                    self.reduce,
                    self.gather,
                    self.outer_read,
                    self.outer_write,
                    self.write_reduced,
                    self.outer_scatter,
                )
            )(statements, kinds)
        return tuple(statements)


@st.composite
def _variables(draw):
    dtype = draw(st.sampled_from(("float32", "int32")))
    aggregations = [a for a in AGGREGATIONS if dtype != "int32" or a != "MEAN"]
    return VariableKind(
        draw(st.sampled_from(SYNCHRONIZATIONS)),
        draw(st.sampled_from(aggregations)),
        dtype,
        draw(st.sampled_from(SHAPES)),
        draw(st.integers(-3, 5)),
    )


@st.composite
def _inputs(draw, num_replicas):
    dtype = draw(st.sampled_from(("float32", "int32")))
    shape = draw(st.sampled_from((*SHAPES, (0,))))
    plain = draw(st.sampled_from((False, False, True)))
    shapes = (shape,) * num_replicas
    if shape and not plain and draw(st.booleans()):
        sizes = draw(st.lists(st.integers(0, 3), min_size=num_replicas, max_size=num_replicas))
        shapes = tuple((size, *shape[1:]) for size in sizes)
    return Kind(dtype, shapes, plain=plain)


@st.composite
def programs(draw) -> Program:
    """A random program."""
    num_replicas = draw(st.sampled_from((1, 2, 3, 8)))
    central = draw(st.sampled_from((False, False, False, True)))
    variables = tuple(draw(st.lists(_variables(), min_size=1, max_size=3)))
    inputs = [Kind("float32", ((2,),) * num_replicas), Kind("int32", ((),) * num_replicas, plain=True)]
    inputs += draw(st.lists(_inputs(num_replicas), max_size=2))
    drawer = _Drawer(draw, num_replicas, central, variables)
    return Program(num_replicas, central, variables, tuple(inputs), drawer.program(inputs))


def as_numpy(value: Any) -> np.ndarray:
    """An array, whatever it is."""
    return np.asarray(jax.device_get(value))
