"""A model of replicated programs in NumPy: the semantics without devices, traces or greenlets.

All replicas run the same statements together: `PerReplica` is a list with one array for each replica,
and each statement of a replica function applies to the whole list. Any other value is one array, equal
on all replicas.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

# The new value of each write, from the old one.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "assign": lambda old, new: new + 0 * old,
    "assign_add": lambda old, new: old + new,
    "assign_sub": lambda old, new: old - new,
}
# The same for some rows; a row that is named twice is written twice.
SCATTERS = {
    "scatter_add": np.add,
    "scatter_sub": np.subtract,
    "scatter_mul": np.multiply,
    "scatter_div": np.divide,
    "scatter_min": np.minimum,
    "scatter_max": np.maximum,
    "scatter_update": lambda old, new: new,
}
ORDERED = ("scatter_min", "scatter_max", "scatter_update")


class PerReplica(list):
    """One array for each replica."""


class Variable:
    """A copy for each replica. ON_WRITE keeps the copies equal, ON_READ combines them when read."""

    def __init__(self, world: "World", initial: Any, synchronization: str, aggregation: str) -> None:
        self.world, self.aggregation = world, aggregation
        self.on_read = synchronization == "ON_READ" and not world.central
        self.copies = PerReplica(np.array(initial) for _ in range(world.num_replicas))

    def read(self) -> Any:
        """The value outside of replicas."""
        return self._combined(self.copies) if self.on_read else self.copies[0]

    def read_in_replicas(self) -> PerReplica:
        """The value that each replica sees."""
        return PerReplica(self.copies)

    def write(self, how: str, value: Any) -> None:
        """Write from outside of replicas."""
        if not self.on_read:
            self._set_all(WRITES[how](self.copies[0], value))
        elif self.aggregation == "SUM":
            if how != "assign":
                raise ValueError("which replica's part should change?")
            self._set_shares(WRITES[how](self.copies[0], value))
        else:
            self._set_all(WRITES[how](self.read(), value))

    def write_in_replicas(self, how: str, values: PerReplica) -> PerReplica:
        """Write from a replica function; what each replica gets back."""
        if self.on_read:
            pairs = zip(self.copies, values, strict=True)
            self.copies = PerReplica(self._cast(WRITES[how](old, new)) for old, new in pairs)
        else:
            self._set_all(WRITES[how](self.copies[0], self._combined(values)))
        return self.read_in_replicas()

    def update(self, how: str, value: Any) -> None:
        """Write every copy by itself, with one value for all of them."""
        self.copies = PerReplica(self._cast(WRITES[how](old, value)) for old in self.copies)

    def scatter(self, how: str, rows: Any, indices: Any) -> None:
        """Write some rows from outside of replicas."""
        self._check_scatter(how)
        new = self.copies[0].copy()
        for row, index in zip(rows, indices, strict=True):
            new[index] = SCATTERS[how](new[index], row)
        self._set_all(new)

    def scatter_in_replicas(self, how: str, rows: PerReplica, indices: PerReplica) -> PerReplica:
        """Write the rows of all replicas, one replica after the other."""
        self._check_scatter(how)
        if self.aggregation == "NONE":
            raise ValueError("nothing says how to combine the replicas' rows")
        if self.aggregation == "ONLY_FIRST_REPLICA":
            self.scatter(how, rows[0], indices[0])
        else:
            scale = self.world.num_replicas if self.aggregation == "MEAN" else 1
            whole = np.concatenate(rows)
            self.scatter(how, whole / scale if scale > 1 else whole, np.concatenate(indices))
        return self.read_in_replicas()

    def _check_scatter(self, how: str) -> None:
        if self.on_read:
            raise NotImplementedError("each replica has rows of its own")
        if how in ORDERED and self.aggregation in ("SUM", "MEAN"):
            raise NotImplementedError("the replicas' rows have no order")

    def _combined(self, values: PerReplica) -> Any:
        if self.aggregation == "NONE":
            raise ValueError("nothing says how to combine the replicas' values")
        if self.aggregation == "ONLY_FIRST_REPLICA":
            return values[0]
        return self.world.reduce(self.aggregation, values, None)

    def _set_all(self, value: Any) -> None:
        self.copies = PerReplica(self._cast(value) for _ in self.copies)

    def _set_shares(self, value: Any) -> None:
        """Parts that add up to `value`; the remainder of an integer goes to the first replicas."""
        count = self.world.num_replicas
        if np.issubdtype(value.dtype, np.floating):
            parts = [value / count] * count
        else:
            parts = [value // count + (replica < value % count) for replica in range(count)]
        self.copies = PerReplica(map(self._cast, parts))

    def _cast(self, value: Any) -> Any:
        return np.array(value, self.copies[0].dtype)


class World:
    """A strategy with `num_replicas` replicas; `central` has one copy of each variable for all."""

    def __init__(self, num_replicas: int, *, central: bool = False) -> None:
        self.num_replicas, self.central = num_replicas, central

    def variable(self, initial: Any, synchronization: str, aggregation: str) -> Variable:
        """A new variable."""
        return Variable(self, initial, synchronization, aggregation)

    # Outside of replicas.

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call `fn` for each replica with its part of the arguments."""
        return fn(*map(self.each, args))

    def reduce(self, op: str, value: Any, axis: Any) -> Any:
        """Combine over the replicas; with `axis`, over those axes of each replica's value too."""
        parts = [np.asarray(x) for x in self.each(value)]
        count: Any = self.num_replicas
        if axis is not None:
            axes = axis if isinstance(axis, tuple) else (axis,)
            count = sum(int(np.prod([x.shape[a] for a in axes])) for x in parts)
            parts = [np.sum(x, axes, dtype=x.dtype) for x in parts]
        total = np.sum(np.stack(parts), 0, dtype=parts[0].dtype)
        if op == "SUM":
            return total
        return np.float32(total) / np.float32(count)

    def gather(self, value: PerReplica, axis: int) -> Any:
        """The replicas' values, one after the other along `axis`."""
        return np.concatenate(value, axis)

    def each(self, value: Any) -> PerReplica:
        """Each replica's part of `value`, or the whole of a plain value."""
        if isinstance(value, PerReplica):
            return value
        return PerReplica([value] * self.num_replicas)

    # In replicas.

    def replica_id(self) -> PerReplica:
        """Which replica this is."""
        return PerReplica(np.int32(i) for i in range(self.num_replicas))

    def compute(self, fn: Callable[..., Any], *values: Any) -> Any:
        """`fn(numpy, *values)`, in each replica if some of the values are per replica."""
        if not any(isinstance(value, PerReplica) for value in values):
            return fn(np, *values)
        return PerReplica(fn(np, *xs) for xs in zip(*map(self.each, values), strict=True))

    def all_reduce(self, op: str, values: list[PerReplica]) -> list[PerReplica]:
        """Each value reduced over the replicas; every replica gets the result."""
        return [self.each(self.reduce(op, value, None)) for value in values]

    def all_gather(self, value: PerReplica, axis: int) -> PerReplica:
        """The replicas' values joined; every replica gets the result."""
        return self.each(self.gather(value, axis))

    def merge_call(self, fn: Callable[..., Any], *values: PerReplica) -> PerReplica:
        """Call `fn` once, outside of replicas; each replica gets its part of the result."""
        return self.each(fn(*values))
