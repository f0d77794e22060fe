"""Names of strategies in older releases of TensorFlow, and what to write instead."""

from __future__ import annotations

from typing import Any

__all__ = ["OLDER_NAMES", "refuse"]

_VERSION_1 = "This is a method of version 1, `tf.compat.v1.distribute`."
OLDER_NAMES = {
    "make_dataset_iterator": f"Write `iter(strategy.distribute_dataset(dataset))`. {_VERSION_1}",
    "make_input_fn_iterator": (
        f"Write `iter(strategy.distribute_datasets_from_function(dataset_fn))`. {_VERSION_1}"
    ),
    "experimental_run": f"Write `strategy.run(fn, args=(batch,))`. {_VERSION_1}",
    "update_config_proto": f"Replicax has no sessions. {_VERSION_1}",
    "configure": "Replicax has no sessions. Leave it out.",
    "unwrap": "Write `strategy.experimental_local_results(value)`.",
    "group": "Replicax has no graphs: every call runs at once. Leave it out.",
    "colocate_vars_with": "Write `strategy.extended.colocate_vars_with(variable)`.",
}


def refuse(owner: Any, name: str) -> AttributeError:
    """The error for a name that `owner`, a strategy, does not have."""
    hint = OLDER_NAMES.get(name)
    said = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{said}. {hint}" if hint else said, name=name, obj=owner)
