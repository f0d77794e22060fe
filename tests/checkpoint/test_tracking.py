"""What belongs to a checkpoint: everything with state that can be reached, each thing once."""

import collections
import copy
import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.checkpoint.helpers import mirrored

import replicax as rx
from replicax.errors import CheckpointError


def paths(**objects):
    return list(rx.Checkpoint(**objects).content().document["entries"])


class Layer:
    def __init__(self, value=1.0, name=None):
        self.w = rx.Variable(value, name=name)


class Counter:
    """Something with a state of its own."""

    def __init__(self):
        self.count = 0

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


@dataclasses.dataclass
class Block:
    inner: Layer
    outer: Layer
    width: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class SlottedBlock:
    inner: Layer


class Slotted:
    __slots__ = ("other", "w")

    def __init__(self):
        self.w = rx.Variable(1.0)


class SlottedChild(Slotted):
    __slots__ = ("b",)

    def __init__(self):
        super().__init__()
        self.b = rx.Variable(2.0)


class PrivateSlot:
    __slots__ = ("__w",)

    def __init__(self):
        self.__w = rx.Variable(1.0)


class OneStringOfSlots:
    __slots__ = "w"

    def __init__(self):
        self.w = rx.Variable(1.0)


Pair = collections.namedtuple("Pair", ["left", "right"])


# Containers and classes.


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Layer, ["m/w"]),
        (lambda: [Layer(), Layer()], ["m/0/w", "m/1/w"]),
        (lambda: (Layer(), [Layer()]), ["m/0/w", "m/1/0/w"]),
        (lambda: {"a": Layer(), "b": {"c": Layer()}}, ["m/a/w", "m/b/c/w"]),
        (lambda: {0: Layer(), (1, 2): Layer()}, ["m/0/w", "m/(1, 2)/w"]),
        (lambda: collections.OrderedDict(a=Layer()), ["m/a/w"]),
        (lambda: collections.defaultdict(list, a=Layer()), ["m/a/w"]),
        (lambda: collections.ChainMap({"a": Layer()}), ["m/a/w"]),
        (lambda: types.MappingProxyType({"a": Layer()}), ["m/a/w"]),
        (lambda: types.SimpleNamespace(a=Layer()), ["m/a/w"]),
        (lambda: Pair(Layer(), Layer()), ["m/left/w", "m/right/w"]),
        (lambda: Block(Layer(), Layer()), ["m/inner/w", "m/outer/w"]),
        (lambda: SlottedBlock(Layer()), ["m/inner/w"]),
        (Slotted, ["m/w"]),
        (SlottedChild, ["m/b", "m/w"]),
        (OneStringOfSlots, ["m/w"]),
        (PrivateSlot, ["m/_PrivateSlot__w"]),
        (lambda: rx.Variable(1.0), ["m"]),
        (lambda: [rx.Variable(1.0)] * 3, ["m/0"]),
        (lambda: [None, 3, "text", b"bytes", print, len, Layer, np, 2.5, Layer()], ["m/9/w"]),
        (Counter, ["m"]),
        (lambda: [Counter(), Layer()], ["m/0", "m/1/w"]),
        (lambda: collections.deque([Layer(), Layer()]), ["m/0/w", "m/1/w"]),
    ],
)
def test_variables_are_found_in(make, expected):
    assert sorted(paths(m=make())) == sorted(expected)


def test_attributes_of_a_subclass_of_a_container_are_found():
    class Model(dict):
        pass

    class Stack(list):
        pass

    model, stack = Model(a=rx.Variable(1.0)), Stack([rx.Variable(2.0)])
    model.scale, stack.scale = rx.Variable(3.0), rx.Variable(4.0)
    assert sorted(paths(model=model, stack=stack)) == ["model/a", "model/scale", "stack/0", "stack/scale"]


def test_a_class_attribute_that_is_a_variable_is_not_the_objects():
    class Model:
        shared = rx.Variable(1.0)

        def __init__(self):
            self.own = rx.Variable(2.0)

    assert paths(m=Model()) == ["m/own"]


def test_a_variable_in_two_places_is_saved_once():
    layer = Layer()
    assert paths(encoder=layer, decoder=[layer, layer.w]) == ["encoder/w"]


def test_cycles_end():
    parent, child = types.SimpleNamespace(), types.SimpleNamespace()
    parent.child, child.parent, child.w = child, parent, rx.Variable(1.0)
    parent.itself = parent
    assert paths(m=parent) == ["m/child/w"]


def test_deep_structures_are_gone_through():
    deep = rx.Variable(1.0)
    for _ in range(100):
        deep = [deep]
    assert paths(m=deep) == ["m" + "/0" * 100]


def test_properties_are_not_called():
    class Model:
        def __init__(self):
            self.w = rx.Variable(1.0)

        @property
        def expensive(self):
            raise AssertionError("called")

    assert paths(m=Model()) == ["m/w"]


def test_an_object_may_say_what_it_consists_of():
    class Model:
        def __init__(self):
            self.kept, self.cache = rx.Variable(1.0), rx.Variable(2.0)

        def checkpoint_items(self):
            return {"weights": [self.kept]}

    assert paths(m=Model()) == ["m/weights/0"]


def test_things_made_afresh_by_checkpoint_items_are_told_apart():
    """A temporary object may get the address of one that was gone through before."""

    class Model:
        def __init__(self, value):
            self.w = rx.Variable(value)

        def checkpoint_items(self):
            return {"parts": {"w": self.w}}

    models = [Model(float(i)) for i in range(20)]
    assert paths(m=models) == [f"m/{i}/parts/w" for i in range(20)]


@pytest.mark.parametrize("count", [2, 5])
def test_every_optimizer_is_saved_with_its_slots(count):
    optimizers = []
    for i in range(count):
        optimizer = rx.Optimizer(optax.adam(0.1), name=f"adam{i}")
        optimizer.build([rx.Variable(jnp.zeros(2), name="w")])
        optimizers.append(optimizer)
    assert len(paths(o=optimizers)) == 4 * count


def test_slots_of_variables_of_one_name_are_all_saved():
    optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build([rx.Variable(jnp.zeros(2)), rx.Variable(jnp.zeros(3))])
    entries = rx.Checkpoint(o=optimizer).content().document["entries"]
    assert len(entries) == 1 + len(optimizer.slots)
    assert sorted(str(e["shape"]) for e in entries.values()) == ["[2]"] * 2 + ["[3]"] * 2 + ["[]"] * 2


def test_weights_of_one_name_in_a_metric_are_all_saved():
    class Twice(rx.Metric):
        def __init__(self):
            super().__init__("twice")
            self.a, self.b = self.add_weight("total"), self.add_weight("total")

        def update_state(self, value):
            self.a.assign_add(value)

        def result(self):
            return self.a.read_value()

    assert len(paths(m=Twice())) == 2


def test_a_model_is_described_alike_before_and_after_its_step_was_compiled():
    class Trainer:
        def __init__(self):
            self.step = rx.function(self._step)  # comes first, and will hold the variables
            self.w = rx.Variable(1.0, name="w")

        def _step(self):
            return self.w.assign_add(1.0)

    trainer = Trainer()
    before = paths(t=trainer)
    trainer.step()
    assert paths(t=trainer) == before == ["t/w"]


def test_an_object_with_a_strategy_a_dataset_and_an_iterator_is_gone_through():
    class Trainer:
        def __init__(self):
            self.strategy = mirrored(2)
            self.data = self.strategy.distribute_dataset(rx.from_arrays(np.arange(8)).batch(4))
            self.batches = iter(self.data)
            with self.strategy.scope():
                self.w = rx.Variable(1.0)

    trainer = Trainer()
    next(trainer.batches)
    assert sorted(paths(t=trainer)) == ["t/batches", "t/w"]
    trainer.batches.close()


# Nothing is skipped in silence, nothing is taken twice.


def test_a_set_of_variables_is_refused():
    with pytest.raises(CheckpointError, match="order"):
        paths(m=types.SimpleNamespace(all={_Hashable(), _Hashable()}))


class _Hashable:
    def __init__(self):
        self.w = rx.Variable(1.0)


def test_a_set_without_state_is_ignored():
    assert paths(m=[{"a", "b"}, frozenset([1, 2]), Layer()]) == ["m/2/w"]


def test_two_keys_that_look_alike_are_refused():
    with pytest.raises(CheckpointError, match="m/1"):
        paths(m={1: rx.Variable(1.0), "1": rx.Variable(2.0)})


@pytest.mark.parametrize("key", ["a/b", "/", "a/"])
def test_a_key_with_a_slash_is_refused(key):
    with pytest.raises(CheckpointError, match="/"):
        paths(m={key: rx.Variable(1.0)})


@pytest.mark.parametrize("name", ["save", "restore", "content", "restore_content"])
def test_a_name_that_the_checkpoint_needs_itself_is_refused(name):
    with pytest.raises(CheckpointError, match=name):
        rx.Checkpoint(**{name: 1})


def test_a_private_name_that_the_checkpoint_uses_itself_is_refused():
    with pytest.raises(CheckpointError, match="_names"):
        rx.Checkpoint(_names=rx.Variable(1.0))


def test_a_name_with_a_slash_is_refused():
    with pytest.raises(CheckpointError, match="a/b"):
        rx.Checkpoint(**{"a/b": 1})


# The checkpoint itself.


def test_objects_are_attributes_and_others_are_told_by_name():
    w = rx.Variable(1.0)
    checkpoint = rx.Checkpoint(w=w, epoch=2)
    assert checkpoint.w is w
    assert checkpoint.epoch == 2
    assert repr(checkpoint) == "Checkpoint(w, epoch)"
    with pytest.raises(AttributeError, match="other"):
        _ = checkpoint.other


def test_a_root_may_be_replaced():
    checkpoint = rx.Checkpoint(epoch=0)
    checkpoint.epoch = 5
    assert checkpoint.content().document["entries"]["epoch"]["value"] == 5


def test_an_attribute_set_later_is_tracked_or_refused():
    """TensorFlow tracks it; saving without it would lose it in silence."""
    checkpoint = rx.Checkpoint(a=rx.Variable(1.0))
    try:
        checkpoint.b = rx.Variable(2.0)
    except (AttributeError, CheckpointError):
        return
    assert list(checkpoint.content().document["entries"]) == ["a", "b"]


def test_a_checkpoint_can_be_copied():
    checkpoint = copy.copy(rx.Checkpoint(epoch=2))
    assert checkpoint.epoch == 2


def test_an_empty_checkpoint_can_be_saved_and_restored(tmp_path):
    checkpoint = rx.Checkpoint()
    checkpoint.restore(checkpoint.save(tmp_path)).assert_consumed()


def test_an_attribute_called_state_is_an_attribute():
    class Trainer:
        def __init__(self):
            self.state = {"w": rx.Variable(1.0)}

        def restore(self, path):
            raise AssertionError(path)

    assert paths(trainer=Trainer()) == ["trainer/state/w"]


def test_numbers_in_structures_are_not_lost_in_silence(tmp_path, caplog):
    state = {"params": [jnp.ones(2)], "w": rx.Variable(1.0), "epoch": 3}
    checkpoint = rx.Checkpoint(state=state, history=[], epoch=3)
    checkpoint.save(tmp_path)
    (record,) = caplog.records
    assert "does not save state/params/0, state/epoch" in record.getMessage()
    checkpoint.history.append(0.5)
    checkpoint.save(tmp_path)
    assert "does not save history/0" in caplog.records[-1].getMessage()
    checkpoint.history.append(0.25)
    checkpoint.save(tmp_path)
    assert len(caplog.records) == 2  # once for each object


def test_numbers_that_are_attributes_of_objects_are_their_own_affair(tmp_path, caplog):
    class Model:
        def __init__(self):
            self.sizes, self.table, self.w = [2, 3], np.ones(3), rx.Variable(1.0)

    rx.Checkpoint(model=Model(), layers=[Model()]).save(tmp_path)
    assert not caplog.records


def test_numbers_that_an_object_says_it_consists_of_are_not_lost_in_silence(tmp_path, caplog):
    class Trainer:
        def checkpoint_items(self):
            return {"w": rx.Variable(1.0), "epoch": 3}

    inner = rx.Checkpoint(w=rx.Variable(1.0), epoch=3)
    rx.Checkpoint(trainer=Trainer(), inner=inner).save(tmp_path)
    assert "does not save trainer/epoch, inner/epoch" in caplog.text


def test_an_object_without_state_is_not_lost_in_silence(tmp_path, caplog):
    model = {"layer": Layer()}
    objects = {"model": model, "layer": model["layer"], "generator": np.random.default_rng(0)}
    checkpoint = rx.Checkpoint(**objects, scheduler=None, callbacks=[], text="text")
    for _ in range(2):
        checkpoint.save(tmp_path)
    (record,) = caplog.records
    assert "saves nothing of generator, text" in record.getMessage()
