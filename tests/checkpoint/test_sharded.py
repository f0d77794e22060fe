"""Checkpoints of divided variables: pieces on disk, restored onto any layout."""

import json
import pathlib
import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.checkpoint.helpers import identical, mirrored, variable

import replicax as rx
from replicax.checkpoint import _content, _entries, _pieces, _saved, _store, _verify, read_content
from replicax.errors import CheckpointError
from replicax.variables import _store as variables_store

SHAPES = {"even": (16, 24), "uneven": (10, 7), "tall": (1, 8, 5), "vector": (13,), "scalar": ()}


def sharded(n):
    return rx.ShardedStrategy([f"CPU:{i}" for i in range(n)], shard="all", min_shard_bytes=1)


STRATEGIES = {
    "sharded8": lambda: sharded(8),
    "sharded3": lambda: sharded(3),
    "mirrored2": lambda: mirrored(2),
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
}


def values(seed):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def model(strategy, seed):
    with strategy.scope():
        return {name: rx.Variable(value, name=name) for name, value in values(seed).items()}


@pytest.fixture
def small_pieces(monkeypatch):
    """Values of more than 200 bytes are cut, and no more than two pieces are read or kept at a time."""
    monkeypatch.setattr(_pieces, "MAX_PIECE_BYTES", 200)
    monkeypatch.setattr(_content, "_BATCH_BYTES", 400)
    monkeypatch.setattr(_saved, "SMALL_BYTES", 8)
    monkeypatch.setattr(_verify, "_KEPT_BYTES", 400)
    monkeypatch.setattr(_verify, "_PENDING_BYTES", 400)


def check_all_layouts(folder):
    expected = values(1)
    paths = {
        name: rx.Checkpoint(model=model(make(), 1)).save(folder / name) for name, make in STRATEGIES.items()
    }
    for make in STRATEGIES.values():
        restored = model(make(), 2)
        checkpoint = rx.Checkpoint(model=restored)
        for path in paths.values():
            for v in restored.values():
                v.assign(jnp.zeros(v.shape))
            checkpoint.restore(path).assert_consumed()
            for name, v in restored.items():
                identical(v.numpy(), expected[name])


def test_every_layout_restores_what_every_layout_has_saved(tmp_path):
    check_all_layouts(tmp_path)


def test_values_in_many_pieces(tmp_path, small_pieces):
    check_all_layouts(tmp_path)
    document = read_content(tmp_path / "mirrored2").document
    assert document["format"] == 3
    rows = [[[i, i + 2], [0, 24]] for i in range(0, 16, 2)]
    assert document["entries"]["model/even"]["pieces"] == rows
    arrays = read_content(tmp_path / "sharded8").arrays
    for name, value in values(1).items():
        identical(arrays[f"model/{name}"], value)


def test_what_is_on_disk_does_not_depend_on_the_layout(tmp_path):
    documents = {}
    for name, make in STRATEGIES.items():
        path = pathlib.Path(rx.Checkpoint(model=model(make(), 1)).save(tmp_path / name))
        documents[name] = json.loads((path / "document" / "metadata").read_text())
    first = documents.pop("sharded8")
    assert first["format"] == 1, "earlier versions can read it"
    assert all(document == first for document in documents.values())


def test_training_goes_on_with_another_number_of_shards(tmp_path):
    """The slots of Adam are restored when they are created; the background write sees one moment."""

    def make(strategy):
        with strategy.scope():
            v = rx.Variable(np.linspace(-1, 1, 70, dtype=np.float32).reshape(10, 7), name="v")
            optimizer = rx.Optimizer(optax.adam(0.1))

        def loss():
            return jnp.sum(v.value**2) / strategy.num_replicas_in_sync

        step = rx.function(lambda: strategy.run(lambda: optimizer.minimize(loss, [v])))
        return v, step, rx.Checkpoint(v=v, optimizer=optimizer)

    v, step, checkpoint = make(sharded(8))
    step()
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        manager.save(1)
        step()  # donates the arrays that are being written
    for strategy in (sharded(3), mirrored(2)):
        other, other_step, restored = make(strategy)
        restored.restore(tmp_path)
        other_step()
        np.testing.assert_allclose(other.numpy(), v.numpy(), rtol=1e-5)


def test_saving_without_a_copy_ends_with_the_right_values(tmp_path):
    """Values are copied while they are written, when no step may donate them."""
    v = variable(sharded(8), np.zeros((100, 1000), np.float32))
    step = rx.function(lambda: v.assign_add(jnp.ones((100, 1000)), read_value=False))
    checkpoint = rx.Checkpoint(v=v)
    content = checkpoint.content(copy=False)
    assert isinstance(content.arrays["v"], _content.DeferredArray)
    manager = rx.CheckpointManager(checkpoint, tmp_path, asynchronous=False)
    for number in range(3):
        manager.save(number)
        step()
    for number in range(3):
        manager.restore(number)
        assert (v.numpy() == number).all()


def test_other_threads_wait_as_long_as_a_save_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(variables_store, "_LOCK_SECONDS", 0.01)
    v, write, errors = rx.Variable(1.0), _store.Store.save, []

    def change():
        try:
            v.assign(2.0)
        except BaseException as error:
            errors.append(error)

    def slow(self, *args):
        thread.start()
        thread.join(0.3)
        write(self, *args)

    thread = threading.Thread(target=change)
    monkeypatch.setattr(_store.Store, "save", slow)
    path = rx.Checkpoint(v=v).save(tmp_path)
    thread.join()
    assert (errors, float(v.value)) == ([], 2.0)
    rx.Checkpoint(v=v).restore(path)
    assert float(v.value) == 1.0


def test_damage_in_one_piece_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(_pieces, "MAX_PIECE_BYTES", 2**16)
    big = np.arange(2**16, dtype=np.float32).reshape(256, 256)
    path = pathlib.Path(rx.Checkpoint(v=variable(sharded(8), big)).save(tmp_path))
    (file,) = [p for p in path.rglob("*") if p.is_file() and big[200].tobytes() in p.read_bytes()]
    file.write_bytes(file.read_bytes().replace(big[200].tobytes(), big[201].tobytes()))
    v = variable(sharded(3), big + 1)
    with pytest.raises(CheckpointError, match="the array v//3 is damaged"):
        rx.Checkpoint(v=v).restore(path)
    identical(v.numpy(), big + 1)


def test_a_process_reads_only_the_pieces_that_its_devices_need(monkeypatch):
    v = variable(sharded(8), np.zeros((16, 24), np.float32))
    entry = {"kind": "variable", "shape": [16, 24], "dtype": "float32"}
    entry["pieces"] = [[[0, 16], [i, i + 6]] for i in range(0, 24, 6)]
    assert list(_entries.sizes_of("v", entry, v)) == ["v//0", "v//1", "v//2", "v//3"]
    monkeypatch.setattr(_entries, "needed_boxes", lambda v: [((0, 16), (3, 6)), ((0, 16), (6, 9))])
    assert _entries.sizes_of("v", entry, v) == {"v//0": 384, "v//1": 384}
