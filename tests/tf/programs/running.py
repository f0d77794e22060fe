"""Running programs, and what their results look like in a file."""

import importlib
import json
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent.parent / "data"


def programs_of(subject):
    """The programs of a subject, by name."""
    module = importlib.import_module(f"{__package__}.{subject}")
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and name[0] != "_"
    }


def recorded(subject):
    """TensorFlow's results of a subject's programs."""
    path = DATA / f"programs_{subject}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def raised(call, *kinds):
    """The names of those of `kinds` that the error of `call` is; the error's own name if it is none."""
    try:
        call()
    except Exception as error:
        return [kind.__name__ for kind in kinds if isinstance(error, kind)] or type(error).__name__
    return "nothing"


def two(tf):
    """A strategy with two replicas."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def each(strategy, value):
    """What each replica has, as a list."""
    return list(strategy.experimental_local_results(value))


def plain(result):
    """`result` with lists and numbers in place of tensors, as JSON has them."""
    if isinstance(result, dict):
        return {key: plain(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [plain(value) for value in result]
    if result is None or isinstance(result, bool | str | float | int):
        return result
    array = np.asarray(result.numpy() if hasattr(result, "numpy") else result)
    return array.tolist() if array.dtype.kind in "iub" else array.astype(float).tolist()
