"""TensorFlow's `experimental_` spellings and older names: each an alias of the one without."""

from replicax.strategies._strategy import Strategy

__all__: list[str] = []

_ALIASES = {
    "experimental_run_v2": "run",
    "experimental_local_results": "local_results",
    "experimental_distribute_dataset": "distribute_dataset",
    "experimental_distribute_datasets_from_function": "distribute_datasets_from_function",
    "experimental_make_numpy_dataset": "make_numpy_dataset",
    "experimental_distribute_values_from_function": "distribute_values_from_function",
    "experimental_assign_to_logical_device": "assign_to_logical_device",
    "experimental_split_to_logical_devices": "split_to_logical_devices",
    "experimental_replicate_to_logical_devices": "replicate_to_logical_devices",
}

for _alias, _name in _ALIASES.items():
    setattr(Strategy, _alias, getattr(Strategy, _name))
