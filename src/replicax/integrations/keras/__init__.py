"""Keras 3 under strategies. Installs itself when a program imports both Replicax and Keras.

A model created in `strategy.scope()` is distributed: `fit`, `evaluate` and `predict` run on all devices of
the strategy and compute the same numbers as on one device. In a custom training loop, layers, losses,
metrics and optimizers work inside `strategy.run`.

    _load        imports Keras and checks that it runs on JAX
    _variable    a Keras variable backed by an `rx.Variable`
    _unscoped    variables created outside of scopes, in steps and checkpoints
    _reading     how plain variables are read and written
    _layout      how batches are placed on the devices
    _models      a model's strategy, and how `fit`, `evaluate` and `predict` use it
    _run         the state of one such call, safe against interrupts
    _datasets    Replicax's datasets as input to `fit`, `evaluate` and `predict`
    _scheduling  `fit` and `evaluate` on parameter servers
    _server_optimizers
                 Keras optimizers on parameter servers
    _pickling    pickling Keras objects in functions that are scheduled there
    _callbacks   callbacks that write files, which only the first worker does
    _tensorboard the TensorBoard callback without TensorFlow
    _adapters    `rx.Variable`s in Keras optimizers
    _layers, _losses, _optimizers
                 Keras layers, losses and optimizers in replica functions
    _call_state  Keras' per-thread state, separate for each replica
    _checkpoint_paths
                 the paths of Keras variables in checkpoints
    _hooks       patches Keras' classes with all of this
    _private     the private Keras modules that we use, and why
"""

from replicax.integrations.keras._load import require_keras

require_keras()

from replicax.integrations.keras._hooks import install  # noqa: E402
from replicax.integrations.keras._models import strategy_of  # noqa: E402
from replicax.integrations.keras._variable import DistributedVariable  # noqa: E402

install()

__all__ = ["DistributedVariable", "require_keras", "strategy_of"]
