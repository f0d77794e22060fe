"""The private Keras modules that Replicax uses, and why.

* `global_state`: Keras stores *per thread* which layer is being called and whether it trains. Eager
  replicas take turns in one thread, even in the middle of a layer (`all_reduce`, writing a variable), so
  each needs its own state.
* `in_stateless_scope`: variables must not be written inside a `keras.StatelessScope`. The class is public,
  but the test whether one is open is not.
* `trainer`: the module of the JAX trainer. Its `_distribute_data` places a batch on the devices. Keras asks
  a `keras.distribution.Distribution` for layouts only for the first batch of an epoch, so that could not
  place a smaller last batch differently.
* `loss`: the module of losses. Two of its functions scale an average in a replica, but only for
  TensorFlow's strategies.
* `Node`, `tracking`: the graph of a functional model and Keras' tracked lists, which turn up when a model
  is pickled by its attributes.
* `data_adapters`, `DataAdapter`, `class_weight_to_sample_weights`: an adapter reads the input of `fit`,
  `evaluate` and `predict`. One function of the module chooses the adapter, and it has no extension point.
"""

from __future__ import annotations

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.jax import trainer
from keras.src.losses import loss
from keras.src.ops.node import Node
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
from keras.src.utils import tracking

__all__ = [
    "DataAdapter",
    "Node",
    "class_weight_to_sample_weights",
    "data_adapters",
    "global_state",
    "in_stateless_scope",
    "loss",
    "tracking",
    "trainer",
]
