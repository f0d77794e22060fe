"""What notebooks show: small tables, with everything escaped, and without touching large arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax._html import MOST_ROWS, shown


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def test_a_per_replica_value_has_a_row_for_each_replica(strategy):
    ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group * 10)
    text = ids._repr_html_()
    assert text.count("<tr>") == 3
    assert all(part in text for part in ("CPU:0", "CPU:1", "10 int32"))


def test_a_strategy_has_a_box_for_each_replica(strategy):
    assert strategy._repr_html_().count("<span") == 2
    assert "MirroredStrategy: 2 replicas" in strategy._repr_html_()
    assert "1 replica<" in rx.OneDeviceStrategy("CPU:0")._repr_html_()


def test_variables_show_their_value_if_it_is_small(strategy):
    with strategy.scope():
        small, large = rx.Variable([1.5, 2.5], name="<w>"), rx.Variable(jnp.zeros((1000, 100)))
        parts = rx.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    strategy.run(lambda: parts.assign_add(rx.get_replica_context().replica_id_in_sync_group + 3.0))
    assert "[1.5, 2.5] float32" in small._repr_html_()
    assert "&lt;w&gt;" in small._repr_html_() and "<w>" not in small._repr_html_()
    assert "float32[1000,100], 390.6 KiB" in large._repr_html_()
    assert "3. float32" in parts._repr_html_() and "4. float32" in parts._repr_html_()
    assert "CPU:0" in rx.Variable(1.0)._repr_html_()


def test_a_sharded_variable_is_divided():
    with rx.ShardedStrategy(["CPU:0", "CPU:1"], min_shard_bytes=1).scope():
        w = rx.Variable(jnp.arange(4.0))
    assert "sharded over them" in w._repr_html_()
    assert "[0., 1., 2., 3.]" in w._repr_html_()


def test_large_arrays_are_not_copied_to_the_host(strategy, monkeypatch):
    with strategy.scope():
        w = rx.Variable(jnp.zeros((64, 64)))
    (batch,) = strategy.distribute_dataset(rx.from_arrays(np.zeros((64, 32), np.float32)).batch(64))

    def refuse(*args, **kwargs):
        raise AssertionError("copied to the host")

    monkeypatch.setattr(type(w.value), "__repr__", refuse)
    monkeypatch.setattr(np, "asarray", refuse)
    monkeypatch.setattr(np, "array2string", refuse)
    assert "float32[32,32], 4.0 KiB" in batch._repr_html_()
    assert "float32[64,64], 16.0 KiB" in w._repr_html_()
    assert (
        w._repr_mimebundle_()["text/plain"] == "<MirroredVariable 'Variable:0': float32[64,64], 16.0 KiB>"
    )
    assert batch._repr_mimebundle_()["text/plain"] == "<PerReplica: float32[64,32], 8.0 KiB>"


def test_a_trace_is_described_and_not_changed(strategy):
    with strategy.scope():
        w, unused = rx.Variable(1.0), rx.Variable(2.0, name="unused")
    tables = []

    def replica_fn(x):
        tables.append(unused._repr_html_())
        return x * w

    def step(x):
        tables.append(x._repr_html_())
        y = strategy.run(replica_fn, args=(x,))
        tables.append(y._repr_html_())
        return y

    x = strategy.distribute_values_from_function(lambda context: jnp.ones(3))
    rx.function(step)(x)
    assert len(tables) >= 3
    assert all("unused" in table or "traced" in table for table in tables)
    assert not any("value" in table for table in tables if "unused" in table)
    assert "[1., 1., 1.]" in x._repr_html_()


def test_a_value_of_many_replicas_is_cut_short():
    many = rx.PerReplica(tuple(range(40)))
    assert many._repr_html_().count("<tr>") == MOST_ROWS + 2
    assert "and 24 more" in many._repr_html_()


def test_values_are_escaped_and_short():
    assert shown("<script>alert(1)</script>") == "&#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;"
    assert len(shown("x" * 10_000)) < 200
    assert shown(jax.random.key(0)).startswith("key&lt;fry&gt;[]")
    assert "<b>" not in rx.PerReplica(("<b>", object()))._repr_html_().replace("<b>PerReplica</b>", "")
