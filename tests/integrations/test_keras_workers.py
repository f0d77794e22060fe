"""`fit`, `evaluate` and `predict` in several processes give the numbers of one device."""

import os

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
from tests.integrations.keras_workers import train

from replicax import testing

from .keras_models import assert_same, one_device, one_device_history, one_device_report

KINDS = [("mlp", "sgd"), ("mlp", "adam"), ("large", "sgd")]
QUICK = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}


@pytest.mark.parametrize(
    ("workers", "devices"),
    [(2, 1), pytest.param(2, 2, marks=pytest.mark.long), pytest.param(3, 1, marks=pytest.mark.long)],
)
def test_workers(workers, devices, subtests, tmp_path):
    told = testing.run(
        train,
        (KINDS, str(tmp_path)),
        num_workers=workers,
        devices_per_worker=devices,
        environment=QUICK,
    )
    results = [found for found, *_ in told]
    for (kind, optimizer), *found in zip(KINDS, *results, strict=True):
        with subtests.test(f"{kind} {optimizer}"):
            evaluated, predicted = one_device_report(kind, optimizer)
            for history, ours, predictions, weights in found:
                assert_same([history, ours], [one_device_history(kind, optimizer)["loss"], evaluated])
                assert_same(predictions, predicted)
                assert_same(weights, one_device(kind, optimizer))
    with subtests.test("callbacks that write files"):
        histories = [found[0][0] for found in results]
        # The first worker writes and deletes the files, whenever the others get to look at them.
        assert told[0][1] == [["backup", "best.keras"]] * 2
        for history, (_, _, after, best) in zip(histories, told, strict=True):
            assert after == ["best.keras"]
            assert best == min(history)
        best = keras.saving.load_model(tmp_path / "best.keras")
        assert_same([np.asarray(v.value) for v in best.weights], results[0][0][3][: len(best.weights)])
