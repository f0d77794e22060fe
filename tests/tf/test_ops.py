"""The ops of `replicax.tf`: thin names, with TensorFlow's arguments and results."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]], np.float32)
I = np.array([[1, 2, 3], [4, 5, 6]], np.int32)  # noqa: E741

# What to call, and what NumPy says about it.
SAME = {
    "abs": (lambda: tf.abs(X), np.abs(X)),
    "add": (lambda: tf.add(x=X, y=1.0), X + 1),
    "subtract by name": (lambda: tf.subtract(y=X, x=1.0), 1 - X),
    "pow by name": (lambda: tf.pow(y=2.0, x=X), X**2),
    "where lists": (lambda: tf.where([True, False], 1.0, [2.0, 3.0]), [1.0, 3.0]),
    "boolean_mask": (lambda: tf.boolean_mask(X, [False, True]), X[1:]),
    "boolean_mask axis": (lambda: tf.boolean_mask(X, [True, False, True], axis=1), X[:, ::2]),
    "boolean_mask of elements": (lambda: tf.boolean_mask(X, X > 0), X[X > 0]),
    "add_n": (lambda: tf.add_n([X, X, X]), 3 * X),
    "argmax": (lambda: tf.argmax(X, axis=1), X.argmax(1)),
    "argmax default": (lambda: tf.argmax(X), X.argmax(0)),
    "argsort": (lambda: tf.argsort(X, direction="DESCENDING"), np.argsort(-X)),
    "broadcast_to": (lambda: tf.broadcast_to([1, 2, 3], [2, 3]), np.broadcast_to([1, 2, 3], (2, 3))),
    "cast": (lambda: tf.cast(X, tf.int32), X.astype(np.int32)),
    "clip_by_value": (lambda: tf.clip_by_value(X, -1, 1), X.clip(-1, 1)),
    "concat": (lambda: tf.concat([X, X], axis=1), np.concatenate([X, X], 1)),
    "cumsum": (lambda: tf.cumsum(X, axis=1), X.cumsum(1)),
    "cumsum exclusive": (lambda: tf.cumsum(I, axis=1, exclusive=True), [[0, 1, 3], [0, 4, 9]]),
    "cumsum reverse": (lambda: tf.cumsum(I, axis=1, reverse=True), [[6, 5, 3], [15, 11, 6]]),
    "einsum": (lambda: tf.einsum("ij,kj->ik", X, X), X @ X.T),
    "expand_dims": (lambda: tf.expand_dims(X, 0), X[None]),
    "eye": (lambda: tf.eye(3), np.eye(3)),
    "fill": (lambda: tf.fill([2, 2], 7.0), np.full((2, 2), 7.0)),
    "gather": (lambda: tf.gather(X, [1, 0, 1]), X[[1, 0, 1]]),
    "gather axis": (lambda: tf.gather(X, [2, 0], axis=1), X[:, [2, 0]]),
    "gather_nd": (lambda: tf.gather_nd(X, [[0, 1], [1, 2]]), X[[0, 1], [1, 2]]),
    "linspace": (lambda: tf.linspace(0.0, 1.0, 5), np.linspace(0, 1, 5)),
    "matmul": (lambda: tf.matmul(X, X, transpose_b=True), X @ X.T),
    "matmul transpose_a": (lambda: tf.matmul(X, X, transpose_a=True), X.T @ X),
    "maximum": (lambda: tf.maximum(X, 0.0), np.maximum(X, 0)),
    "norm": (lambda: tf.norm(X), np.sqrt((X**2).sum())),
    "norm 1": (lambda: tf.norm(X, ord=1), np.abs(X).sum()),
    "norm inf": (lambda: tf.norm(X, ord=np.inf, keepdims=True), [[4.0]]),
    "norm axis": (lambda: tf.norm(X, axis=1), np.linalg.norm(X, axis=1)),
    "one_hot": (lambda: tf.one_hot([0, 2], 3), [[1, 0, 0], [0, 0, 1]]),
    "one_hot dtype of values": (lambda: tf.one_hot([1], 2, on_value=5, off_value=-1), np.int32([[-1, 5]])),
    "one_hot values": (lambda: tf.one_hot([1], 2, on_value=5, off_value=-1, dtype=tf.int32), [[-1, 5]]),
    "ones": (lambda: tf.ones([2, 3]), np.ones((2, 3))),
    "ones scalar": (lambda: tf.ones([]), 1.0),
    "pad": (
        lambda: tf.pad(X, [[1, 0], [0, 2]], constant_values=9),
        np.pad(X, [[1, 0], [0, 2]], constant_values=9),
    ),
    "pow": (lambda: tf.pow(I, 2), I**2),
    "range": (lambda: tf.range(2, 9, 3), [2, 5, 8]),
    "range one": (lambda: tf.range(3), [0, 1, 2]),
    "relu by name": (lambda: tf.nn.relu(features=X.tolist()), X.clip(0)),
    "swish": (lambda: tf.nn.swish(X, beta=2.0), X / (1 + np.exp(-2 * X))),
    "reduce_all": (lambda: tf.reduce_all(X > 0, axis=0), (X > 0).all(0)),
    "reduce_any": (lambda: tf.reduce_any(X > 3), True),
    "reduce_logsumexp": (lambda: tf.reduce_logsumexp(X), np.log(np.exp(X).sum())),
    "reduce_max": (lambda: tf.reduce_max(X, axis=[0, 1]), X.max()),
    "reduce_mean": (lambda: tf.reduce_mean(X, axis=1, keepdims=True), X.mean(1, keepdims=True)),
    "reduce_mean int": (lambda: tf.reduce_mean(tf.constant([1, 2])), 1),
    "reduce_std": (lambda: tf.math.reduce_std(X, axis=0), X.std(0)),
    "reduce_sum": (lambda: tf.reduce_sum(X), X.sum()),
    "repeat": (lambda: tf.repeat([1, 2], 2), [1, 1, 2, 2]),
    "reshape": (lambda: tf.reshape(X, [3, -1]), X.reshape(3, -1)),
    "reshape scalar": (lambda: tf.reshape([5.0], []), 5.0),
    "reshape flat": (lambda: tf.reshape(X, -1), X.ravel()),
    "reverse": (lambda: tf.reverse(X, axis=[1]), X[:, ::-1]),
    "roll": (lambda: tf.roll(X, shift=1, axis=1), np.roll(X, 1, 1)),
    "rsqrt": (lambda: tf.math.rsqrt(4.0), 0.5),
    "shape": (lambda: tf.shape(X), [2, 3]),
    "size": (lambda: tf.size(X), 6),
    "slice": (lambda: tf.slice(X, [0, 1], [2, -1]), X[:, 1:]),
    "softmax": (lambda: tf.nn.softmax([0.0, 0.0]), [0.5, 0.5]),
    "sort": (lambda: tf.sort(X, direction="DESCENDING"), -np.sort(-X)),
    "square": (lambda: tf.square(X), X**2),
    "squared_difference": (lambda: tf.math.squared_difference(X, 1.0), (X - 1) ** 2),
    "squeeze": (lambda: tf.squeeze([[[1.0], [2.0]]], axis=[0, 2]), [1.0, 2.0]),
    "stack": (lambda: tf.stack([X, X], axis=1), np.stack([X, X], 1)),
    "tensordot": (lambda: tf.tensordot(X, X, axes=[[1], [1]]), X @ X.T),
    "tile": (lambda: tf.tile([1, 2], [2]), [1, 2, 1, 2]),
    "transpose": (lambda: tf.transpose(X), X.T),
    "transpose perm": (lambda: tf.transpose(X[None], perm=[2, 0, 1]), X[None].transpose(2, 0, 1)),
    "where": (lambda: tf.where(X > 0, X, 0.0), np.where(X > 0, X, 0)),
    "where indices": (lambda: tf.where([False, True, True]), [[1], [2]]),
    "zeros_like": (lambda: tf.zeros_like(I), np.zeros_like(I)),
    "bias_add": (lambda: tf.nn.bias_add(X, [1.0, 2.0, 3.0]), X + np.array([1, 2, 3])),
    "embedding_lookup": (lambda: tf.nn.embedding_lookup(X, [1, 1]), X[[1, 1]]),
    "l2_loss": (lambda: tf.nn.l2_loss(X), (X**2).sum() / 2),
    "relu": (lambda: tf.nn.relu(X), np.maximum(X, 0)),
    "leaky_relu": (lambda: tf.nn.leaky_relu([-1.0, 1.0]), [-0.2, 1.0]),
    "sigmoid cross entropy": (
        lambda: tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0, 0.0], logits=[2.0, -3.0]),
        -np.log([1 / (1 + np.exp(-2)), 1 - 1 / (1 + np.exp(3))]),
    ),
    "softmax cross entropy": (
        lambda: tf.nn.softmax_cross_entropy_with_logits(labels=[[0.0, 1.0]], logits=[[1.0, 1.0]]),
        [np.log(2)],
    ),
    "l2_normalize": (lambda: tf.math.l2_normalize([3.0, 4.0]), [0.6, 0.8]),
    "multiply_no_nan": (lambda: tf.math.multiply_no_nan([np.inf, 2.0], [0.0, 3.0]), [0, 6]),
}


@pytest.mark.parametrize("name", SAME)
def test_it_gives_what_numpy_gives(name):
    call, expected = SAME[name]
    result = call()
    assert isinstance(result, jax.Array)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_dtypes_of_constants():
    assert tf.constant(1.0).dtype == tf.float32 and not tf.constant(1.0).weak_type
    assert tf.constant(1).dtype == tf.int32
    assert tf.constant(True).dtype == tf.bool
    assert tf.constant(1, tf.int64).dtype == tf.int32, "JAX has 32 bits"
    assert tf.constant(1.0, tf.bfloat16).dtype == tf.bfloat16
    assert tf.zeros([2], tf.float16).dtype == tf.float16
    assert tf.constant(7.0, shape=[2, 2]).shape == (2, 2)
    assert tf.constant([1, 2, 3, 4], shape=(2, 2)).tolist() == [[1, 2], [3, 4]]
    assert tf.as_dtype("int32") is tf.int32 or tf.as_dtype("int32") == tf.int32
    with pytest.raises(TypeError, match="no string tensors"):
        tf.constant("text")


def test_arrays_have_numpy():
    x = tf.constant([1.0, 2.0])
    assert isinstance(x.numpy(), np.ndarray) and (x.numpy() == [1, 2]).all()
    assert tf.is_tensor(x) and isinstance(x, tf.Tensor) and not tf.is_tensor(x.numpy())
    with pytest.raises((AttributeError, jax.errors.TracerArrayConversionError)):
        jax.jit(lambda x: x.numpy())(x)


def test_variables_are_taken_as_their_values():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    for result in (
        tf.matmul(v, v),
        tf.reduce_sum(v),
        tf.nn.relu(v),
        tf.concat([v, v], 0),
        tf.identity(v),
        tf.cast(v, "int32"),
    ):
        assert isinstance(result, jax.Array)
    assert tf.convert_to_tensor(v).tolist() == v.numpy().tolist()
    ones = strategy.run(lambda: tf.reduce_sum(tf.math.rsqrt(v * v)))
    assert [round(float(x), 4) for x in strategy.local_results(ones)] == [2.0833, 2.0833]


def test_ops_have_a_name():
    lowered = jax.jit(lambda x: tf.reduce_sum(x, name="my_sum")).lower(X)
    assert "my_sum" in lowered.as_text(debug_info=True)


def test_ensure_shape():
    assert tf.ensure_shape(X, [None, 3]).shape == (2, 3)
    for shape in ([2], [3, 3], [2, 3, None]):
        with pytest.raises(ValueError, match=r"got \(2, 3\)"):
            tf.ensure_shape(X, shape)


def test_split_and_unstack():
    assert [part.shape for part in tf.split(X, 3, axis=1)] == [(2, 1)] * 3
    assert [part.shape for part in tf.split(X, [1, 2], axis=1)] == [(2, 1), (2, 2)]
    assert len(tf.unstack(X, axis=1)) == 3
    with pytest.raises(ValueError, match="size 2"):
        tf.unstack(X, num=3)


def test_one_hot_has_the_dtype_of_its_values():
    assert tf.one_hot([1], 2).dtype == tf.float32
    assert tf.one_hot([1], 2, on_value=5, off_value=-1).dtype == tf.int32
    assert tf.one_hot([1], 2, on_value=5, dtype=tf.float16).dtype == tf.float16


def test_the_sizes_of_a_split():
    parts = tf.split(np.arange(5), [-1, 2])
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    assert [part.tolist() for part in tf.split(np.arange(4), np.int64(2))] == [[0, 1], [2, 3]]
    for sizes in ([2, 2], [2, 4], [-1, -1], [6, -1]):
        with pytest.raises(ValueError, match="add up"):
            tf.split(np.arange(5), sizes)


def test_shapes_have_values_in_compiled_functions():
    @tf.function
    def f(x):
        rows = tf.shape(x)[0]
        zeros = tf.zeros([rows, tf.rank(x)])
        return tf.reshape(x, [tf.size(x)]), zeros, tf.range(rows), tf.broadcast_to(x[0], tf.shape(x))

    flat, zeros, numbers, repeated = f(X)
    np.testing.assert_array_equal(flat, X.ravel())
    np.testing.assert_array_equal(repeated, [X[0], X[0]])
    assert zeros.shape == (2, 2) and numbers.tolist() == [0, 1]
    assert tf.shape(X).numpy().tolist() == [2, 3]


def test_a_loop_over_numbers_up_to_a_traced_one():
    @tf.function
    def triangle(n, at_most=None):
        return tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + i), [0, 0], at_most)

    assert [int(x) for x in triangle(tf.constant(5))] == [5, 10]
    assert [int(x) for x in triangle(tf.constant(5), 3)] == [3, 3]


def test_moments_and_normalization():
    mean, variance = tf.nn.moments(X, axes=[0])
    np.testing.assert_allclose(mean, X.mean(0))
    normal = tf.nn.batch_normalization(X, mean, variance, offset=None, scale=None, variance_epsilon=1e-6)
    np.testing.assert_allclose(normal, (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-6), rtol=1e-5)


def test_clipping_by_norms():
    slices = tf.IndexedSlices(tf.constant([3.0]), tf.constant([0]), (2,))
    clipped, length = tf.clip_by_global_norm([tf.constant([4.0]), None, slices], 2.5)
    assert float(length) == 5.0 and clipped[1] is None
    assert clipped[0].tolist() == [2.0] and clipped[2].values.tolist() == [1.5]
    assert tf.clip_by_norm([3.0, 4.0], 10.0).tolist() == [3.0, 4.0]
    np.testing.assert_allclose(tf.clip_by_norm([3.0, 4.0], 1.0), [0.6, 0.8], rtol=1e-6)


def test_clipping_what_has_no_direction_or_no_norm():
    np.testing.assert_array_equal(jax.grad(lambda t: tf.clip_by_norm(t, 1.0).sum())(jnp.zeros(2)), [1, 1])
    clipped, norm = tf.clip_by_global_norm([jnp.array([np.inf, 1.0]), jnp.ones(1)], 1.0)
    assert np.isinf(norm) and np.isnan(clipped[0]).all() and np.isnan(clipped[1]).all()


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [1, 2, [1, 2, 2, 1]])
def test_convolutions_in_both_layouts(padding, strides):
    images = np.random.default_rng(0).normal(size=(2, 7, 7, 3)).astype(np.float32)
    filters = np.random.default_rng(1).normal(size=(3, 3, 3, 4)).astype(np.float32)
    last = tf.nn.conv2d(images, filters, strides, padding)
    number = strides if isinstance(strides, int) else 2
    first = tf.nn.conv2d(images.transpose(0, 3, 1, 2), filters, number, padding, data_format="NCHW")
    np.testing.assert_allclose(last, first.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
    window = (
        images[0, :3, :3] if padding == "VALID" else np.pad(images[0], [(1, 1), (1, 1), (0, 0)])[:3, :3]
    )
    if padding == "VALID" or number == 1 or (7 - 1) % number == 0:
        np.testing.assert_allclose(
            last[0, 0, 0], np.einsum("hwi,hwio->o", window, filters), rtol=1e-4, atol=1e-5
        )


def test_pooling():
    image = np.arange(16.0, dtype=np.float32).reshape(1, 4, 4, 1)
    assert tf.nn.max_pool2d(image, 2, 2, "VALID")[0, :, :, 0].tolist() == [[5, 7], [13, 15]]
    assert tf.nn.avg_pool2d(image, 2, 2, "VALID")[0, :, :, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    corner = tf.nn.avg_pool2d(image, 3, 3, "SAME")[0, 1, 1, 0]
    assert float(corner) == np.mean([10, 11, 14, 15]), "what lies outside does not count"
    gradient = jax.grad(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID").sum())(jnp.asarray(image))
    assert float(gradient.sum()) == 4.0


# Control flow.


def test_control_flow_with_values_is_python():
    log = []
    tf.cond(tf.constant(True), lambda: log.append("yes"), lambda: log.append("no"))
    assert log == ["yes"]
    assert tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0]) == [3]
    assert tf.while_loop(lambda i: True, lambda i: (i + 1,), (0,), maximum_iterations=4) == (4,)
    assert tf.switch_case(7, [lambda: "a", lambda: "b"], default=lambda: "other") == "other"


def test_control_flow_is_compiled():
    @tf.function
    def collatz(n):
        even = lambda n: n // 2  # noqa: E731
        body = lambda n, i: (tf.cond(n % 2 == 0, lambda: even(n), lambda: 3 * n + 1), i + 1)  # noqa: E731
        return tf.while_loop(lambda n, i: n != 1, body, (n, 0))[1]

    assert int(collatz(tf.constant(6))) == 8 and int(collatz(tf.constant(27))) == 111
    assert collatz.num_programs == 1
    switch = tf.function(lambda i: tf.switch_case(i, [lambda: 10, lambda: 20]))
    assert [int(switch(tf.constant(i))) for i in (0, 1, 5, -1)] == [10, 20, 20, 20]
    squares = tf.function(lambda x: tf.map_fn(lambda row: row * row, x))
    assert squares(tf.constant([1.0, 2.0])).tolist() == [1.0, 4.0]


def test_collectives_under_control_flow():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function
    def step(x):
        def replica_fn(x):
            context = tf.distribute.get_replica_context()
            return tf.cond(x > 0, lambda: context.all_reduce("SUM", x), lambda: x)

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    assert float(step(tf.constant(3.0))) == 6.0 and float(step(tf.constant(-3.0))) == -3.0


def test_print(capsys):
    tf.print("x =", tf.constant(1.5), [2])
    assert capsys.readouterr().out == "x = 1.5 [2]\n"
    tf.function(lambda x: tf.print("traced", x))(tf.constant(2.5))
    jax.effects_barrier()
    assert "traced 2.5" in capsys.readouterr().out


def test_assertions():
    tf.debugging.assert_equal([1, 2], [1, 2])
    tf.debugging.assert_near(1.0, 1.0 + 1e-7)
    with pytest.raises(ValueError, match=r"sizes: x = 2, y = 1"):
        tf.debugging.assert_less(2, 1, message="sizes")
    with pytest.raises(ValueError, match=r"\(2, 3\), not \(2, 2\)"):
        tf.debugging.assert_shapes([(X, (2, 2))])
    tf.debugging.assert_shapes([(X, (None, 3))])
    with pytest.raises(ValueError, match="bad: the tensor contains NaN"):
        tf.debugging.check_numerics([np.nan], "bad")
    with pytest.raises(NotImplementedError, match="checkify"):
        tf.function(lambda x: tf.debugging.assert_equal(x, x))(tf.constant(1))


# Random numbers.


def test_the_stream_of_the_process():
    tf.random.set_seed(3)
    first = [tf.random.uniform([2]), tf.random.normal([2]), tf.random.truncated_normal([100]).max()]
    tf.random.set_seed(3)
    again = [tf.random.uniform([2]), tf.random.normal([2]), tf.random.truncated_normal([100]).max()]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert float(first[2]) <= 2.0
    assert (tf.random.uniform([50], 5, 8, dtype=tf.int32) >= 5).all()
    assert sorted(tf.random.shuffle([1, 2, 3]).tolist()) == [1, 2, 3]
    with pytest.raises(ValueError, match="maxval"):
        tf.random.uniform([2], dtype=tf.int32)
    with pytest.raises(RuntimeError, match="the same ones in every step"):
        tf.function(lambda: tf.random.uniform([2]))()


def test_a_seed_of_its_own_gives_the_same_numbers_in_every_run():
    program = "import replicax.tf as tf; print(tf.random.uniform([3], seed=5).tolist())"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True) for _ in "ab"]
    assert runs[0].stdout and runs[0].stdout == runs[1].stdout, runs


def test_stateless_numbers():
    step = tf.function(lambda seed: tf.random.stateless_normal([3], seed))
    assert (step(tf.constant([1, 2])) == step(tf.constant([1, 2]))).all()
    assert (step(tf.constant([1, 2])) != step(tf.constant([1, 3]))).any()
    with pytest.raises(ValueError, match="two integers"):
        tf.random.stateless_uniform([], seed=[1])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_generator_in_replicas(compiled):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        generator = tf.random.Generator.from_seed(1)
    step = lambda: strategy.run(lambda: generator.normal([]))  # noqa: E731
    step = tf.function(step) if compiled else step
    drawn = [float(x) for _ in range(3) for x in strategy.local_results(step())]
    assert len(set(drawn)) == 6, "other numbers on each replica, and in each step"
    outside = tf.random.Generator.from_seed(1)
    assert float(outside.uniform([])) != float(outside.uniform([]))
    with pytest.raises(ValueError, match="threefry"):
        tf.random.Generator.from_seed(1, alg="other")


# Structures.


def test_structures():
    structure = {"b": [1, (2, None)], "a": 3}
    assert tf.nest.flatten(structure) == [3, 1, 2, None]
    assert tf.nest.pack_sequence_as(structure, "wxyz") == {"b": ["x", ("y", "z")], "a": "w"}
    assert tf.nest.map_structure(lambda x, y: (x, y), [1], [2]) == [(1, 2)]
    v = tf.Variable(1.0)
    assert tf.nest.flatten([v])[0] is v
    per_replica = rx.PerReplica([1, 2])
    assert tf.nest.flatten((per_replica,))[0] is per_replica
    assert tf.nest.flatten(5) == [5] and tf.nest.is_nested({}) and not tf.nest.is_nested("text")
    with pytest.raises(TypeError, match="list here and a tuple there"):
        tf.nest.assert_same_structure([1], (1,))
    tf.nest.assert_same_structure([1], (1,), check_types=False)
    with pytest.raises(ValueError, match="parts"):
        tf.nest.map_structure(lambda x, y: x, {"a": 1}, {"b": 1})
    with pytest.raises(ValueError, match="4 leaves, but the sequence has 1"):
        tf.nest.pack_sequence_as(structure, [1])
    with pytest.raises(ValueError, match="composite"):
        tf.nest.flatten(structure, expand_composites=True)


def test_arguments_are_honoured_or_refused(capsys):
    assert tf.convert_to_tensor(1, dtype_hint=tf.float32).dtype == tf.float32
    assert tf.convert_to_tensor(1.5, dtype_hint=tf.int32).dtype == tf.float32, "not of that kind"
    assert tf.convert_to_tensor(1, dtype=tf.int32, dtype_hint=tf.float32).dtype == tf.int32
    with pytest.raises(ValueError, match="there are 2 sizes"):
        tf.split(X, [1, 2], axis=1, num=3)
    assert tf.map_fn(lambda row: row.sum(), X, fn_output_signature=tf.float32).shape == (2,)
    with pytest.raises(TypeError, match="returned float32, but the signature says int32"):
        tf.map_fn(lambda row: row, X, fn_output_signature=tf.TensorSpec([3], tf.int32))
    with pytest.raises(ValueError, match=r"x = \[1\. 2\.\] and 3 more, y = 0"):
        tf.debugging.assert_equal([1.0, 2.0, 3.0, 4.0, 5.0], 0, summarize=2)
    with pytest.raises(ValueError, match="each call prints a whole line"):
        tf.function(lambda x: tf.print(x, end=""))(tf.constant(1))
    tf.print("a", end="")
    assert capsys.readouterr().out == "a"
    with pytest.raises(ValueError, match="memory"):
        tf.config.LogicalDeviceConfiguration(experimental_device_ordinal=1)
