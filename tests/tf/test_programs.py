"""Programs that run with TensorFlow too, against its recorded results; see `programs`."""

import ast
import inspect
import operator
import textwrap

import jax
import numpy as np
import pytest

from replicax import tf

from .programs import SUBJECTS
from .programs.changed_lines import names_in
from .programs.notebooks import PROGRAMS as NOTEBOOKS
from .programs.running import plain, programs_of, recorded

# The regular suite runs some programs of the larger subjects, `--everything` all.
SOME = {
    "names": {"newaxis", "tensor_scatter", "custom_gradient", "tensor_array", "windows", "moving_average"},
    "checkpoints": {"statuses", "save_counter", "write_and_read", "managers", "states"},
    "keras_models": {"no_scope_in_a_function", "restored_before_it_is_built", "a_loop_without_a_function"},
    "notebooks": {f"{name}_3" for name in NOTEBOOKS},
}


def marked(subject, name):
    always = subject not in SOME or name in SOME[subject]
    return pytest.param(subject, name, marks=() if always else pytest.mark.long)


PROGRAMS = [
    marked(subject, name)
    for subject in SUBJECTS
    for name in programs_of(subject)
    if name in recorded(subject)
]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_program_is_recorded(subject):
    assert [*recorded(subject)] == [*programs_of(subject)]
    assert SOME.get(subject, set()) <= {*programs_of(subject)}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_port_changes_the_import_alone(name):
    tree = ast.parse(textwrap.dedent(inspect.getsource(NOTEBOOKS[name])))
    for used in names_in(tree):
        operator.attrgetter(used.removeprefix("tf."))(tf)


@pytest.mark.parametrize(("subject", "name"), PROGRAMS)
def test_as_in_tensorflow(subject, name):
    ours, theirs = plain(programs_of(subject)[name](tf)), recorded(subject)[name]
    ours, structure = jax.tree.flatten(ours, is_leaf=lambda x: x is None)
    theirs, expected = jax.tree.flatten(theirs, is_leaf=lambda x: x is None)
    assert structure == expected
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(other, float):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
        else:
            assert mine == other
