"""Every recorded case of tf.distribute, one test each."""

import contextvars

import pytest

import replicax as rx

from .describe import Observation, compare, exception_class, observe
from .recorded import Recorded, every_case, table, unused
from .world import World

CASES = [case for case in every_case() if case.run is not None]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(case: Recorded):
    world = World(case.kind)
    # In a context of its own: a case may leave its scopes in disorder on purpose.
    observed = contextvars.copy_context().run(observe, lambda: case.run(world))
    problems = compare(case.expected, observed)
    if problems:
        lines = [*problems, f"ours:     {observed.text}", f"expected: {case.expected}"]
        if case.difference is not None:
            lines += [f"recorded: {case.result}", f"because:  {case.difference.because}"]
        pytest.fail("\n".join(lines), pytrace=False)
    assert not rx.has_strategy()


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


def _as_if(text: str) -> Observation:
    """The observation of a case that gave just `text`."""
    raised = exception_class(text[1:])("") if text.startswith("!") else None
    return Observation(text, raised)
