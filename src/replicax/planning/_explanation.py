"""`Explanation`, the result of `rx.explain`: numbers, a text table and an HTML page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

import jax

from replicax._messages import size_text
from replicax._page import frame, save_page
from replicax._text import table
from replicax.planning._collectives import Collective
from replicax.planning._page import explanation_page
from replicax.planning._scaling import Interconnect, Scaling, predict
from replicax.variables import Layout, Memory, Variable, VariableKind, advise, bytes_on_device, kind_of

__all__ = ["Explanation", "ShardingEffect", "VariableUse", "short_line"]

_MOST_ROWS = 12
_NUMBERS = (1, 2, 3, 4)


@final
@dataclasses.dataclass(frozen=True)
class VariableUse:
    """A variable of a step, and how it is placed."""

    name: str
    kind: VariableKind
    shape: tuple[int, ...]
    dtype: str
    layout: str
    """TensorFlow's name for its kind, "MirroredVariable" or "ShardedVariable"."""
    bytes: int
    """Its size on each device."""
    parts: tuple[int, ...]
    """Into how many shards each of its axes is split."""
    padded_shape: tuple[int, ...]
    """The shape of all shards together, with padding."""
    holders: tuple[int, ...]
    """For each device of the mesh, which shard it holds."""

    @classmethod
    def of(cls, variable: Variable, layout: Layout, array: jax.ShapeDtypeStruct) -> VariableUse:
        """A variable whose array is placed like `array`."""
        holders = _holders(array)
        part = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
        return cls(
            name=variable.name,
            kind=kind_of(variable),
            shape=variable.shape,
            dtype=str(variable.dtype),
            layout=layout.type_name,
            bytes=bytes_on_device(array),
            parts=tuple(whole // max(size, 1) or 1 for whole, size in zip(array.shape, part, strict=True)),
            padded_shape=tuple(array.shape),
            holders=holders,
        )


def _holders(array: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """Which shard of an array each device holds, in mesh order."""
    if array.sharding is None:
        return (0,)
    places = array.sharding.devices_indices_map(tuple(array.shape))
    devices = getattr(array.sharding, "mesh", None)
    order = list(places) if devices is None else list(devices.devices.flat)
    starts = [tuple(s.start or 0 for s in places[device]) for device in order]
    numbers = {start: number for number, start in enumerate(sorted(set(starts)))}
    return tuple(numbers[start] for start in starts)


@final
@dataclasses.dataclass(frozen=True)
class ShardingEffect:
    """What a step needs with one setting of `shard`."""

    shard: str
    memory: Memory
    flops: float
    collectives: tuple[Collective, ...]

    @property
    def bytes_sent(self) -> int:
        """The bytes that each device sends in a step; see `Collective.bytes_sent`."""
        return sum(collective.bytes_sent for collective in self.collectives)


@final
@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a step needs on each device: the result of `rx.explain`.

    XLA reports these numbers for the compiled program. It allocates all temporaries as one block, so a
    device needs `memory.peak`. It counts the operations of a loop body once.

    >>> v = rx.Variable(jnp.zeros(1000), name="v")
    >>> @rx.function
    ... def step(x):
    ...     v.assign_add(x)
    >>> explanation = rx.explain(step, jax.ShapeDtypeStruct((1000,), jnp.float32))
    >>> print(explanation)                                                         # doctest: +ELLIPSIS
    step on 1 CPU device
    <BLANKLINE>
    memory on each device
      parameters   3.9 KiB
      arguments    3.9 KiB
      peak         7.8 KiB   of ... GiB
    <BLANKLINE>
    computation on each device: 1.0 k floating-point operations
    """

    step: str
    """The name of the step's function."""
    mesh_shape: dict[str, int]
    """The axes of the mesh and their sizes, the replicas first; empty if JAX chooses the device."""
    platform: str
    """The platform that it was compiled for."""
    shard: str
    """What is sharded over the replicas: "mirrored" (nothing), "optimizer" or "all"."""
    memory: Memory
    """The memory on each device, by purpose."""
    flops: float
    """The floating-point operations of each device."""
    collectives: tuple[Collective, ...]
    """The collectives, in the order of the program."""
    variables: tuple[VariableUse, ...]
    """The variables that the step uses."""
    settings: tuple[ShardingEffect, ...]
    """The effect of each setting of `shard`, if they were compared; otherwise of this one only."""
    device_memory: int | None
    """The memory of a device in bytes; None if unknown."""

    @property
    def num_devices(self) -> int:
        """The number of devices of all replicas; 1 if JAX chooses the device."""
        return math.prod(self.mesh_shape.values())

    @property
    def num_replicas(self) -> int:
        """The size of the mesh's first axis; the other axes are the devices of one replica."""
        return next(iter(self.mesh_shape.values()), 1)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into a device's memory; None if that is unknown."""
        return None if self.device_memory is None else self.memory.peak <= self.device_memory

    @property
    def advice(self) -> list[str]:
        """Changes that would reduce the memory of the step.

        If other settings were compared, `settings` has their effects.
        """
        return advise(self.memory, self.device_memory, self.num_replicas, self.shard)

    # Other numbers of devices.

    def scaling(
        self,
        num_replicas: Sequence[int] = (8, 64, 512, 4096),
        *,
        interconnect: Interconnect,
        step_seconds: float | None = None,
        flops_per_second: float | None = None,
        overlap: float = 0.0,
    ) -> Scaling:
        """Predict the step time on other numbers of replicas, from the step's operations and collectives.

        The rows per replica stay the same. The guide to `rx.explain` describes the model, what it leaves
        out, and how it compares with published results.

        Args:
            num_replicas: the numbers of replicas.
            interconnect: the bandwidth and latency between devices and between hosts.
            step_seconds: how long a device computes in a step, as measured on one device.
            flops_per_second: the operations per second that a device attains, instead of `step_seconds`.
            overlap: the fraction of the collectives' time that is hidden behind computation, 0 to 1.

        Raises:
            ValueError: the step was explained for one replica, so it has no collectives among replicas; or
                an argument is out of range.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(jnp.ones((1000, 250)), aggregation="MEAN")
        ...     spec = rx.PerReplicaSpec(rx.TensorSpec([1000, 250]))
        >>> def step(x):
        ...     strategy.run(lambda x: w.assign_sub(x), args=(x,))
        >>> with strategy.scope():
        ...     explanation = rx.explain(step, spec, compare=False)
        >>> ethernet = rx.Interconnect(bandwidth=25e9 / 8, devices_per_host=4)
        >>> print(explanation.scaling([4, 64, 4096], interconnect=ethernet, step_seconds=0.01))
        predicted, with the same rows for each replica
          replicas     a step   collectives   not hidden   efficiency
                 4   10.00 ms          0 µs         0 µs      100.0 %
                64   10.68 ms        680 µs       680 µs       93.6 %
             4,096   10.84 ms        839 µs       839 µs       92.3 %
        """
        compute = _compute_seconds(self.flops, step_seconds, flops_per_second)
        counts, overlap = _checked_counts(num_replicas), _checked_overlap(overlap)
        if self.num_replicas == 1:
            raise ValueError(
                "scaling() predicts the time of the collectives among replicas. This step was explained "
                "for one replica, so it has none. Explain a step of a strategy for more replicas: "
                "`rx.explain(step, ..., num_replicas=2)`."
            )
        return predict(
            self.collectives,
            compute,
            counts,
            interconnect,
            overlap=overlap,
            replica_axis=next(iter(self.mesh_shape), "replica"),
            devices_per_replica=self.num_devices // self.num_replicas,
        )

    # Text.

    def __str__(self) -> str:
        sections = [
            self._title,
            table("memory on each device", self._memory_rows, _NUMBERS),
            f"computation on each device: {count_text(self.flops)} floating-point operations",
            self._collectives_text,
            table("other settings", self._setting_rows, _NUMBERS) if len(self.settings) > 1 else "",
            self._advice_text,
        ]
        return "\n\n".join(filter(None, sections))

    __repr__ = __str__

    @property
    def _title(self) -> str:
        devices = f"{self.num_devices} {self.platform.upper()} device{'s' * (self.num_devices > 1)}"
        setting = f', shard="{self.shard}"' if self.num_replicas > 1 else ""
        return f"{self.step} on {devices}{setting}"

    @property
    def _memory_rows(self) -> list[tuple[str, ...]]:
        rows = [(label, size_text(size)) for label, size in memory_parts(self.memory) if size]
        limit = "" if self.device_memory is None else f"of {size_text(self.device_memory)}"
        return [*rows, ("peak", size_text(self.memory.peak), limit)]

    @property
    def _collectives_text(self) -> str:
        rows = grouped(self.collectives)
        if not rows:
            return "no collectives" if self.num_devices > 1 else ""
        more = [("...", "", "", "", f"and {len(rows) - _MOST_ROWS} more")] if len(rows) > _MOST_ROWS else []
        header = ("kind", "axis", "times", "bytes", "line")
        return table("collectives of a step", [header, *rows[:_MOST_ROWS], *more], numbers=(2, 3))

    @property
    def _setting_rows(self) -> list[tuple[str, ...]]:
        header = ("", "state", "temporaries", "peak", "sent")
        return [header, *(setting_row(effect, self.shard) for effect in self.settings)]

    @property
    def _advice_text(self) -> str:
        if self.fits is not False:
            return ""
        return "\n".join(["it does not fit; what would help", *(f"  - {tip}" for tip in self.advice)])

    # Pages.

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a page for a browser, in one file that needs no network; returns its path.

        >>> import tempfile
        >>> v = rx.Variable(jnp.zeros(1000))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = rx.explain(lambda x: v.assign_add(x), jnp.ones(1000)).save(f"{folder}/step.html")
        ...     path.read_text()[:15]
        '<!doctype html>'
        """
        return save_page(explanation_page(self.to_dict()), path)

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame."""
        return frame(explanation_page(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain dicts, lists, strings and numbers, for JSON.

        >>> v = rx.Variable(jnp.zeros(1000), name="v")
        >>> rx.explain(lambda x: v.assign_add(x), jnp.ones(1000)).to_dict()["memory"]["parameters"]
        4000
        """
        return {
            **dataclasses.asdict(self),
            "num_replicas": self.num_replicas,
            "num_devices": self.num_devices,
            "peak": self.memory.peak,
            "advice": self.advice if self.fits is False else [],
            "title": self._title,
            "groups": grouped(self.collectives),
            "effects": [
                {"shard": e.shard, "peak": e.memory.peak, "bytes_sent": e.bytes_sent} for e in self.settings
            ],
        }


def memory_parts(memory: Memory) -> list[tuple[str, int]]:
    """The uses of memory, with labels."""
    return [
        ("parameters", memory.parameters),
        ("optimizer state", memory.optimizer),
        ("other variables", memory.other_state),
        ("arguments", memory.arguments),
        ("results", memory.results),
        ("temporaries", memory.temporaries),
    ]


def setting_row(effect: ShardingEffect, chosen: str) -> tuple[str, ...]:
    """A row of the table of settings; an arrow marks the chosen one."""
    mark = "-> " if effect.shard == chosen else "   "
    sizes = (effect.memory.state, effect.memory.temporaries, effect.memory.peak, effect.bytes_sent)
    return (f"{mark}{effect.shard}", *map(size_text, sizes))


def grouped(collectives: Iterable[Collective]) -> list[tuple[str, ...]]:
    """Rows of kind, axis, count, bytes and line; collectives that differ only in bytes share a row.

    Rows are sorted by bytes, largest first.
    """
    groups: dict[tuple[str, str, str, bool], list[Collective]] = {}
    for c in collectives:
        groups.setdefault((c.kind, c.axis, c.line, c.times is None), []).append(c)
    sizes = {key: sum(c.bytes * (c.times or 1) for c in group) for key, group in groups.items()}
    rows: list[tuple[str, ...]] = []
    for key in sorted(groups, key=lambda key: -sizes[key]):
        kind, axis, line, is_unknown = key
        times = sum(c.times or 1 for c in groups[key])
        many = f"{times} x ?" if is_unknown else str(times)
        rows.append((kind, axis, many, size_text(sizes[key]), short_line(line)))
    return rows


def short_line(line: str) -> str:
    """A 'file:line' with its path relative to the working directory, if it is in there."""
    file, _, number = line.rpartition(":")
    try:
        return f"{Path(file).relative_to(Path.cwd())}:{number}" if file else ""
    except ValueError:
        return line


def count_text(number: float) -> str:
    """A large number with a prefix: "3.2 G"."""
    prefixes = ("", " k", " M", " G", " T", " P")
    power = min(int(math.log10(number)) // 3, len(prefixes) - 1) if number >= 1 else 0
    return f"{number:.0f}" if power == 0 else f"{number / 1000**power:.1f}{prefixes[power]}"


# The arguments of `scaling`.


def _compute_seconds(flops: float, step_seconds: float | None, flops_per_second: float | None) -> float:
    given = [x for x in (step_seconds, flops_per_second) if x is not None]
    if len(given) != 1 or not given[0] > 0:
        raise ValueError(
            f"scaling(step_seconds={step_seconds!r}, flops_per_second={flops_per_second!r}): pass exactly "
            "one positive number: the seconds that a device computes in a step, or the floating-point "
            "operations per second that it attains."
        )
    if step_seconds is not None:
        return step_seconds
    if not flops > 0:
        raise ValueError(
            "scaling(flops_per_second=...) needs a step with floating-point operations, but XLA counts "
            "none. Pass step_seconds=, the time that a device computes."
        )
    return flops / given[0]


def _checked_counts(num_replicas: Sequence[int]) -> Sequence[int]:
    counts = list(num_replicas) if isinstance(num_replicas, Iterable) else [num_replicas]
    if not counts or not all(isinstance(n, int) and n > 0 for n in counts):
        raise ValueError(f"scaling(num_replicas={num_replicas!r}): pass a list of ints, each 1 or more.")
    return counts


def _checked_overlap(overlap: float) -> float:
    if not 0 <= overlap <= 1:
        raise ValueError(f"scaling(overlap={overlap!r}): pass a fraction, 0 to 1.")
    return overlap
