"""Errors: `except` clauses that TensorFlow programs have."""

import functools
import tempfile

from .running import raised, two


def wrong_shapes_in_ops(tf):
    a, b = tf.zeros([2, 3]), tf.zeros([4, 5])
    kind = tf.errors.InvalidArgumentError
    return (
        raised(lambda: tf.matmul(a, b), kind),
        raised(lambda: tf.add(a, b), kind),
        raised(lambda: tf.reshape(a, [7]), kind),
        raised(lambda: tf.concat([a, b], 0), kind),
        raised(lambda: tf.debugging.assert_equal(1, 2), kind),
        raised(lambda: tf.debugging.assert_less(2.0, 1.0), kind),
        raised(lambda: tf.debugging.check_numerics(tf.constant(float("nan")), "it is"), kind),
    )


def files_that_do_not_exist(tf):
    folder = tempfile.mkdtemp()
    return (
        raised(lambda: tf.io.gfile.remove(f"{folder}/nothing"), tf.errors.NotFoundError, tf.errors.OpError),
        raised(lambda: tf.io.gfile.listdir(f"{folder}/nothing"), tf.errors.NotFoundError),
        raised(lambda: tf.io.read_file(f"{folder}/nothing"), tf.errors.NotFoundError),
        raised(lambda: tf.io.gfile.rmtree(f"{folder}/nothing"), tf.errors.NotFoundError),
    )


def checkpoints_that_do_not_exist(tf):
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    folder = tempfile.mkdtemp()
    return (
        raised(lambda: checkpoint.restore(f"{folder}/ckpt-1"), tf.errors.NotFoundError),
        raised(lambda: checkpoint.read(f"{folder}/ckpt-1"), tf.errors.NotFoundError),
    )


def their_own_fields(tf):
    error = tf.errors.NotFoundError(None, None, "no such thing")
    codes = (tf.errors.INVALID_ARGUMENT, tf.errors.NOT_FOUND, tf.errors.OUT_OF_RANGE, tf.errors.UNAVAILABLE)
    return error.message, error.error_code, error.op, error.node_def, codes


def raising_them(tf):
    def fail(kind):
        raise kind(None, None, "on purpose")

    names = (
        *("InvalidArgumentError", "NotFoundError", "AlreadyExistsError", "PermissionDeniedError"),
        *("ResourceExhaustedError", "FailedPreconditionError", "AbortedError", "OutOfRangeError"),
        *("UnimplementedError", "InternalError", "UnavailableError", "DataLossError", "UnknownError"),
        *("CancelledError", "DeadlineExceededError", "UnauthenticatedError"),
    )
    return {
        name: (
            raised(functools.partial(fail, getattr(tf.errors, name)), tf.errors.OpError),
            getattr(tf.errors, name)(None, None, "x").error_code,
        )
        for name in names
    }


def a_traced_value_as_a_number(tf):
    @tf.function(autograph=False)
    def step(x):
        return 1.0 if x > 0 else 2.0

    return len(raised(lambda: step(tf.constant(1.0)), tf.errors.OperatorNotAllowedInGraphError, TypeError))


def a_loop_until_the_data_ends(tf):
    strategy = two(tf)
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4)))
    count = 0
    try:
        while True:
            iterator.get_next()
            count += 1
    except tf.errors.OutOfRangeError:
        return count


def writing_what_does_not_fit(tf):
    v, whole = tf.Variable([1.0, 2.0]), tf.Variable(0)
    return (
        raised(lambda: v.assign("text"), TypeError),
        raised(lambda: v.assign_add("text"), TypeError),
        raised(lambda: whole.assign("text"), TypeError),
        raised(lambda: v.assign([1.0, 2.0, 3.0]), ValueError),
        raised(lambda: v.assign(None), ValueError),
    )
