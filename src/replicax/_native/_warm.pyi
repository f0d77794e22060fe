from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, final

source_checksum: int

@final
class Lock:
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *exc_info: object) -> None: ...

@final
class hold:
    def __init__(
        self,
        locks: tuple[Lock, ...],
        seconds: float = -1,
        late: Callable[[], None] | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exc_info: object) -> None: ...

@final
class Program:
    def __init__(
        self,
        *,
        jitted: Callable[[list[Any], list[Any], list[Any]], tuple[list[Any], list[Any]]],
        checked: Callable[[list[Any]], Any],
        make_ready: Callable[[], None],
        explain: Callable[[BaseException], None],
        result: Any,
        store: Any,
        read: tuple[int, ...],
        written: tuple[int, ...],
        place: Callable[[list[Any]], list[Any]] | None,
        plain: tuple[int, ...],
    ) -> None: ...
    def __call__(self, leaves: list[Any]) -> Any: ...

class Caller:
    _known: dict[Any, Callable[[list[Any]], Any]]

def configure(
    *,
    per_replica: type,
    array: type,
    context_stack: ContextVar[Any],
    trace_state: Any,
    eval_trace: Any,
    disable_jit: Any,
    number_check: Any,
    first_copy: Callable[[Any], Any],
    trace_settings: Callable[[], tuple[Any, ...]],
    settings_number: Callable[[tuple[Any, ...]], int],
) -> None: ...
