"""The program of a step, made from the trace that found its variables.

A trace can't start with the step's variables as inputs, because it has to find them first. Each variable
that the step reads is a placeholder in the trace; when the trace is complete, the placeholders become
inputs. So the user's function is traced only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from replicax._jax import inputs_of
from replicax.execution._program import ProgramFrame
from replicax.variables import Variable

__all__ = ["StagedStep"]


@final
class StagedStep:
    """A traced step, as a function of its variables and arguments.

    Args:
        traced: the trace (`jax.make_jaxpr`) of the step; its results are the arrays that the step returns,
            followed by the new arrays of the variables that it writes.
        frame: the frame of that trace.
    """

    def __init__(self, traced: Any, frame: ProgramFrame) -> None:
        keys, self._call = inputs_of(traced)
        self._read = [frame.placeholders[key] for key in keys]
        self._written = list(frame.written)

    def __call__(
        self, inputs: Mapping[Any, Any], arguments: Sequence[Any], written: Sequence[Variable]
    ) -> tuple[list[Any], list[Any]]:
        """The results of the step, and the new arrays of the variables `written`."""
        outputs = self._call([*(inputs[ref] for ref in self._read), *arguments])
        num_results = len(outputs) - len(self._written)
        new = dict(zip(self._written, outputs[num_results:], strict=True))
        return outputs[:num_results], [new[variable.ref()] for variable in written]
