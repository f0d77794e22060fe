"""Parses the text of a compiled program: its operations, how often they run, and their source lines.

XLA prints a program as computations, each a list of operations. An operation may call computations: a loop
its body, a fusion its parts. Source lines are in tables of stack frames at the top:

    StackFrames
    7 {file_location_id=4 parent_frame_id=3}

    %body (...) -> ... {
      %x = f32[8,4]{1,0} all-gather(%y), replica_groups={{0,1}}, metadata={op_name="..." stack_frame_id=7}
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterator
from typing import final

__all__ = ["Frame", "Operation", "ProgramText"]

_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][a-z\-]*)\((.*)$")
_CALLED = re.compile(r"(?:body|condition|calls|to_apply|\w+_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_FRAME_OF = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_ENTRY = re.compile(r"^(\d+) (.*)$")
_LOCATION = re.compile(r"file_name_id=(\d+) .*?line=(\d+)")
_PARENT = re.compile(r"file_location_id=(\d+)(?: parent_frame_id=(\d+))?")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@final
@dataclasses.dataclass(frozen=True)
class Frame:
    """A line of code."""

    file: str
    line: int


@final
@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a compiled program."""

    name: str
    """Its name, such as "all-gather.3"."""
    kind: str
    """The opcode, such as "all-gather"."""
    result: str
    """The type of the result, such as "f32[8,4]{1,0}"; a tuple is in parentheses."""
    text: str
    """The operands and attributes."""
    times: int | None
    """How often it runs; None if it is in a loop of unknown length."""


@final
class ProgramText:
    """The text of a compiled program, `compiled.as_text()`."""

    def __init__(self, text: str) -> None:
        self._tables: dict[str, dict[int, str]] = {}
        self._lines: dict[str, list[str]] = {}
        self._entry = ""
        self._known_times: dict[str, int | None] = {}
        table: dict[int, str] | None = None
        lines: list[str] = []
        for line in map(_without_comments, text.splitlines()):
            header = _HEADER.match(line)
            if line in _TABLES:
                table = self._tables.setdefault(line, {})
            elif table is not None and (entry := _ENTRY.match(line)):
                table[int(entry[1])] = entry[2]
            elif header is not None:
                lines = self._lines[header[2]] = []
                self._entry = header[2] if header[1] else self._entry
            else:
                lines.append(line)

    def operations(self, kinds: Collection[str] | None = None) -> Iterator[Operation]:
        """All operations, or those of some kinds; "all-gather-start" counts as "all-gather"."""
        for name, lines in self._lines.items():
            for line in lines:
                found = _OPERATION.match(line)
                if found is not None and (kinds is None or found[3].removesuffix("-start") in kinds):
                    times = self._times(name)
                    if times != 0:
                        yield Operation(found[1], found[3], found[2], found[4], times)

    # How often computations run.

    @functools.cached_property
    def _callers(self) -> dict[str, list[tuple[str, int | None]]]:
        """Computation -> its callers, each with the number of times that one run of it calls this one."""
        callers: dict[str, list[tuple[str, int | None]]] = {}
        for name, lines in self._lines.items():
            for line in lines:
                times = _trips(line)
                for called in _called(line):
                    callers.setdefault(called, []).append((name, times))
        return callers

    def _times(self, computation: str) -> int | None:
        """How often a computation runs; None if unknown."""
        if computation not in self._known_times:
            self._known_times[computation] = self._count(computation)
        return self._known_times[computation]

    def _count(self, computation: str) -> int | None:
        if computation == self._entry:
            return 1
        total = 0
        for caller, calls in self._callers.get(computation, ()):
            outer = self._times(caller)
            if outer is None or calls is None:
                return None
            total += outer * calls
        return total

    # Lines of code.

    def frames(self, operation: Operation) -> Iterator[Frame]:
        """The stack of source lines of an operation, innermost first."""
        if (source := _SOURCE.search(operation.text)) is not None:
            yield Frame(source[1], int(source[2]))
        found = _FRAME_OF.search(operation.text)
        number = int(found[1]) if found is not None else 0
        while number in self._frames:
            frame, number = self._frames[number]
            yield frame

    @functools.cached_property
    def _frames(self) -> dict[int, tuple[Frame, int]]:
        """Frame id -> the frame and the id of its parent, or 0."""
        files = {number: text.strip('"') for number, text in self._tables.get("FileNames", {}).items()}
        locations: dict[int, Frame] = {}
        for number, text in self._tables.get("FileLocations", {}).items():
            if (found := _LOCATION.search(text)) is not None:
                locations[number] = Frame(files[int(found[1])], int(found[2]))
        frames: dict[int, tuple[Frame, int]] = {}
        for number, text in self._tables.get("StackFrames", {}).items():
            if (found := _PARENT.search(text)) is not None:
                frames[number] = (locations[int(found[1])], int(found[2] or 0))
        # The first frame has no parent. Some versions of XLA print all parent ids plus one.
        offset = frames[1][1] if 1 in frames else 0
        return {number: (frame, caller - offset) for number, (frame, caller) in frames.items()}


def _without_comments(line: str) -> str:
    return _COMMENT.sub("", line) if "/*" in line else line


def _trips(line: str) -> int | None:
    """How often an operation runs the computations that it calls."""
    if " while(" not in line:
        return 1
    found = _TRIPS.search(line)
    return None if found is None else int(found[1])


def _called(line: str) -> Iterator[str]:
    yield from _CALLED.findall(line)
    for names in _BRANCHES.findall(line):
        yield from (name.strip().removeprefix("%") for name in names.split(","))
