"""Keras 3 under strategies: `import replicax.integrations.keras`, once, before models are made.

A model that is made in `strategy.scope()` is distributed from then on. `fit`, `evaluate` and `predict` run
on all devices of the strategy and give the numbers of one device; in a loop of your own, its layers,
losses, metrics and optimizers work inside `strategy.run`.

    _load        Keras, on JAX, or an error that says what to do
    _variable    a Keras variable whose value an `rx.Variable` holds
    _layout      how batches lie on the devices
    _models      which strategy a model has, and what `fit` and its like do about it
    _datasets    Replicax's datasets as the input of `fit` and its like
    _layers, _losses, _optimizers
                 Keras' layers, losses and optimizers in replica functions
    _notes       what Keras notes while a layer is called, for each replica
    _hooks       where Keras' classes are told of all this
    _private     what is needed of Keras' private modules
"""

from replicax.integrations.keras._load import require_keras

require_keras()

from replicax.integrations.keras._hooks import install  # noqa: E402
from replicax.integrations.keras._models import strategy_of  # noqa: E402
from replicax.integrations.keras._variable import DistributedVariable  # noqa: E402

install()

__all__ = ["DistributedVariable", "require_keras", "strategy_of"]
