"""Checkpoints as earlier versions wrote them: one Orbax checkpoint with two items."""

import json
import zlib

import numpy as np
import orbax.checkpoint as ocp
from tests.checkpoint.helpers import identical, mirrored

import replicax as rx

VALUE = np.arange(70, dtype=np.float32).reshape(10, 7)


def write(path):
    entry = {"kind": "variable", "name": "v:0", "shape": [10, 7], "dtype": "float32"}
    document = {"format": 1, "entries": {"model/v": entry, "epoch": {"kind": "number", "value": 3}}}
    text = json.dumps({"document": document, "checksums": {"model/v": zlib.crc32(VALUE.tobytes())}})
    sealed = {"format": 1, "text": text, "checksum": zlib.crc32(text.encode()), "managed": None}
    arrays = ocp.PyTreeCheckpointHandler(use_compression=False)
    handler = ocp.CompositeCheckpointHandler(arrays=arrays, document=ocp.JsonCheckpointHandler("metadata"))
    items = {"arrays": ocp.args.PyTreeSave({"model/v": VALUE}), "document": ocp.args.JsonSave(sealed)}
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, args=ocp.args.Composite(**items))


def test_a_checkpoint_of_an_earlier_version(tmp_path):
    write(tmp_path / "0")
    sharded = rx.ShardedStrategy([f"CPU:{i}" for i in range(3)], min_shard_bytes=1)
    for strategy in (mirrored(2), sharded):
        with strategy.scope():
            v = rx.Variable(np.zeros_like(VALUE))
        checkpoint = rx.Checkpoint(model={"v": v}, epoch=0)
        checkpoint.restore(tmp_path).assert_consumed()
        identical(v.numpy(), VALUE)
        assert checkpoint.epoch == 3
