"""Every recorded case of tf.distribute: one test for the cases of a section with one kind of strategy.

A failing test lists each of its cases that failed, with what was expected.
"""

import contextvars
import re
from collections import defaultdict

import pytest

import replicax as rx

from .describe import Observation, compare, exception_class, observe
from .differences import DIFFERENCES
from .program_differences import PROGRAM_DIFFERENCES
from .recorded import Recorded, every_case, table, unused
from .world import World

SECTIONS: dict[str, list[Recorded]] = defaultdict(list)
for _case in every_case():
    if _case.run is not None:
        SECTIONS[f"{_case.probe}-{_case.kind}-{_case.section}"].append(_case)


@pytest.mark.parametrize("section", SECTIONS)
def test_section(section: str):
    failures = [text for case in SECTIONS[section] if (text := _problem(case))]
    assert not failures, "\n\n".join(failures)


def _problem(case: Recorded) -> str:
    """What is wrong with our result of a case; empty if it is right."""
    world = World(case.kind)
    # In a context of its own: a case may leave its scopes in disorder on purpose.
    observed = contextvars.copy_context().run(observe, lambda: case.run(world))
    problems = compare(case.expected, observed)
    if rx.has_strategy():
        problems = [*problems, "a strategy's scope is still open"]
    if not problems:
        return ""
    lines = [case.id, *problems, f"ours:     {observed.text}", f"expected: {case.expected}"]
    if case.difference is not None:
        lines += [f"recorded: {case.result}", f"because:  {case.difference.because}"]
    return "\n".join(lines)


def test_every_recorded_case_is_accounted_for():
    cases = every_case()
    print(table(cases))
    assert [case.id for case in cases if case.fate == "unaccounted"] == []
    assert unused() == []


def test_every_difference_differs():
    same = [
        case.id
        for case in every_case()
        if case.difference is not None and not compare(case.result, _as_if(case.expected))
    ]
    assert same == []


def test_every_difference_that_is_an_error_says_its_message():
    listed = {**DIFFERENCES, **PROGRAM_DIFFERENCES}
    assert [key for key, ours in listed.items() if re.fullmatch(r"!\w+", ours.gives)] == []


def _as_if(text: str) -> Observation:
    """The observation of a case that gave just `text`."""
    kind, _, message = text[1:].partition(": ")
    raised = exception_class(kind)(message) if text.startswith("!") else None
    return Observation(text, raised)
