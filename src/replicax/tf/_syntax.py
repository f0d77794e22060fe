"""Makes TensorFlow's `v.value()` and `v[0].assign(x)` work on variables whose values are JAX arrays.

`v.value` is an array here, as in Keras and Flax, and so is `v[0]`. Arrays can be neither called nor
assigned to, and Keras, Optax and others would mistake a callable array for a function. But Python compiles
`v.value()` differently from `v.value`, so the caller's bytecode tells the two apart. After `import
replicax.tf`, variables look at it.

This can't work if the array is stored first: `f = v.value; f()`. Pytest rewrites `assert v.value() == 1` to
such code.
"""

from __future__ import annotations

import opcode
import sys
from types import CodeType, FrameType
from typing import Any

from replicax.variables import HasRows, Variable, VariableCopy

__all__ = ["called_next", "method_called_next"]

_WRITES = ("assign", "assign_add", "assign_sub")


def called_next(frame: FrameType) -> bool:
    """Whether the attribute that `frame` is evaluating is called, as in `v.value()`."""
    code = frame.f_code.co_code
    return _is_method(opcode.opname[code[frame.f_lasti]], code[frame.f_lasti + 1])


def method_called_next(frame: FrameType) -> str | None:
    """The method that `frame` calls on the value it is evaluating, as in `v[0].assign(x)`, or None."""
    code, place, high = frame.f_code.co_code, frame.f_lasti + 2, 0
    while place < len(code):
        name, argument = opcode.opname[code[place]], code[place + 1]
        if name == "EXTENDED_ARG":
            high = high << 8 | argument
        elif name != "CACHE":
            called = _is_method(name, argument)
            return _attribute(frame.f_code, name, high << 8 | argument) if called else None
        place += 2
    return None


def _is_method(name: str, argument: int) -> bool:
    # Since Python 3.12, the lowest bit says whether the attribute is a method that is called.
    return name == "LOAD_METHOD" or (
        name == "LOAD_ATTR" and sys.version_info >= (3, 12) and argument & 1 == 1
    )


def _attribute(code: CodeType, name: str, argument: int) -> str:
    return code.co_names[argument if name == "LOAD_METHOD" else argument >> 1]


def _value(self: Any) -> Any:
    value = self.read_value()
    return (lambda: value) if called_next(sys._getframe(1)) else value


def _getitem(read: Any) -> Any:
    def getitem(self: Any, index: Any) -> Any:
        written = method_called_next(sys._getframe(1)) in _WRITES
        return self.slice_at(index) if written else read(self, index)

    return getitem


setattr(HasRows, "value", property(_value, HasRows.value.fset, doc=HasRows.value.__doc__))  # noqa: B010
for _kind in (Variable, VariableCopy):
    setattr(_kind, "__getitem__", _getitem(_kind.__getitem__))  # noqa: B010
