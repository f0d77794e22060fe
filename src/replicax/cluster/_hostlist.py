"""Slurm's compact notation: `node[01-03,7]` for hosts, `2(x3),1` for numbers of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from replicax.errors import ClusterError

__all__ = ["expand_counts", "expand_hostlist"]

_HOST = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hostlist(hostlist: str) -> list[str]:
    """The names of all hosts, in order.

    Raises:
        ClusterError: `hostlist` is not in Slurm's notation.

    >>> from replicax.cluster._hostlist import expand_hostlist
    >>> expand_hostlist("login,node[08-10,2]-ib[0-1]")[:4]
    ['login', 'node08-ib0', 'node08-ib1', 'node09-ib0']
    """
    pieces = _HOST.findall(hostlist)
    if ",".join(pieces) != hostlist or not pieces:
        raise ClusterError(
            f"{hostlist!r} is not a list of hosts in Slurm's notation, such as 'node[1-3,7],other'."
        )
    return [host for piece in pieces for host in _expand_host(piece, hostlist)]


def _expand_host(piece: str, hostlist: str) -> Iterator[str]:
    brackets = _BRACKETS.search(piece)
    if brackets is None:
        yield piece
        return
    for number in _expand_numbers(brackets[1], hostlist):
        for rest in _expand_host(piece[brackets.end() :], hostlist) if piece[brackets.end() :] else ("",):
            yield piece[: brackets.start()] + number + rest


def _expand_numbers(text: str, hostlist: str) -> Iterator[str]:
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ClusterError(
                f"{hostlist!r} has {part!r} in brackets. Slurm's notation has numbers or ranges there, "
                "such as '1-3'."
            )
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def expand_counts(counts: str) -> list[int]:
    """The number of tasks of each host.

    Raises:
        ClusterError: `counts` is not in Slurm's notation.

    >>> from replicax.cluster._hostlist import expand_counts
    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    expanded = []
    for part in counts.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise ClusterError(
                f"{counts!r} is not a list of numbers of tasks in Slurm's notation, such as '2(x3),1'."
            )
        expanded += [int(match[1])] * int(match[2] or 1)
    return expanded
