"""What counts as the same output, and what does not."""

import pytest
from tests.reference_documents.compare import normal

VARIABLE = "<{}.Variable 'Variable:0' shape=() dtype=float32, numpy={}>"


@pytest.mark.parametrize(
    ("documented", "ours"),
    [
        ("<tf.Tensor: shape=(), dtype=float32, numpy=6.0>", "Array(6., dtype=float32)"),
        ("tf.Tensor(6.0, shape=(), dtype=float32)", "Array(6., dtype=float32, weak_type=True)"),
        ("<tf.Tensor: shape=(2,), dtype=int32, numpy=[1, 2]>", "Array([1, 2], dtype=int32)"),
        (
            f"V:{{\n    0: {VARIABLE.format('tf', 1.0)}\n  }}",
            f"V:{{\n  0: {VARIABLE.format('rx', 1.0)}\n}}",
        ),
        (
            "<TensorSliceDataset shapes: (), types: tf.float32>",
            "<ArrayDataset of float32[10], not batched>",
        ),
        ("(3.0,)", "(np.float64(3.0),)"),
    ],
)
def test_the_same(documented, ours):
    assert normal(documented) == normal(ours)


@pytest.mark.parametrize(
    ("documented", "ours"),
    [
        ("<tf.Tensor: shape=(), dtype=float32, numpy=6.0>", "Array(5., dtype=float32)"),
        ("<tf.Tensor: shape=(), dtype=int32, numpy=6>", "Array(6., dtype=float32)"),
        ("<tf.Tensor: shape=(), dtype=float32, numpy=6.0>", "Array([6.], dtype=float32)"),
        ("<tf.Tensor: shape=(), dtype=int32, numpy=2>", "2"),
        (VARIABLE.format("tf", 1.0), VARIABLE.format("rx", 2.0)),
        (VARIABLE.format("tf", 1.0), VARIABLE.format("rx", 1.0).replace("Variable:0", "w:0")),
        (
            "<TensorSliceDataset shapes: (), types: tf.float32>",
            "<ArrayDataset of float32[10, 2], not batched>",
        ),
        ("<TensorSliceDataset shapes: (), types: tf.float32>", "<ArrayDataset of int32[10], not batched>"),
        ("True", "False"),
        ("True", ""),
    ],
)
def test_not_the_same(documented, ours):
    assert normal(documented) != normal(ours)
