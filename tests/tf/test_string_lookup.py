"""`tf.keras.layers.StringLookup`, models of strings, and ops in functional models."""

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from replicax import tf  # noqa: E402

WORDS = ["earth", "wind", "fire"]


@pytest.mark.parametrize(
    ("options", "vocabulary", "numbers"),
    [
        ({}, ["[UNK]", *WORDS], [3, 0, 1, 0]),
        ({"mask_token": ""}, ["", "[UNK]", *WORDS], [4, 1, 2, 0]),
        ({"oov_token": "?"}, ["?", *WORDS], [3, 0, 1, 0]),
        ({"mask_token": "", "vocabulary": ["", "[UNK]", *WORDS]}, ["", "[UNK]", *WORDS], [4, 1, 2, 0]),
    ],
)
def test_numbers_are_those_of_keras(options, vocabulary, numbers):
    lookup = tf.keras.layers.StringLookup(**{"vocabulary": WORDS, **options})
    assert lookup.get_vocabulary() == vocabulary
    assert lookup.get_vocabulary(include_special_tokens=False) == WORDS
    assert lookup.vocabulary_size() == len(vocabulary)
    given = [["fire", "water"], ["earth", ""]]
    found = lookup(given)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.reshape(numbers, (2, 2)))
    np.testing.assert_array_equal(lookup(np.array(given).astype("S")), found)
    np.testing.assert_array_equal(
        tf.keras.layers.StringLookup.from_config(lookup.get_config())(given), found
    )
    inverse = tf.keras.layers.StringLookup(**{"vocabulary": WORDS, **options}, invert=True)
    assert inverse([0, 99, len(vocabulary) - 1]).tolist() == [vocabulary[0], lookup.oov_token, "fire"]


def test_a_vocabulary_from_a_file_or_from_data(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS))
    assert tf.keras.layers.StringLookup(vocabulary=str(path)).get_vocabulary()[1:] == WORDS
    lookup = tf.keras.layers.StringLookup(max_tokens=3)
    data = [["a", "b"], ["b", "c"], ["c", "b"]]
    for given in (data, tf.data.Dataset.from_tensor_slices(data).batch(2)):
        lookup.adapt(given)
        assert lookup.get_vocabulary() == ["[UNK]", "b", "c"]


def test_mistakes_are_explained():
    layer = tf.keras.layers.StringLookup
    with pytest.raises(ValueError, match=r"'water' is not in the vocabulary of .* num_oov_indices is 0"):
        layer(vocabulary=WORDS, num_oov_indices=0)(["water"])
    with pytest.raises(ValueError, match=r"repeats \['wind'\]\. Pass every string once"):
        layer(vocabulary=[*WORDS, "wind"])
    with pytest.raises(ValueError, match=r"has 4 strings, with special ones, but max_tokens=2"):
        layer(max_tokens=2, vocabulary=WORDS)
    with pytest.raises(ValueError, match=r"has no vocabulary\. Pass `vocabulary=`, or call `adapt`"):
        layer()(["wind"])
    with pytest.raises(NotImplementedError, match=r"num_oov_indices=2\): pass 1"):
        layer(vocabulary=WORDS, num_oov_indices=2)
    with pytest.raises(NotImplementedError, match=r"CategoryEncoding\(lookup\.vocabulary_size\(\)"):
        layer(vocabulary=WORDS, output_mode="multi_hot")


def test_a_model_of_strings_takes_examples_and_batches():
    lookup = tf.keras.layers.StringLookup(vocabulary=WORDS)
    given = tf.keras.layers.Input(shape=(2,), dtype=tf.string, name="words")
    one = tf.keras.Input(shape=(1,), dtype=tf.string, name="one")
    numbers = tf.keras.Model({"words": given}, lookup(given))
    both = tf.keras.Model([given, one], [lookup(given), lookup(one)])
    assert numbers.output.dtype == "int64" and numbers.output_shape == (None, 2)
    np.testing.assert_array_equal(numbers({"words": np.array([["wind", "x"]])}), [[2, 0]])
    found = both([np.array([[b"fire", b"wind"]], object), np.array([b"earth"], object)])
    np.testing.assert_array_equal(found[0], [[3, 2]])
    np.testing.assert_array_equal(found[1], [[1]])
    dataset = tf.data.Dataset.from_tensor_slices([["wind", "fire"], ["x", "earth"]]).map(numbers).batch(2)
    (batch,) = dataset
    np.testing.assert_array_equal(batch, [[2, 3], [0, 1]])
    with pytest.raises(ValueError, match=r"takes 2 inputs, got 1"):
        both([np.array(["wind", "fire"])])


def test_ops_in_a_functional_model():
    given = tf.keras.Input((3, 2))
    model = tf.keras.Model(
        given, tf.concat([tf.reduce_mean(given, axis=1), tf.square(given[:, 0])], axis=-1)
    )
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    expected = np.concatenate([x.mean(1), x[:, 0] ** 2], axis=-1)
    np.testing.assert_allclose(model(x), expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes for broadcasting"):
        tf.add(given, tf.zeros((4, 5)))


def test_older_names():
    metric = tf.keras.metrics.Mean()
    metric.update_state(3.0)
    metric.reset_states()
    assert float(metric.result()) == 0.0
    creator = tf.keras.utils.experimental.DatasetCreator(lambda context: tf.data.Dataset.range(2))
    assert [int(x) for x in creator(None)] == [0, 1]
    with pytest.raises(TypeError, match="takes a function that returns a dataset"):
        tf.keras.utils.experimental.DatasetCreator(tf.data.Dataset.range(2))
