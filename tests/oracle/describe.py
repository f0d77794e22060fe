"""Values in the recorded notation, and whether two descriptions mean the same.

    T<float32,[2]>([1.,2.])@c1             an array on CPU:1
    np<float32,[2]>([1.,2.])               a NumPy array;  np.float32(1.0) a NumPy scalar
    PerReplica{a, b}   Mirrored{a, b}      one component for each replica
    MirroredVariable<float32>{1.@c0,1.@c1} a variable with its copies
    Variable<float32,1.>@c0                a variable with one copy
    Handle<float32,1.>@c0                  what TensorFlow's assignments return: reads as the new value
    IndexedSlices(values=a,indices=b)
    TensorSpec<float32,[None, 2]>          what a batch looks like;  PerReplicaSpec{a, b} on the replicas
    !ValueError                            the case raised

Compared are numbers, dtypes, shapes, structure, the class of every wrapper and the device of every
copy. Not compared is what the semantics leaves open: the device of a plain array (TensorFlow puts it
where the caller happens to be), and 64 bits (JAX's x64 mode is off, so int64 and float64 are int32 and
float32). A component may be on its own replica's device even where TensorFlow left all of them on the
first. An exception must be catchable as the recorded builtin, or as the class of that name in
`rx.errors`; its words are our own.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import replicax as rx
from replicax.variables import VariableCopy

__all__ = ["compare", "describe", "describe_error", "exception_class", "observe", "type_name"]

_VARIABLES = (rx.MirroredVariable, rx.SyncOnReadVariable, rx.AggregatingVariable, rx.Variable)


# Ours -> notation.


def type_name(value: Any) -> str:
    """The name that the recordings use for the class of `value`."""
    if isinstance(value, rx.Variable):
        return next(cls.__name__ for cls in _VARIABLES if isinstance(value, cls))
    if isinstance(value, VariableCopy):
        return "Variable"
    return "Array" if isinstance(value, jax.Array) else type(value).__name__


def _device(array: jax.Array) -> str:
    return "+".join(f"c{device.id}" for device in sorted(array.devices(), key=lambda d: d.id))


def _numbers(array: Any) -> str:
    text = np.array2string(np.asarray(array), separator=",", threshold=1000)
    return text.replace("\n", "")


def _shape(value: Any) -> str:
    return str(list(value.shape))


def _copy_text(readable: Any) -> str:
    array = readable.read_value()
    return f"{_numbers(array)}@{_device(array)}"


def _variable(variable: rx.Variable | VariableCopy) -> str:
    name, dtype = type_name(variable), np.dtype(variable.dtype).name
    if isinstance(variable, rx.MirroredVariable | rx.SyncOnReadVariable):
        return f"{name}<{dtype}>{{{','.join(map(_copy_text, variable.values))}}}"
    numbers, device = _copy_text(variable).rsplit("@", 1)
    return f"{name}<{dtype},{numbers}>@{device}"


def _sequence(value: Any) -> str:
    items = ", ".join(map(describe, value))
    if isinstance(value, list):
        return f"[{items}]"
    return f"({items},)" if len(value) == 1 else f"({items})"


def describe(value: Any) -> str:
    """`value` in the recorded notation."""
    name = type(value).__name__
    if isinstance(value, np.generic):
        return f"np.{value.dtype}({value})"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return re.sub(" +", " ", repr(value))
    if isinstance(value, rx.Variable | VariableCopy):
        return _variable(value)
    if isinstance(value, rx.DistributedValues):
        return f"{name}{{{', '.join(map(describe, value.values))}}}"
    if isinstance(value, rx.TensorSpec):
        return f"TensorSpec<{value.dtype.name},{_shape(value)}>"
    if isinstance(value, rx.PerReplicaSpec):
        return f"PerReplicaSpec{{{', '.join(map(describe, value.value_specs))}}}"
    if isinstance(value, rx.IndexedSlices):
        return f"IndexedSlices(values={describe(value.values)},indices={describe(value.indices)})"
    if isinstance(value, jax.Array):
        return f"T<{value.dtype.name},{_shape(value)}>({_numbers(value)})@{_device(value)}"
    if isinstance(value, np.ndarray):
        return f"np<{value.dtype},{_shape(value)}>({_numbers(value)})"
    if isinstance(value, Mapping):
        items = ", ".join(f"{key!r}: {describe(item)}" for key, item in value.items())
        return f"{'' if name == 'dict' else name}{{{items}}}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = ", ".join(f"{f}={describe(getattr(value, f))}" for f in value._fields)
        return f"{name}({fields})"
    if isinstance(value, tuple | list):
        return _sequence(value)
    return re.sub(r"<(?:\w+\.)*(\w+) object at 0x[0-9a-f]+>", r"<\1 object>", repr(value))


def describe_error(error: BaseException) -> str:
    """An exception as the class that it is raised as; `compare` asks the class, not the name."""
    return f"!{type(error).__name__}"


# Notation -> tree.


@dataclass(frozen=True)
class Node:
    """A parsed description: what it is, its class or dtype, its numbers and its parts."""

    what: str
    name: str = ""
    data: Any = None
    device: str = ""
    parts: tuple[tuple[Any, Node], ...] = ()


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def _closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    depth, quote, i = 0, "", start
    while i < len(text):
        char = text[i]
        if quote:
            i += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _CLOSING:
            depth += 1
        elif char in _CLOSING.values():
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    raise ValueError(f"Unbalanced description: {text!r}")


def _split(text: str) -> list[str]:
    """The parts of `text` between commas at the outermost level."""
    parts, start, i = [], 0, 0
    while i < len(text):
        if text[i] in "'\"":
            match = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"").match(text, i)
            assert match is not None, text
            i = match.end()
            continue
        if text[i] in _CLOSING:
            i = _closing(text, i)
            continue
        if text[i] == "<" and (match := re.compile(r"<\w+(,|>)").match(text, i)):
            i = match.end()
            continue
        if text[i] == ",":
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    return [part for part in (*parts, text[start:].strip()) if part]


def _array(text: str, dtype: str) -> np.ndarray:
    numbers = re.sub(r"\bnan\b", "None", text.strip())  # which NumPy reads as NaN
    return np.asarray(ast.literal_eval(numbers), dtype=_narrow(dtype))


def _narrow(dtype: str) -> str:
    names = {"int64": "int32", "float64": "float32", "uint64": "uint32", "string": "object"}
    return names.get(dtype, dtype)


def _copy(text: str, dtype: str) -> Node:
    numbers, device = text.rsplit("@", 1)
    return Node("copy", _narrow(dtype), _array(numbers, dtype), device)


def _parse_array(match: re.Match[str]) -> Node:
    what, dtype, shape, numbers, device = match.groups()
    data = _array(numbers, dtype).reshape(ast.literal_eval(shape))
    return Node("array" if what == "T" else "numpy", _narrow(dtype), data, device or "")


def _parse_scalar(match: re.Match[str]) -> Node:
    return Node("numpy", _narrow(match[1]), _array(match[2], match[1]))


def _parse_spec(match: re.Match[str]) -> Node:
    return Node("python", data=("TensorSpec", _narrow(match[1]), ast.literal_eval(match[2])))


def _parse_copies(match: re.Match[str]) -> Node:
    copies = [_copy(part, match[2]) for part in _split(match[3])]
    return Node("variable", match[1], parts=tuple(enumerate(copies)))


def _parse_one_copy(match: re.Match[str]) -> Node:
    copy = _copy(f"{match[3]}@{match[4]}", match[2])
    return copy if match[1] == "Handle" else Node("variable", match[1], parts=((0, copy),))


def _parse_fields(match: re.Match[str]) -> Node:
    fields = [part.split("=", 1) for part in _split(match[2])]
    if any(len(field) == 1 for field in fields):
        return Node("text", data=match[0])
    return Node("fields", match[1], parts=tuple((key, parse(text)) for key, text in fields))


def _parse_braces(match: re.Match[str]) -> Node:
    name, parts = match[1], _split(match[2])
    if parts and re.match(r"'[^']*': ", parts[0]):
        items = [part.split(": ", 1) for part in parts]
        return Node("mapping", name, parts=tuple((key, parse(text)) for key, text in items))
    if name:
        return Node("distributed", name, parts=tuple(enumerate(map(parse, parts))))
    return Node("python", data=ast.literal_eval(f"{{{match[2]}}}"))


def _parse_sequence(match: re.Match[str]) -> Node:
    text = match[0]
    parts = _split(text[1:-1])
    return Node("list" if text[0] == "[" else "tuple", parts=tuple(enumerate(map(parse, parts))))


_FORMS: tuple[tuple[str, Callable[[re.Match[str]], Node]], ...] = (
    (r"(T|np)<(\w+),(\[[^\]]*\])>\((.*)\)(?:@([c\d+]+))?", _parse_array),
    (r"np\.(\w+)\((.*)\)", _parse_scalar),
    (r"TensorSpec<(\w+),(\[.*\])>", _parse_spec),
    (r"(\w+)<(\w+)>\{(.*)\}", _parse_copies),
    (r"(\w+)<(\w+),(.*)>@(\w+)", _parse_one_copy),
    (r"(\w+)\((.*)\)", _parse_fields),
    (r"(\w*)\{(.*)\}", _parse_braces),
    (r"\[.*\]|\(.*\)", _parse_sequence),
)


def parse(text: str) -> Node:
    """The tree that a description stands for."""
    for form, make in _FORMS:
        match = re.fullmatch(form, text, re.DOTALL)
        if match is not None:
            return make(match)
    try:
        return Node("python", data=ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return Node("text", data=text)


# Comparing.


def _same_numbers(recorded: np.ndarray, ours: np.ndarray) -> bool:
    if recorded.shape != ours.shape:
        return False
    if recorded.dtype.kind == "f":
        tolerance = 1e-3 if recorded.dtype.itemsize == 2 else 1e-6
        return np.allclose(recorded, ours, rtol=tolerance, atol=0, equal_nan=True)
    return bool(np.array_equal(recorded, ours))


def _check_array(recorded: Node, ours: Node, where: str, replica: int | None) -> list[str]:
    problems = []
    if recorded.name != ours.name:
        problems.append(f"{where}: dtype {ours.name}, not {recorded.name}")
    elif not _same_numbers(recorded.data, ours.data):
        problems.append(f"{where}: {_numbers(ours.data)}, not {_numbers(recorded.data)}")
    own = "" if replica is None else f"c{replica}"
    if replica is not None and ours.device not in ("", own, recorded.device):
        problems.append(f"{where}: on {ours.device}, not on {own}")
    return problems


def _check_copy(recorded: Node, ours: Node, where: str) -> list[str]:
    problems = _check_array(recorded, ours, where, None)
    if recorded.device != ours.device:
        problems.append(f"{where}: copy on {ours.device}, not on {recorded.device}")
    return problems


def _check(recorded: Node, ours: Node, where: str, replica: int | None) -> list[str]:
    if recorded.what == "copy":  # A handle: whatever reads as the new value will do.
        ours = ours.parts[0][1] if ours.what == "variable" and len(ours.parts) == 1 else ours
        if ours.what not in ("array", "copy"):
            return [f"{where}: {ours.what} {ours.name}, not the new value"]
        return _check_array(recorded, ours, where, replica)
    if (recorded.what, len(recorded.parts)) != (ours.what, len(ours.parts)):
        got, want = f"{ours.what} {ours.name}".strip(), f"{recorded.what} {recorded.name}".strip()
        return [f"{where}: {got} of {len(ours.parts)}, not {want} of {len(recorded.parts)}"]
    if recorded.what in ("array", "numpy"):
        return _check_array(recorded, ours, where, replica)
    if recorded.what in ("python", "text"):
        return _check_python(recorded.data, ours.data, where)
    problems = [f"{where}: {ours.name}, not {recorded.name}"] if recorded.name != ours.name else []
    for (key, want), (our_key, got) in zip(recorded.parts, ours.parts, strict=True):
        here = f"{where}.{key}"
        if key != our_key:
            problems.append(f"{where}: key {our_key}, not {key}")
        elif want.what == "copy" and recorded.what == "variable":
            problems += _check_copy(want, got, here)
        else:
            problems += _check(want, got, here, key if recorded.what == "distributed" else replica)
    return problems


def _check_python(recorded: Any, ours: Any, where: str) -> list[str]:
    same = type(recorded) is type(ours) and recorded == ours
    if isinstance(recorded, float) and isinstance(ours, float):
        same = bool(np.isclose(recorded, ours, rtol=1e-6, atol=0))
    return [] if same else [f"{where}: {ours!r}, not {recorded!r}"]


@dataclass(frozen=True)
class Observation:
    """What a case gave: a description, or the exception it raised."""

    text: str
    error: BaseException | None = None


def observe(case: Callable[[], Any]) -> Observation:
    """Run a case and describe its result."""
    try:
        value = case()
    except Exception as error:
        return Observation(describe_error(error), error)
    return Observation(describe(value))


def exception_class(name: str) -> type[Exception]:
    """The builtin exception of that name, or our own."""
    return getattr(builtins, name, None) or getattr(rx.errors, name)


def compare(expected: str, observed: Observation) -> list[str]:
    """What is wrong with `observed`, line by line; nothing if it means the same as `expected`.

    An exception is written as "!ValueError", or with a part of its message, "!ValueError: has no axis".
    """
    if expected.startswith("!"):
        if observed.error is None:
            return [f"gave {observed.text}, should raise {expected[1:]}"]
        kind, _, part = expected[1:].partition(": ")
        if not isinstance(observed.error, exception_class(kind)):
            return [f"raised {observed.error!r}, should be a {kind}"]
        return [] if part in str(observed.error) else [f"raised {observed.error!r}, should say {part!r}"]
    if observed.error is not None:
        return [f"raised {observed.error!r}, should give {expected}"]
    return _check(parse(expected), parse(observed.text), "result", None)
