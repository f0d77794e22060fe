"""`tf.data` on Grain: input pipelines for ported programs, which strategies distribute.

A `Dataset` is a chain of nodes (`_node.py`). Its methods add nodes (`_steps.py`, `_streams.py`), and
iterating over it turns the chain into a Grain pipeline (`_engine.py`).
"""

from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.tf._missing import refuse
from replicax.tf.data import experimental
from replicax.tf.data._arguments import AUTOTUNE
from replicax.tf.data._dataset import Dataset
from replicax.tf.data._files import TextLineDataset, TFRecordDataset
from replicax.tf.data._iterator import DatasetIterator
from replicax.tf.data._missing import OF_DATA
from replicax.tf.data._options import Options, ThreadingOptions

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Dataset",
    "DatasetIterator",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "ThreadingOptions",
    "experimental",
]

__getattr__ = refuse("tf.data", OF_DATA)
