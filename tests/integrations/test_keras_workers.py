"""`fit`, `evaluate` and `predict` in two processes give the numbers of one device."""

import json
from pathlib import Path

import pytest

pytest.importorskip("keras")

from tests.multiprocess.launch import launch

from .keras_models import assert_same, one_device, one_device_history, one_device_report


def test_two_workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    printed = launch(Path(__file__).with_name("keras_workers.py"), num_processes=2)
    evaluated, predicted = one_device_report("mlp", "sgd")
    for text in printed:
        line = next(line for line in text.splitlines() if line.startswith("found "))
        scalars, predictions, weights = json.loads(line.removeprefix("found "))
        assert_same(scalars, [one_device_history("mlp", "sgd")["loss"], evaluated])
        assert_same(predictions, predicted)
        assert_same(weights, one_device("mlp", "sgd"))
