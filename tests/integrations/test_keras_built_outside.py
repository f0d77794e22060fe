"""Models that are created in a scope, and built outside of it."""

import numpy as np
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402
from replicax.integrations.keras import DistributedVariable, strategy_of  # noqa: E402

from .keras_models import X, Y, assert_same, fit, strategy_of_kind  # noqa: E402


class _Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


def _sequential():
    return keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])


BUILDING = {
    "call": lambda model: model(X),
    "build": lambda model: model.build((None, 4)),
    "fit": lambda model: model.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0),
}


@pytest.mark.parametrize(
    ("make", "way"),
    [(_Subclassed, "call"), (_Subclassed, "fit"), (_sequential, "call"), (_sequential, "build")],
)
def test_its_variables_are_the_strategys(make, way):
    strategy = strategy_of_kind(2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    BUILDING[way](model)
    assert strategy_of(model) is strategy
    assert len(model.weights) == 4
    for variable in model.weights:
        assert isinstance(variable, DistributedVariable)
        assert isinstance(variable.replicax_variable, rx.MirroredVariable)
        assert variable.replicax_variable.distribute_strategy is strategy


def test_it_trains_like_one_that_was_built_in_the_scope():
    def trained(in_scope):
        keras.utils.set_random_seed(0)
        strategy = strategy_of_kind(2)
        with strategy.scope():
            model = _sequential()
            model.compile(keras.optimizers.Adam(0.05), "mse")
            if in_scope:
                model.build((None, 4))
        if not in_scope:
            model(X[:2])
        return [fit(model)["loss"], *map(np.asarray, model.get_weights())]

    assert_same(trained(False), trained(True))
