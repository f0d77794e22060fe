"""Profiles some steps of a running program, and records when JAX traces and compiles.

A `Recorder` watches the compiled functions that the program calls: in a `with` block, it wraps the methods
that call a step or read a batch, to annotate the profile. *The step* is the first function that is called
often enough. After its warm-up the recorder profiles a number of steps, from the end of one call to the end
of another, so that it sees whole iterations of the program's loop. The profiler slows steps down, so it
then times as many steps without it.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax

from replicax.errors import ContextError
from replicax.execution import Function
from replicax.input import DistributedDataset, DistributedIterator
from replicax.reporting._intervals import length, union
from replicax.reporting._profile import COMPILED, INPUT, RECORDED, STEP, Profile

__all__ = ["Recorder"]

_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}


@final
class Recorder:
    """Records some steps of a program.

    Args:
        num_steps: how many calls of the step to profile, and then to time.
        num_warmup: how many calls to skip first.
        when_done: called when the steps have been timed.
        when_called: called after each call of the step, with the number of calls so far.
    """

    def __init__(
        self,
        num_steps: int,
        num_warmup: int,
        when_done: Callable[[], None] = lambda: None,
        when_called: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._num_calls, self.num_warmup, self._when_done = num_steps, num_warmup, when_done
        self._when_called = when_called
        self._thread, self._is_inside = threading.get_ident(), False
        self._calls: Counter[Function[..., Any]] = Counter()
        self._num_left = num_steps
        self._last_result: Any = None
        self._timed_since, self._num_timed = 0.0, 0
        self._cleanup = contextlib.ExitStack()
        self._profiling: contextlib.ExitStack | None = None
        self._stages: list[tuple[str, float, float]] = []
        self.function: Function[..., Any] | None = None
        """The step; None until a function has been called often enough."""
        self.compilation: dict[str, float] = {}
        """How long JAX spent in each stage of compilation before the recorded steps."""
        self.num_steps = 0
        """How many steps were recorded; a call of `many` counts as several."""
        self.example: tuple[Any, Any] | None = None
        """The arguments of the first recorded step."""
        self.profile: Profile | None = None
        """The profile, once all steps are done."""
        self.seconds: float | None = None
        """The step time without the profiler; None if the program ended before that."""
        self.is_done = False
        """Whether all steps are done."""

    @property
    def functions(self) -> list[Function[..., Any]]:
        """All compiled functions that the program has called, the step first."""
        return [function for function, _ in self._calls.most_common()]

    @property
    def num_calls(self) -> list[tuple[str, int]]:
        """The functions and how often they were called, most frequent first."""
        return [(function.name, count) for function, count in self._calls.most_common()]

    # Watching.

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A `with` block around the program."""
        jax.monitoring.register_event_duration_secs_listener(self._record_compilation)
        try:
            with (
                self._cleanup,
                _patched(Function, "__call__", self._watched_call),
                _patched(Function, "many", self._watched_many),
                _patched(DistributedIterator, "__next__", self._watched_next),
            ):
                yield
                self.finish()
        finally:
            jax.monitoring.unregister_event_duration_listener(self._record_compilation)

    def reading(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, annotating in the profile how long it takes to read each."""
        iterator, end = iter(batches), object()
        while True:
            with jax.profiler.TraceAnnotation(INPUT):
                batch = next(iterator, end)
            if batch is end:
                return
            yield batch

    def _watched_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(function: Function[..., Any], *args: Any, **kwargs: Any) -> Any:
            loops = any(isinstance(x, DistributedDataset | DistributedIterator) for x in args)
            if loops or self._is_part_of_a_step:
                return call(function, *args, **kwargs)
            with self._step():
                result = call(function, *args, **kwargs)
            self._record_call(function, result, 1, (args, kwargs))
            return result

        return __call__

    def _watched_many(self, many: Callable[..., Any]) -> Callable[..., Any]:
        def watched(function: Function[..., Any], *args: Any) -> Any:
            if self._is_part_of_a_step:
                return many(function, *args)
            with self._step():
                results = many(function, *args)
            self._record_call(function, results, len(results), None)
            return results

        return watched

    def _watched_next(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: DistributedIterator) -> Any:
            with jax.profiler.TraceAnnotation(INPUT):
                return read(iterator)

        return __next__

    @property
    def _is_part_of_a_step(self) -> bool:
        return self._is_inside or threading.get_ident() != self._thread

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        self._is_inside = True
        try:
            with jax.profiler.TraceAnnotation(STEP):
                yield
        finally:
            self._is_inside = False

    def _record_call(self, function: Function[..., Any], result: Any, count: int, example: Any) -> None:
        """Record a call that ran `count` steps; `example` has the arguments of an ordinary call."""
        self._calls[function] += 1
        if self.function is None and self._calls[function] >= self.num_warmup:
            self.function = function
            _wait(function, result)
            self._start()
        elif function == self.function and not self.is_done:
            self._when_called(self._calls[function])
            self._last_result = result
            if self._profiling is not None:
                self.example = self.example or example
                self.num_steps += count
            else:
                self._num_timed += count
            self._num_left -= 1
            if self._num_left == 0:
                self._advance()

    def _advance(self) -> None:
        """Move on from profiling to timing, and from timing to done."""
        self._num_left = self._num_calls
        if self._profiling is not None:
            self._stop()
        else:
            self.finish()
            self._when_done()

    def _record_compilation(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        if event in _STAGES:
            now = time.perf_counter()
            self._stages.append((_STAGES[event], now - duration_secs, now))
            with jax.profiler.TraceAnnotation(COMPILED, seconds=duration_secs):
                pass

    def _seconds(self, stage: str) -> float:
        return length(union((start, end) for name, start, end in self._stages if name == stage))

    # The profile.

    def _start(self) -> None:
        self.compilation = {stage: self._seconds(stage) for stage in _STAGES.values()}
        folder = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="replicax-report-"))
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # the Python tracer would slow Python down
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError as error:
            raise ContextError(
                "rx.report needs JAX's profiler, which is already running. Stop that profile first, or "
                "call rx.report outside of `rx.profile`."
            ) from error
        self._folder = folder
        self._profiling = self._cleanup.enter_context(contextlib.ExitStack())
        self._profiling.callback(jax.profiler.stop_trace)
        self._profiling.enter_context(jax.profiler.TraceAnnotation(RECORDED))

    def _stop(self) -> None:
        """Stop the profiler and start timing."""
        assert self._profiling is not None and self.function is not None
        _wait(self.function, self._last_result)
        self._profiling.close()
        self._profiling = None
        self._timed_since = time.perf_counter()

    def finish(self) -> None:
        """Complete the profile and the timing, even if the program ends early."""
        if self.is_done or self.function is None:
            return
        self.is_done = True
        if self._profiling is not None:
            self._stop()
        _wait(self.function, self._last_result)
        if self._num_timed:
            self.seconds = (time.perf_counter() - self._timed_since) / self._num_timed
        mesh = next((program.mesh for program in self.function.programs if program.mesh), None)
        devices = jax.local_devices()[:1] if mesh is None else mesh.mesh.local_devices
        platform = devices[0].platform
        # A profile numbers CPU devices across the cluster, and other devices within the process.
        ids = {d.id if platform == "cpu" else d.local_hardware_id: d.local_hardware_id for d in devices}
        self.profile = Profile.read(self._folder, platform, ids)
        self._last_result = None


def _wait(function: Function[..., Any], result: Any) -> None:
    """Wait until everything that a step writes and returns is computed."""
    arrays = [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array) and not x.is_deleted()]
    jax.block_until_ready(arrays)
    for program in function.programs:
        program.wait()


@contextlib.contextmanager
def _patched(kind: type, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(kind, name)
    setattr(kind, name, wrap(original))
    try:
        yield
    finally:
        setattr(kind, name, original)
