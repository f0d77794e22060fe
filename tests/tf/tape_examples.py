"""Uses of `GradientTape` that TensorFlow documents, as programs for TensorFlow and for `replicax.tf`.

In an environment with TensorFlow, `python tests/tf/tape_examples.py` runs them there and writes the results
to `tests/tf/data/tape_tensorflow.json`. The test runs them with `replicax.tf` and compares.
"""

import json
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).parent / "data" / "tape_tensorflow.json"

EXAMPLES = {}


def example(function):
    EXAMPLES[function.__name__] = function
    return function


@example
def square(tf):
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.gradient(y, x)


@example
def second_derivative(tf):
    x = tf.constant(5.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = x * x * x
        first = inner.gradient(y, x)
    return first, outer.gradient(first, x)


@example
def persistent(tf):
    x = tf.constant([1.0, 3.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        z = y * y
    return tape.gradient(z, x), tape.gradient(y, x), tape.gradient(z, y)


@example
def chosen_variables(tf):
    a, b = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(a)
        y = a**2 * b
    return tape.gradient(y, [a, b])


@example
def watched_variables(tf):
    a, b, fixed = tf.Variable(2.0), tf.Variable(3.0), tf.Variable(1.0, trainable=False)
    with tf.GradientTape() as tape:
        (b + fixed + tf.constant(2.0)) * a
    return len(tape.watched_variables())


@example
def a_layer(tf):
    w = tf.Variable([[0.1, -0.2], [0.3, 0.4], [-0.5, 0.6]])
    b = tf.Variable([0.0, 0.1])
    with tf.GradientTape(persistent=True) as tape:
        y = tf.constant([[1.0, 2.0, 3.0]]) @ w + b
        loss = tf.reduce_mean(y**2)
    return tape.gradient(loss, [w, b]), tape.gradient(loss, {"w": w, "b": b})["b"], loss


@example
def what_is_watched(tf):
    x0 = tf.Variable(3.0)
    x1 = tf.Variable(3.0, trainable=False)
    x2 = tf.Variable(2.0) + 1.0
    x3 = tf.constant(3.0)
    with tf.GradientTape() as tape:
        y = x0**2 + x1**2 + x2**2 + x3**2
    return tape.gradient(y, [x0, x1, x2, x3])


@example
def several_targets(tf):
    x = tf.Variable(2.0)
    with tf.GradientTape(persistent=True) as tape:
        a, b = x**2, 1 / x
        c = x * tf.constant([3.0, 4.0])
    return tape.gradient({"a": a, "b": b}, x), tape.gradient(a, x), tape.gradient(c, x)


@example
def elementwise(tf):
    x = tf.linspace(-2.0, 2.0, 9)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.sigmoid(x)
    return tape.gradient(y, x)


@example
def control_flow(tf):
    x, a, b = tf.constant(1.0), tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        result = a if x > 0.0 else b**2
        result = result * 1.0
    return tape.gradient(result, [a, b]), tape.gradient(result, x)


@example
def unconnected(tf):
    x, y = tf.Variable([2.0, 2.0]), tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        z = y**2
    zero = tf.UnconnectedGradients.ZERO
    return tape.gradient(z, x), tape.gradient(z, x, unconnected_gradients=zero)


@example
def leaving_tensorflow(tf):
    x = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        y = tf.reduce_mean(np.mean((x**2).numpy(), axis=0))
    return tape.gradient(y, x)


@example
def state_stops_gradients(tf):
    x0, x1 = tf.Variable(3.0), tf.Variable(0.0)
    with tf.GradientTape() as tape:
        x1.assign_add(x0)
        y = x1**2
    return tape.gradient(y, [x0, x1])


@example
def read_twice(tf):
    x = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = x * 3.0
        x.assign(5.0)
        y = y + x**2
    return y, tape.gradient(y, x)


@example
def replaced_by_a_tensor(tf):
    x = tf.Variable(2.0)
    results = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            y = x + 1.0
        results.append(tape.gradient(y, x))
        x = x + 1.0
    return results


@example
def stopped(tf):
    x, y = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        kept = x * x
        with tape.stop_recording():
            lost = y * y
        z = kept + lost
    return tape.gradient(z, [x, y])


@example
def started_again(tf):
    x, y = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y * y
        tape.reset()
        z = x * x
    return tape.gradient(z, [x, y])


@example
def stopped_in_the_program(tf):
    x, y = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        z = x * x + tf.stop_gradient(y * y)
    return tape.gradient(z, [x, y])


@example
def two_tapes(tf):
    x0, x1 = tf.constant(0.0), tf.constant(0.0)
    with tf.GradientTape() as tape0, tf.GradientTape() as tape1:
        tape0.watch(x0)
        tape1.watch(x1)
        y = tf.sin(x0) + tf.nn.sigmoid(x1)
    return tape0.gradient(y, x0), tape1.gradient(y, x1)


@example
def gradient_penalty(tf):
    x = tf.constant([[0.5, -1.0], [2.0, 0.25]])
    w = tf.Variable([[0.3], [-0.7]])
    with tf.GradientTape() as outer:
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(x)
            out = tf.reduce_sum(tf.tanh(x @ w) ** 2)
        penalty = tf.reduce_sum(inner.gradient(out, x) ** 2)
    return penalty, outer.gradient(penalty, [w])


@example
def jacobian_of_a_vector(tf):
    delta = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        y = tf.nn.sigmoid(tf.linspace(-1.0, 1.0, 5) + delta)
    return tape.jacobian(y, delta)


@example
def jacobian_of_a_layer(tf):
    x = tf.constant([[1.0, -2.0, 0.5], [0.3, 0.2, -0.1]])
    w = tf.Variable([[0.1, -0.2], [0.3, 0.4], [-0.5, 0.6]])
    with tf.GradientTape() as tape:
        y = tf.nn.relu(x @ w)
    return tape.jacobian(y, w)


@example
def hessian(tf):
    w = tf.Variable([0.5, -1.5])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(tf.sin(w) * w**2)
        gradient = inner.gradient(loss, w)
    return outer.jacobian(gradient, w)


@example
def jacobian_of_each_row(tf):
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.batch_jacobian(y, x)


@example
def given_gradients(tf):
    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        y, z = x**2, x * 3.0
    return tape.gradient([y, z], x, output_gradients=[tf.constant([1.0, 10.0]), tf.constant([0.5, 0.25])])


@example
def in_the_block(tf):
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x**2
        gradient = tape.gradient(y, x)
    return gradient


@example
def complex_numbers(tf):
    z = tf.constant(1.0 + 2.0j, tf.complex64)
    with tf.GradientTape() as tape:
        tape.watch(z)
        y = z * z * z
    gradient = tape.gradient(y, z)
    return float(gradient.numpy().real), float(gradient.numpy().imag)


@example
def half_precision(tf):
    w = tf.Variable([0.5, -1.25])
    with tf.GradientTape() as tape:
        y = tf.cast(tf.reduce_sum(tf.cast(w, tf.bfloat16) ** 2), tf.float32)
    gradient = tape.gradient(y, w)
    return gradient, str(np.asarray(gradient).dtype)


@example
def training(tf):
    w, b = tf.Variable(5.0), tf.Variable(0.0)
    x = tf.linspace(-2.0, 2.0, 21)
    y = 3.0 * x + 2.0
    losses = []
    for _ in range(10):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - y))
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        losses.append(loss)
    return losses, w.numpy(), b.numpy()


@example
def compiled(tf):
    w = tf.Variable([1.0, -2.0])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(w * x))
        gradient = tape.gradient(loss, w)
        w.assign_sub(gradient)
        return loss, gradient

    return step(tf.constant([0.5, 0.25])), step(tf.constant([1.0, 2.0])), w.numpy()


def plain(result):
    """`result` with lists and numbers in place of tensors, as JSON has them."""
    if isinstance(result, dict):
        return {key: plain(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [plain(value) for value in result]
    if result is None or isinstance(result, str | float | int):
        return result
    return np.asarray(result).astype(float).tolist()


if __name__ == "__main__":
    import tensorflow

    results = {name: plain(function(tensorflow)) for name, function in EXAMPLES.items()}
    lines = ",\n".join(f'  "{name}": {json.dumps(result)}' for name, result in results.items())
    RECORDED.write_text(f'{{\n  "tensorflow": "{tensorflow.__version__}",\n{lines}\n}}\n')
