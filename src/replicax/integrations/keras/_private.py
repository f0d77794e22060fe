"""What Replicax needs of Keras' private modules, and why there is no public way.

* `global_state`: Keras notes in state of the *thread* which layer is being called, and whether it trains.
  Eager replicas take turns in one thread, also in the middle of a layer (`all_reduce`, a variable that is
  written), so each must have notes of its own.
* `in_stateless_scope`: inside of a `keras.StatelessScope` a variable must not be written; the class is
  public, but whether one is open is not.
* `trainer`: the module of the trainer on JAX. Its `_distribute_data` puts a batch on the devices. A
  `keras.distribution.Distribution` is asked for layouts once an epoch, for the first batch; so the last
  batch, which is often smaller, could not have another one.
* `loss`: the module of losses. Two of its functions say what becomes of an average in a replica; they know
  TensorFlow's strategies only.
* `data_adapters`, `DataAdapter`, `class_weight_to_sample_weights`: an adapter reads the input of `fit` and
  its like, validation data too, and one function of the module chooses it. It takes no new kinds of input.
"""

from __future__ import annotations

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.jax import trainer
from keras.src.losses import loss
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

__all__ = [
    "DataAdapter",
    "class_weight_to_sample_weights",
    "data_adapters",
    "global_state",
    "in_stateless_scope",
    "loss",
    "trainer",
]
