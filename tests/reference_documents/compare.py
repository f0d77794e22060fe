"""Whether two printed values mean the same: TensorFlow's as documented, and ours.

`<tf.Tensor: shape=(), dtype=float32, numpy=6.0>`, `tf.Tensor(6.0, shape=(), dtype=float32)` and
`Array(6., dtype=float32)` all say: the float32 6 of shape (). Both sides are written in one form and then
compared as text, without regard to white space. Of a dataset only the shape and type of its elements count.
"""

import ast
import re

import numpy as np

_NUMBERS = r"(?P<numbers>[-\d.,\[\]\se+]+?)"
_SHAPE = r"shape=(?P<shape>\([\d, ]*\))"
_DTYPE = r"dtype=(?P<dtype>\w+)"
_TENSORS = (
    re.compile(rf"<tf\.Tensor: {_SHAPE}, {_DTYPE}, numpy={_NUMBERS}>"),
    re.compile(rf"tf\.Tensor\({_NUMBERS}, {_SHAPE}, {_DTYPE}\)"),
    re.compile(rf"Array\({_NUMBERS}, {_DTYPE}(, weak_type=True)?\)"),
)
_VARIABLE = re.compile(rf"<(tf|rx)\.Variable '(?P<name>[^']*)' {_SHAPE} {_DTYPE}, numpy={_NUMBERS}>")
_DATASETS = (
    re.compile(r"<\w+Dataset shapes: \((?P<shape>[\d, ]*)\), types: tf\.(?P<dtype>\w+)>"),
    re.compile(
        r"<\w+Dataset element_spec=TensorSpec\(shape=\((?P<shape>[\d, ]*)\), dtype=(?P<dtype>\w+)\)>"
    ),
    re.compile(r"<ArrayDataset of (?P<dtype>\w+)\[\d+(, (?P<shape>[\d, ]*))?\], not batched>"),
)
_NUMPY_SCALAR = re.compile(r"np\.\w+\(([-\d.e+]+)\)")


def normal(text):
    """`text` in the form in which it is compared."""
    text = _VARIABLE.sub(_variable, text)
    for pattern in _TENSORS:
        text = pattern.sub(_tensor, text)
    for pattern in _DATASETS:
        text = pattern.sub(r"dataset[(\g<shape>) \g<dtype>]", text)
    return re.sub(r"\s", "", _NUMPY_SCALAR.sub(r"\1", text))


def _tensor(match):
    groups = match.groupdict()
    value = np.array(ast.literal_eval(groups["numbers"]), groups["dtype"])
    shape = value.shape if "shape" not in groups else ast.literal_eval(groups["shape"])
    return f"tensor[{shape} {value.dtype} {value.tolist()}]"


def _variable(match):
    return f"variable[{match['name']} {_tensor(match)}]"
