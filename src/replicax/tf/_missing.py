"""What TensorFlow has and this namespace does not, and what to use instead."""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Callable
from typing import NoReturn

__all__ = ["OF_COMPAT_V1", "OF_DISTRIBUTE", "OF_TF", "refuse"]

_LAX = "the function of that name in `jax.lax` or `jax.numpy`"
_TEXT = "Python's own strings on the host: JAX has no string arrays"
_GRAPH = "nothing: there are no graphs and sessions, every call runs immediately"

OF_TF = {
    "AggregationMethod": "nothing: gradients are added as they come",
    "CriticalSection": "`threading.Lock`",
    "DeviceSpec": "the name of a device, such as 'GPU:0'",
    "RaggedTensorSpec": "arrays padded to one shape, with a mask",
    "RegisterGradient": "`tf.custom_gradient`",
    "SparseTensorSpec": "dense arrays",
    "VariableSpec": "`tf.TensorSpec`",
    "batch_to_space": _LAX,
    "bitcast": "`jax.lax.bitcast_convert_type`",
    "bitwise": "the operators `&`, `|`, `^` and `~`",
    "case": "`tf.switch_case` or `tf.cond`",
    "dynamic_partition": "`tf.boolean_mask` for each part",
    "dynamic_stitch": "`tf.tensor_scatter_nd_update`",
    "extract_volume_patches": "`jax.lax.conv_general_dilated_patches`",
    "fingerprint": "`hashlib` on the host",
    "get_current_name_scope": "nothing: names are shown in profiles only",
    "get_static_value": "the value itself: it is an array, or traced",
    "grad_pass_through": "`tf.custom_gradient`",
    "graph_util": _GRAPH,
    "guarantee_const": "the value itself",
    "hessians": "`jax.hessian`",
    "is_symbolic_tensor": "`tf.executing_eagerly()`",
    "load_library": "`jax.ffi`",
    "make_ndarray": "`np.asarray`",
    "make_tensor_proto": "`np.save`",
    "mlir": "`jax.jit(f).lower(x).as_text()`",
    "nondifferentiable_batch_function": "`jax.vmap`",
    "parallel_stack": "`tf.stack`",
    "ragged_fill_empty_rows": "arrays padded to one shape",
    "realdiv": "`tf.truediv`",
    "recompute_grad": "`jax.checkpoint`",
    "required_space_to_batch_paddings": _LAX,
    "reverse_sequence": "`jax.vmap` of `jnp.roll` and `jnp.flip`",
    "saturate_cast": "`tf.cast(tf.clip_by_value(...))`",
    "space_to_batch": _LAX,
    "sysconfig": "`replicax.cli`: `python -m replicax doctor`",
    "timestamp": "`time.time()`",
    "truncatediv": "`jax.lax.div`",
    "truncatemod": "`jax.lax.rem`",
    "type_spec_from_value": "`tf.TensorSpec(x.shape, x.dtype)`",
    "unique_with_counts": "`np.unique(x, return_counts=True)`",
    "unravel_index": "`jnp.unravel_index`",
    "version": "`tf.__version__`, which is Replicax's",
    "Graph": _GRAPH,
    "Operation": _GRAPH,
    "RaggedTensor": "arrays padded to one shape, with a mask",
    "SparseTensor": "dense arrays, or `jax.experimental.sparse`; gradients of rows are `tf.IndexedSlices`",
    "audio": "a library that decodes audio, in `Dataset.map`",
    "autodiff": "`jax.jvp`",
    "autograph": "`tf.cond` and `tf.while_loop`: a Python `if` on a traced value is not rewritten",
    "estimator": "your own training loop; see docs/porting.md",
    "experimental": "the equivalent in `jax`",
    "feature_column": "arrays made in `Dataset.map`",
    "gradients": "`rx.grad(loss_fn, variables)`",
    "keras.estimator": "your own training loop",
    "lite": "`jax2tf` and TensorFlow Lite",
    "lookup": "a Python dict in `Dataset.map`",
    "profiler": "`jax.profiler`",
    "quantization": "a library for quantization in JAX, such as qwix",
    "queue": "`strategy.distribute_dataset`, which reads ahead",
    "ragged": "arrays padded to one shape, with a mask",
    "raw_ops": _LAX,
    "saved_model": "`rx.Checkpoint` for the state, `jax.export` for the program",
    "sets": "Python's sets, on the host",
    "signal": "`jax.scipy.signal` and `jnp.fft`",
    "sparse": "dense arrays, or `jax.experimental.sparse`",
    "strings": _TEXT,
    "test": "pytest",
    "variable_creator_scope": "a function that creates your variables",
    "while": "`tf.while_loop`",
    "xla": "`jax.jit`: XLA compiles everything",
}

OF_DISTRIBUTE = {
    "DistributedDatasetsFromFunction": "`rx.DistributedDataset`, the type of all distributed datasets",
}

OF_COMPAT_V1 = {
    "Session": _GRAPH,
    "data": "`tf.data`, with `iter(dataset)` instead of `make_one_shot_iterator` and similar functions",
    "global_variables_initializer": "nothing: a variable has its value as soon as it exists",
    "placeholder": "an argument of the function",
    "get_variable": "`tf.Variable`",
    "train": "`rx.Optimizer` on an optax transformation",
    "layers": "Keras, or plain functions",
    "estimator": "your own training loop; see docs/porting.md",
    "disable_eager_execution": _GRAPH,
    "disable_v2_behavior": _GRAPH,
    "logging": '`logging.getLogger("replicax")`',
}


_LIBRARIES = (
    "jax.numpy",
    "jax.lax",
    "jax.nn",
    "jax.scipy.special",
    "jax.scipy.linalg",
    "jax.random",
    "optax",
)
_HOW = "what JAX, Keras or Python has for it; docs/porting.md explains how to port a program"


def refuse(module: str, instead: dict[str, str]) -> Callable[[str], NoReturn]:
    """A module's `__getattr__` that raises, and says what to use instead.

    A name that is not in `instead` is looked up in JAX and optax, then among similar names of the module.
    """

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"replicax.{module} has no {name!r}.")
        known = instead.get(name) or _of_jax(name)
        hint = _hint(known) if known else _similar(f"replicax.{module}", name) or _hint(_HOW)
        raise AttributeError(f"replicax.{module} has no {name!r}.{hint}")

    return __getattr__


def _of_jax(name: str) -> str:
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError, AttributeError, DeprecationWarning):
            if callable(getattr(importlib.import_module(library), name)):
                return f"`{library}.{name}`"
    return ""


def _similar(module: str, name: str) -> str:
    names = getattr(importlib.import_module(module), "__all__", ())
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return f" Did you mean {found[0]!r}?" if found else ""


def _hint(alternative: str) -> str:
    kind, _, reason = alternative.partition(": ")
    return f" It needs none: {reason}." if kind == "nothing" else f" Use {alternative}."
