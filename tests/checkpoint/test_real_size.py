"""A model of real size: hundreds of variables of a megabyte each, saved while it trains."""

import jax.numpy as jnp
import numpy as np
from tests.checkpoint.helpers import mirrored

import replicax as rx

NUM_VARIABLES, SHAPE = 200, (512, 512)
NUM_BYTES = NUM_VARIABLES * 512 * 512 * 4


def model(strategy, value):
    with strategy.scope():
        return [rx.Variable(np.full(SHAPE, value + i, np.float32)) for i in range(NUM_VARIABLES)]


def test_hundreds_of_megabytes_through_a_manager(tmp_path):
    variables = model(mirrored(2), 0.0)
    step = rx.function(lambda: [v.assign_add(jnp.ones(SHAPE)) for v in variables] and None)
    step()
    with rx.CheckpointManager(rx.Checkpoint(model=variables), tmp_path, max_to_keep=1) as manager:
        for number in (1, 2):
            manager.save(number)
            step()
    assert manager.checkpoints == [2]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert NUM_BYTES < sum(path.stat().st_size for path in files) < 1.05 * NUM_BYTES
    other = model(mirrored(1), -1.0)
    checkpoint = rx.Checkpoint(model=other)
    checkpoint.restore(tmp_path).assert_consumed()
    for i, v in enumerate(other):
        assert (np.asarray(v.read_value()) == i + 2.0).all(), i
    assert not checkpoint._restored._saved.kept, "restored arrays are still in memory"
