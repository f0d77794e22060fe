"""Keras' TensorBoard callback where TensorFlow is not installed."""

import importlib.util
import sys

import pytest

keras = pytest.importorskip("keras")
tensorboardX = pytest.importorskip("tensorboardX")

from tests.tracking.events import points  # noqa: E402

from replicax.integrations.keras import strategy_of  # noqa: E402

from .keras_models import X, Y, fit, make_model, strategy_of_kind  # noqa: E402

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow writes the files itself"
)


def _written(folder):
    (file,) = folder.glob("events.*")
    return points(file)


def test_what_it_writes(tmp_path):
    with strategy_of_kind(2).scope():
        model = make_model("mlp", "sgd")
    callback = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, write_images=True, update_freq=1)
    history = fit(model, callbacks=[callback], validation_data=(X, Y))
    assert strategy_of(model).num_replicas_in_sync == 2
    train, validation = _written(tmp_path / "train"), _written(tmp_path / "validation")
    assert [step for tag, step, _ in train if tag == "epoch_loss"] == [0, 1]
    assert [step for tag, step, _ in train if tag == "epoch_mae"] == [0, 1]
    assert any(tag.startswith("batch_") for tag, *_ in train)
    assert sum(tag.endswith("histogram") for tag, *_ in train) == 2 * len(model.weights)
    assert [step for tag, step, _ in validation if tag == "epoch_loss"] == [0, 1]
    losses = [value for tag, _, value in train if tag == "epoch_loss"]
    assert losses == pytest.approx(history["loss"])


def test_an_inner_condition_replaces_the_outer(tmp_path):
    summary = keras.callbacks.TensorBoard(tmp_path).summary
    writer = summary.create_file_writer(str(tmp_path / "a"))
    with writer.as_default(7), summary.record_if(False):
        summary.scalar("no", 1.0)
        with summary.record_if(lambda: True):
            summary.scalar("yes", 2.0)
    writer.close()
    assert _written(tmp_path / "a") == [("yes", 7, 2.0)]


def test_a_missing_library_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(
        ImportError, match=r"TensorFlow or tensorboardX: pip install 'replicax\[tensorboard\]'"
    ):
        fit(make_model(), callbacks=[keras.callbacks.TensorBoard(tmp_path)])
