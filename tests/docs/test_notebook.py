"""The notebook runs, and shows what it has stored."""

import json
import re

import numpy as np

from .notebook import NOTEBOOK, written

_NUMBER = re.compile(r"-?\d+\.\d*(?:e-?\d+)?")


def test_the_notebook_shows_what_it_computes():
    stored = NOTEBOOK.read_text()
    computed = written(json.loads(stored))
    advice = "run `python -m tests.docs.notebook`, which stores what the notebook shows"
    assert _NUMBER.sub("", computed) == _NUMBER.sub("", stored), advice
    numbers = [np.array(_NUMBER.findall(text), float) for text in (computed, stored)]
    np.testing.assert_allclose(*numbers, rtol=1e-3, atol=1e-3, err_msg=advice)
