"""`tf.train.Example`, as TensorFlow writes and reads it, and what is wrong with an example."""

import numpy as np
import pytest

from replicax import tf
from replicax.errors import InputError

train = tf.train


def example(**features):
    return train.Example(features=train.Features(feature=features))


def integers(*numbers):
    return train.Feature(int64_list=train.Int64List(value=numbers))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
def test_integers(number):
    read = train.Example.FromString(example(x=integers(number)).SerializeToString())
    assert read.features.feature["x"].int64_list.value == [number]
    assert read.features.feature["x"].WhichOneof("kind") == "int64_list"


def test_gzip(tmp_path):
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(tmp_path / "x", options) as writer:
        writer.write(b"one")
        writer.flush()
    assert list(tf.data.TFRecordDataset(tmp_path / "x", compression_type="GZIP")) == [b"one"]
    with pytest.raises(NotImplementedError, match='pass "GZIP" or None'):
        tf.io.TFRecordWriter(tmp_path / "y", "ZLIB")


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (tf.io.FixedLenFeature([], tf.float32), "is a int64_list, which is not float32"),
        (tf.io.FixedLenFeature([3], tf.int64), r"has 2 values, which do not fit the shape \(3,\)"),
        (tf.io.FixedLenSequenceFeature([3], tf.int64), "has 2 values"),
    ],
)
def test_features_that_do_not_fit(description, message):
    with pytest.raises(InputError, match=message):
        tf.io.parse_single_example(example(x=integers(1, 2)).SerializeToString(), {"x": description})


def test_missing_features():
    data = example().SerializeToString()
    rows = tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True)
    assert tf.io.parse_single_example(data, {"x": rows})["x"].shape == (0, 2)
    text = tf.io.FixedLenFeature([], tf.string, default_value=b"none")
    assert tf.io.parse_single_example(data, {"x": text}) == {"x": b"none"}
    with pytest.raises(InputError, match=r"has no feature 'x', and its .* no default_value"):
        tf.io.parse_single_example(data, {"x": tf.io.FixedLenFeature([], tf.int64)})


def test_bytes_that_are_not_an_example():
    for data in (b"\x0a\xff", b"\xff\xff\xff", b"\x0a\x02\x0a\x09"):
        with pytest.raises(InputError, match=r"are not a tf\.train\.Example"):
            train.Example.FromString(data)


def test_values_that_do_not_fit():
    with pytest.raises(TypeError, match=r"takes bytes, got 'a'. Write text.encode\(\)"):
        train.BytesList(value=["a"])
    with pytest.raises(TypeError, match=r"takes integers, got 1\.5"):
        train.Int64List(value=[1.5])
    with pytest.raises(ValueError, match="has one list"):
        train.Feature(int64_list=train.Int64List(), float_list=train.FloatList())
    with pytest.raises(NotImplementedError, match="no sparse and ragged tensors"):
        tf.io.parse_single_example(example(x=integers(1)).SerializeToString(), {"x": np.int64})
