"""`tf.data.Options` and its groups: an option is honoured, a hint without effect, or refused by name.

Honoured: `experimental_distribute.auto_shard_policy`, `deterministic` (the order of elements is always
deterministic) and `threading.private_threadpool_size`. Hints, which could only change performance: the
other options of `threading`, those of `autotune` and `experimental_optimization`, `experimental_slack` and
`experimental_warm_start`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, Self, final

import numpy as np

from replicax.errors import InputError
from replicax.input import AutoShardPolicy

__all__ = ["AutotuneOptions", "DistributeOptions", "OptimizationOptions", "Options", "ThreadingOptions"]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InputError("pass True or False")
    return bool(value)


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InputError("pass 0, 1, 2, ...")
    return int(value)


def _policy(value: Any) -> AutoShardPolicy:
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if name not in AutoShardPolicy.__members__:
        raise InputError(f"pass one of {', '.join(AutoShardPolicy.__members__)}")
    return AutoShardPolicy[str(name)]


class _Group:
    """Options that are set as attributes; None if they are not set."""

    _CHECKS: ClassVar[dict[str, Callable[..., Any]]]
    _REFUSED: ClassVar[dict[str, str]] = {}
    _OLD_NAMES: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        for name, check in self._CHECKS.items():
            object.__setattr__(self, name, check() if isinstance(check, type) else None)

    def __setattr__(self, name: str, value: Any) -> None:
        name = self._OLD_NAMES.get(name, name)
        if name not in self._CHECKS:
            raise AttributeError(self._complaint(name))
        check = self._CHECKS[name]
        try:
            if isinstance(check, type) and not isinstance(value, check):
                raise InputError(f"pass a {check.__name__}")
            checked = value if value is None or isinstance(check, type) else check(value)
        except InputError as error:
            raise InputError(f"{type(self).__name__}.{name} = {value!r}: {error}.") from None
        object.__setattr__(self, name, checked)

    def __getattr__(self, name: str) -> Any:
        if name in self._OLD_NAMES:
            return getattr(self, self._OLD_NAMES[name])
        raise AttributeError(self._complaint(name))

    def _complaint(self, name: str) -> str:
        if name in self._REFUSED:
            return f"{type(self).__name__}.{name} has no meaning here: {self._REFUSED[name]}."
        return f"{type(self).__name__} has no option {name!r}; it has {', '.join(self._CHECKS)}."

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # pyright: ignore

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"{type(self).__name__}({given})"

    def merge(self, options: Self) -> Self:
        """These options, overridden by those that are set in `options`."""
        if type(options) is not type(self):
            raise TypeError(f"{type(self).__name__}.merge takes {type(self).__name__}, got {options!r}.")
        merged = copy.deepcopy(self)
        for name, value in vars(options).items():
            if isinstance(value, _Group):
                value = getattr(merged, name).merge(value)
            if value is not None:
                object.__setattr__(merged, name, value)
        return merged


@final
class DistributeOptions(_Group):
    """How a dataset is distributed: `auto_shard_policy`.

    >>> options = DistributeOptions()
    >>> options.auto_shard_policy = "DATA"
    >>> options
    DistributeOptions(auto_shard_policy=<AutoShardPolicy.DATA: 2>)
    """

    auto_shard_policy: Any
    _CHECKS: ClassVar = {"auto_shard_policy": _policy}
    _REFUSED: ClassVar = {"num_devices": "a strategy knows its devices"}


@final
class ThreadingOptions(_Group):
    """`private_threadpool_size`: the number of threads for `num_parallel_calls`; 0 means automatic."""

    private_threadpool_size: Any
    _CHECKS: ClassVar = {"private_threadpool_size": _number, "max_intra_op_parallelism": _number}


@final
class AutotuneOptions(_Group):
    """Hints for the autotuner. There is none here, so they have no effect."""

    enabled: Any
    _CHECKS: ClassVar = {
        "enabled": _flag,
        **dict.fromkeys(["cpu_budget", "ram_budget", "initial_parallelism", "min_parallelism"], _number),
    }
    _REFUSED: ClassVar = {"autotune_algorithm": "nothing is tuned"}


_OPTIMIZATIONS = """
    apply_default_optimizations filter_fusion filter_parallelization inject_prefetch map_and_batch_fusion
    map_and_filter_fusion map_fusion map_parallelization noop_elimination parallel_batch
    seq_interleave_prefetch shuffle_and_repeat_fusion
"""


@final
class OptimizationOptions(_Group):
    """Hints for graph rewrites. Pipelines are not rewritten here, so they have no effect."""

    _CHECKS: ClassVar = dict.fromkeys(_OPTIMIZATIONS.split(), _flag)


def _always(value: Any) -> bool:
    if value is not True:
        raise InputError("positions are always saved symbolically: leave it out, or pass True")
    return True


@final
class Options(_Group):
    """Options of a dataset, set by `Dataset.with_options` and inherited by datasets derived from it.

    Setting an option that is unknown or has no meaning here raises an error. `experimental_distribute`,
    `threading`, `autotune` and `experimental_optimization` are groups of options.

    >>> from replicax import tf
    >>> options = tf.data.Options()
    >>> options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    >>> dataset = tf.data.Dataset.range(8).with_options(options).batch(4)
    >>> dataset.options().experimental_distribute.auto_shard_policy
    <AutoShardPolicy.OFF: -1>
    >>> options.experimental_slak = True
    Traceback (most recent call last):
    AttributeError: Options has no option 'experimental_slak'; it has deterministic, autotune, ...
    """

    deterministic: Any
    autotune: Any
    threading: Any
    experimental_distribute: Any
    experimental_optimization: Any
    _CHECKS: ClassVar = {
        "deterministic": _flag,
        "autotune": AutotuneOptions,
        "threading": ThreadingOptions,
        "experimental_distribute": DistributeOptions,
        "experimental_optimization": OptimizationOptions,
        "experimental_slack": _flag,
        "experimental_warm_start": _flag,
        "experimental_symbolic_checkpoint": _always,
    }
    _REFUSED: ClassVar = {
        "experimental_external_state_policy": "datasets are not serialised",
        "experimental_service": "there is no data service; `strategy.distribute_dataset` shards the input",
        "experimental_stats": "`iterator.stats()` of a distributed dataset tells how long steps waited",
        "dataset_name": "datasets have no names",
        "framework_type": "there is one framework",
    }
    _OLD_NAMES: ClassVar = {
        "experimental_deterministic": "deterministic",
        "experimental_threading": "threading",
    }
