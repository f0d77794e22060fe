"""Names of `tf` that programs for distributed training use."""

import pathlib
import tempfile

import numpy as np

from .running import raised


def newaxis(tf):
    x = tf.constant([1.0, 2.0])
    return x[:, tf.newaxis], x[tf.newaxis].shape[0]


def confusion_matrix(tf):
    labels, predictions = [0, 1, 2, 2], [0, 2, 2, 1]
    return (
        tf.math.confusion_matrix(labels, predictions),
        tf.math.confusion_matrix(labels, predictions, num_classes=4, weights=[1, 2, 3, 4]),
        tf.math.confusion_matrix(labels, predictions, dtype=tf.float32),
    )


def tensor_scatter(tf):
    x, places, values = tf.constant([1.0, 2.0, 3.0]), [[0], [2]], [5.0, 1.0]
    return (
        tf.tensor_scatter_nd_update(x, places, values),
        tf.tensor_scatter_nd_add(x, places, values),
        tf.tensor_scatter_nd_sub(x, places, values),
        tf.tensor_scatter_nd_max(x, places, values),
        tf.tensor_scatter_nd_min(x, places, values),
        tf.scatter_nd(tf.constant([[1], [1]]), tf.constant([4.0, 5.0]), tf.constant([3])),
    )


def meshgrid(tf):
    return tf.meshgrid([1, 2], [3, 4, 5]), tf.meshgrid([1, 2], [3, 4], indexing="ij")


def running_eagerly(tf):
    seen = []

    @tf.function
    def step(x):
        seen.append(tf.executing_eagerly())
        return x + 1.0

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        result = step(tf.constant(1.0))
        return before, tf.config.functions_run_eagerly(), result, seen
    finally:
        tf.config.run_functions_eagerly(False)


def init_scope(tf):
    @tf.function
    def step(x):
        with tf.init_scope():
            eager = tf.executing_eagerly()
        return x + float(eager)

    return step(tf.constant(1.0))


def control_dependencies(tf):
    v = tf.Variable(1.0)

    @tf.function
    def step():
        with tf.control_dependencies([v.assign_add(1.0)]):
            return tf.identity(v) * 2.0

    return step(), v, tf.no_op() is None, tf.group(v.assign(0.0)) is None


def dropout(tf):
    x = tf.ones([1000])
    y = tf.nn.dropout(x, rate=0.25, seed=1)
    kept = np.asarray(y) > 0
    return bool(0.65 < kept.mean() < 0.85), float(np.asarray(y).max()), tf.nn.dropout(x[:3], rate=0.0)


def categorical(tf):
    logits = tf.math.log([[0.0001, 0.9999, 1e-9]])
    drawn = np.asarray(tf.random.categorical(logits, 5, seed=1))
    return (
        drawn.shape,
        bool((drawn == 1).mean() > 0.5),
        np.asarray(tf.random.stateless_categorical(logits, 4, seed=[1, 2])).shape,
    )


def custom_gradient(tf):
    @tf.custom_gradient
    def log1pexp(x):
        e = tf.exp(x)

        def grad(upstream):
            return upstream * (1.0 - 1.0 / (1.0 + e))

        return tf.math.log(1.0 + e), grad

    x = tf.constant([1.0, 100.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = log1pexp(x)
    return tape.gradient(y, x)


def custom_gradient_of_two(tf):
    @tf.custom_gradient
    def product(x, y):
        return x * y, lambda upstream: (upstream * 10.0, upstream * 20.0)

    x, y = tf.Variable(3.0), tf.Variable(4.0)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            z = product(x.read_value(), y.read_value()) * 2.0
        return z, tape.gradient(z, [x, y])

    return step()


def tensor_array(tf):
    array = tf.TensorArray(tf.float32, size=3, clear_after_read=False)
    for i in range(3):
        array = array.write(i, tf.constant([float(i), 1.0]))
    grown = tf.TensorArray(tf.int32, size=0, dynamic_size=True, clear_after_read=False)
    grown = grown.write(0, 5).write(1, 6)
    return array.stack(), array.read(1), array.concat(), grown.stack(), array.size(), grown.gather([1, 0])


def tensor_array_in_a_function(tf):
    @tf.function
    def step(x):
        array = tf.TensorArray(tf.float32, size=4, clear_after_read=False)
        for i in range(4):
            array = array.write(i, x * float(i))
        rows = tf.TensorArray(tf.float32, size=2).unstack(tf.reshape(x * tf.ones([4]), [2, 2]))
        return array.stack(), rows.read(1)

    return step(tf.constant(2.0))


def generators(tf):
    g = tf.random.Generator.from_seed(1)
    shapes = [
        np.asarray(g.normal([2])).shape,
        np.asarray(g.uniform([3], 0, 10, tf.int32)).shape,
        np.asarray(g.truncated_normal([2])).shape,
        np.asarray(g.uniform_full_int([2], tf.uint32)).shape,
        np.asarray(g.binomial([2], counts=[5.0, 5.0], probs=[0.5, 0.5])).shape,
        np.asarray(g.make_seeds(2)).shape,
    ]
    first, second = g.split(2)
    g.reset_from_seed(7)
    a = np.asarray(g.normal([2]))
    g.reset_from_seed(7)
    same = bool((a == np.asarray(g.normal([2]))).all())
    g.skip(3)
    other = tf.random.get_global_generator()
    tf.random.set_global_generator(g)
    return shapes, same, tf.random.get_global_generator() is g, other is not g, len({id(first), id(second)})


def images(tf):
    image = tf.reshape(tf.range(16.0), [4, 4, 1])
    return (
        tf.image.resize(image, [2, 2]),
        tf.image.resize(image, [2, 2], method="nearest"),
        tf.image.flip_left_right(image)[0, :, 0],
        tf.image.flip_up_down(image)[:, 0, 0],
        tf.image.central_crop(image, 0.5)[:, :, 0],
        tf.image.crop_to_bounding_box(image, 1, 1, 2, 2)[:, :, 0],
        tf.image.resize_with_crop_or_pad(image, 2, 6)[:, :, 0],
        tf.image.pad_to_bounding_box(image, 1, 0, 6, 4)[:, 0, 0],
        tf.image.convert_image_dtype(tf.constant([[[0, 255]]], tf.uint8), tf.float32),
        tf.image.rot90(image)[:, :, 0],
        tf.image.transpose(image)[:, :, 0],
    )


def colours(tf):
    image = tf.reshape(tf.range(12.0), [2, 2, 3]) / 12.0
    return (
        tf.image.rgb_to_grayscale(image),
        tf.image.grayscale_to_rgb(image[:, :, :1]),
        tf.image.adjust_brightness(image, 0.1),
        tf.image.adjust_contrast(image, 2.0),
        tf.image.per_image_standardization(image),
        tf.image.total_variation(image),
        tf.image.psnr(image, image + 0.1, max_val=1.0),
    )


def random_images(tf):
    image = tf.reshape(tf.range(48.0), [4, 4, 3]) / 48.0
    return [
        np.asarray(made).shape
        for made in (
            tf.image.random_flip_left_right(image, seed=1),
            tf.image.random_flip_up_down(image, seed=1),
            tf.image.random_crop(image, [2, 2, 3], seed=1),
            tf.image.random_brightness(image, 0.2, seed=1),
            tf.image.random_contrast(image, 0.5, 1.5, seed=1),
            tf.image.stateless_random_flip_left_right(image, seed=[1, 2]),
            tf.image.stateless_random_crop(image, [2, 2, 3], seed=[1, 2]),
        )
    ]


def files(tf):
    path = str(pathlib.Path(tempfile.mkdtemp()) / "image.png")
    image = tf.constant(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    tf.io.write_file(path, tf.io.encode_png(image))
    data = tf.io.read_file(path)
    return (
        tf.io.decode_png(data),
        tf.io.decode_image(data),
        tf.image.decode_png(data, channels=1).shape[-1],
        tf.io.decode_png(data, channels=3).dtype.name,
        tf.io.gfile.exists(path),
    )


def jpegs(tf):
    path = str(pathlib.Path(tempfile.mkdtemp()) / "image.jpg")
    image = tf.constant(np.full((8, 8, 3), 100, np.uint8))
    tf.io.write_file(path, tf.io.encode_jpeg(image))
    decoded = tf.image.decode_jpeg(tf.io.read_file(path), channels=3)
    return decoded.shape[0], bool(np.abs(np.asarray(decoded, int) - 100).max() < 4)


def decoded_numbers(tf):
    return tf.io.decode_raw(b"\x01\x00\x02\x00", tf.int16), tf.io.decode_raw(b"\x01\x02", tf.uint8)


def moving_average(tf):
    average = tf.train.ExponentialMovingAverage(decay=0.9)
    v = tf.Variable(1.0)
    average.apply([v])
    v.assign(2.0)
    average.apply([v])
    return average.average(v), average.name


def moving_average_by_steps(tf):
    step, v = tf.Variable(0), tf.Variable([1.0, 2.0])
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
    average.apply([v])
    v.assign([3.0, 4.0])
    step.assign(5)
    average.apply([v])
    return average.average(v)


def windows(tf):
    dataset = tf.data.Dataset.range(7)
    return [
        [[int(x) for x in window] for window in dataset.window(3)],
        [[int(x) for x in window] for window in dataset.window(3, drop_remainder=True)],
        [[int(x) for x in window] for window in dataset.window(2, shift=1, stride=2, drop_remainder=True)],
        [np.asarray(x) for x in dataset.window(2).flat_map(lambda window: window.batch(2))],
    ]


def scans(tf):
    dataset = tf.data.Dataset.range(5)
    summed = dataset.scan(np.int64(0), lambda state, x: (state + x, state))
    return [int(x) for x in summed]


def other_datasets(tf):
    data = tf.data.Dataset
    return {
        "rebatch": [np.asarray(x) for x in data.range(6).batch(4).rebatch(3)],
        "rebatch list": [np.asarray(x) for x in data.range(8).batch(4).rebatch([2, 1])],
        "take_while": [int(x) for x in data.range(9).take_while(lambda x: x < 3)],
        "unique": sorted(int(x) for x in data.from_tensor_slices([3, 1, 3, 2, 1]).unique()),
        "choose": [
            int(x)
            for x in data.choose_from_datasets(
                [data.range(3), data.range(10, 13)],
                data.from_tensor_slices(np.array([0, 1, 1, 0], np.int64)),
            )
        ],
        "counter": [int(x) for x in data.counter(2, 3).take(3)],
        "from_list": [int(x) for x in data.from_tensor_slices([4, 5])],
        "single": int(data.range(1).get_single_element()),
        "random": len(list(data.random(seed=1).take(4))),
    }


def sampled_datasets(tf):
    data = tf.data.Dataset
    mixed = data.sample_from_datasets([data.range(3), data.range(10, 13)], weights=[0.5, 0.5], seed=1)
    return sorted(int(x) for x in mixed)


def grouped_datasets(tf):
    data = tf.data.Dataset.range(6).group_by_window(
        key_func=lambda x: x % 2, reduce_func=lambda key, window: window.batch(3), window_size=3
    )
    return [np.asarray(x) for x in data]


def more_math(tf):
    x = tf.constant([0.5, 1.5, 2.5])
    return (
        tf.math.top_k(x, 2)[0],
        tf.math.cumprod(x),
        tf.math.count_nonzero(tf.constant([0, 1, 2])),
        tf.math.reduce_euclidean_norm(x),
        tf.math.divide_no_nan(x, tf.constant([1.0, 0.0, 2.0])),
        tf.math.segment_sum(x, tf.constant([0, 0, 1])),
        tf.math.unsorted_segment_sum(x, tf.constant([1, 0, 1]), 2),
        tf.math.in_top_k([1, 0], [[0.1, 0.9], [0.1, 0.9]], 1),
        tf.math.bincount(tf.constant([1, 1, 2])),
        tf.math.accumulate_n([x, x]),
        tf.math.softplus(x),
        tf.math.sinh(x),
        tf.math.atan2(x, x),
        tf.math.polyval([1.0, 2.0], 3.0),
        tf.math.lgamma(x),
        tf.math.digamma(x),
        tf.math.xlogy(x, x),
        tf.math.is_non_decreasing(x),
        tf.math.zero_fraction(tf.constant([0.0, 1.0])),
        tf.searchsorted([1.0, 2.0, 3.0], [2.5]),
        tf.math.conj(x),
    )


def more_arrays(tf):
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    return (
        tf.linalg.diag_part(x),
        tf.linalg.band_part(x, 0, -1),
        tf.linalg.trace(x),
        tf.linalg.det(x),
        tf.linalg.inv(x),
        tf.linalg.solve(x, [[1.0], [2.0]]),
        tf.linalg.matvec(x, [1.0, 1.0]),
        tf.linalg.matrix_transpose(x),
        tf.linalg.cholesky(tf.constant([[4.0, 2.0], [2.0, 3.0]])),
        tf.sequence_mask([1, 3], 3),
        tf.unique(tf.constant([3, 1, 3]))[0],
        tf.histogram_fixed_width([0.0, 1.0, 5.0], [0.0, 6.0], nbins=3),
        tf.strided_slice([1, 2, 3, 4], [1], [4], [2]),
        tf.nn.depth_to_space(tf.reshape(tf.range(4.0), [1, 1, 1, 4]), 2),
        tf.nn.space_to_depth(tf.reshape(tf.range(4.0), [1, 2, 2, 1]), 2),
        tf.clip_by_value(x, 1.5, 3.5),
        tf.foldl(lambda a, b: a + b, x),
        tf.scan(lambda a, b: a + b, x),
        tf.vectorized_map(lambda row: tf.reduce_sum(row), x),
        tf.ones_like(x, dtype=tf.int32),
        tf.cumsum(x, axis=1),
        tf.reduce_logsumexp(x),
    )


def more_nn(tf):
    x = tf.reshape(tf.range(8.0), [1, 8, 1])
    image = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
    return (
        tf.nn.conv1d(x, tf.ones([2, 1, 1]), 1, "SAME")[0, :, 0],
        tf.nn.depthwise_conv2d(image, tf.ones([2, 2, 1, 1]), [1, 1, 1, 1], "VALID")[0, :, :, 0],
        tf.nn.conv2d_transpose(image[:, :2, :2], tf.ones([2, 2, 1, 1]), [1, 4, 4, 1], 2, "SAME")[
            0, :, :, 0
        ],
        tf.nn.max_pool(image, 2, 2, "VALID")[0, :, :, 0],
        tf.nn.avg_pool(image, 2, 2, "VALID")[0, :, :, 0],
        tf.nn.in_top_k([1], [[0.1, 0.9]], 1),
        tf.nn.crelu(tf.constant([-1.0, 1.0])),
        tf.nn.softsign(tf.constant([1.0])),
        tf.nn.weighted_cross_entropy_with_logits([1.0], [0.5], 2.0),
        tf.nn.zero_fraction(tf.constant([0.0, 1.0])),
        tf.nn.log_poisson_loss([1.0], [0.5]),
    )


def python_functions(tf):
    @tf.function
    def step(x):
        y = tf.numpy_function(lambda a: a * np.float32(2), [x], tf.float32)
        z = tf.py_function(lambda a: a + 1.0, [x], tf.float32)
        return y, z

    return step(tf.constant([1.0, 2.0]))


def names_that_are_missing(tf):
    if not tf.__name__.startswith("replicax"):
        return ["AttributeError"]
    return sorted({raised(lambda name=name: getattr(tf, name)) for name in ("saved_model", "no_such_name")})


def records_of_examples(tf):
    path = str(pathlib.Path(tempfile.mkdtemp()) / "examples.tfrecord")
    train = tf.train
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(3):
            feature = {
                "label": train.Feature(int64_list=train.Int64List(value=[i - 1])),
                "image": train.Feature(float_list=train.FloatList(value=np.arange(4) / 4 + i)),
                "name": train.Feature(bytes_list=train.BytesList(value=[b"n%d" % i])),
                "words": train.Feature(int64_list=train.Int64List(value=range(1000 * i))),
            }
            example = train.Example(features=train.Features(feature=feature))
            writer.write(example.SerializeToString())
    description = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        "image": tf.io.FixedLenFeature([2, 2], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
        "words": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
        "weight": tf.io.FixedLenFeature([2], tf.float32, default_value=[1.0, 2.0]),
    }
    dataset = tf.data.TFRecordDataset(path)
    parsed = [
        (x["label"], x["image"], x["weight"], len(x["words"]), x["name"].numpy().decode())
        for x in dataset.map(lambda record: tf.io.parse_single_example(record, description))
    ]
    some = {"label": description["label"], "image": description["image"]}
    batch = next(iter(dataset.batch(3).map(lambda records: tf.io.parse_example(records, some))))
    again = train.Example.FromString(next(iter(dataset)).numpy())
    bad = {"label": tf.io.FixedLenFeature([2], tf.int64)}
    return (
        parsed,
        batch["image"],
        list(again.features.feature["label"].int64_list.value),
        raised(lambda: list(dataset.map(lambda x: tf.io.parse_single_example(x, bad)))) != "nothing",
    )


def more_colours(tf):
    image = tf.constant(np.abs(np.sin(np.arange(36.0))).reshape(3, 4, 3).astype(np.float32))
    coarse = tf.cast(image * 255, tf.uint8)
    return (
        tf.image.rgb_to_hsv(image),
        tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(image)),
        tf.image.adjust_hue(image, 0.3),
        tf.image.adjust_saturation(image, 1.5),
        tf.image.adjust_gamma(image, 2.0, 0.5),
        tf.image.rgb_to_yuv(image),
        tf.image.yiq_to_rgb(tf.image.rgb_to_yiq(image)),
        tf.image.resize_with_pad(image, 6, 4)[:, :, 0],
        bool(tf.reduce_all(tf.image.adjust_saturation(coarse, 1.0) <= 255)),
    )


def more_random_images(tf):
    image = tf.constant(np.full((4, 4, 3), 0.5, np.float32))
    return [
        np.asarray(made).shape
        for made in (
            tf.image.random_hue(image, 0.2, seed=1),
            tf.image.random_saturation(image, 0.5, 1.5, seed=1),
            tf.image.stateless_random_brightness(image, 0.2, seed=(1, 2)),
            tf.image.stateless_random_contrast(image, 0.5, 1.5, seed=(1, 2)),
            tf.image.stateless_random_hue(image, 0.2, seed=(1, 2)),
            tf.image.stateless_random_saturation(image, 0.5, 1.5, seed=(1, 2)),
        )
    ]


def initializers(tf):
    drawn = np.asarray(tf.random_normal_initializer(1.0, 0.1, seed=1)(shape=[1000]))
    uniform = np.asarray(tf.random_uniform_initializer(2.0, 3.0, seed=1)(shape=[10]))
    return (
        tf.zeros_initializer()(shape=[2], dtype=tf.int32),
        tf.ones_initializer()([1, 2]),
        tf.constant_initializer(3.0)(shape=[2]),
        tf.constant_initializer([1, 2, 3, 4])(shape=[2, 2], dtype=tf.float32),
        bool(abs(drawn.mean() - 1) < 0.02),
        bool(((uniform >= 2) & (uniform < 3)).all()),
    )


def checks(tf):
    check, invalid = tf.debugging, tf.errors.InvalidArgumentError
    x = tf.constant([1.0, -2.0])
    return (
        raised(lambda: check.assert_positive(x), invalid),
        raised(lambda: check.assert_non_negative(tf.abs(x))),
        raised(lambda: check.assert_none_equal(x, [3.0, -2.0]), invalid),
        raised(lambda: check.assert_rank(x, 2), ValueError),
        raised(lambda: tf.assert_rank(x, 1)),
        raised(lambda: check.assert_rank_at_least(x, 2), ValueError),
        raised(lambda: check.assert_rank_in(x, [1, 2])),
        raised(lambda: check.assert_scalar(x), ValueError),
        raised(lambda: check.assert_type(x, tf.int32), TypeError),
        raised(lambda: check.assert_integer(x), TypeError),
        raised(lambda: check.assert_all_finite(x / 0.0, "no"), invalid),
        raised(lambda: tf.Assert(tf.reduce_all(x > 0), [x]), invalid),
        raised(lambda: tf.Assert(tf.reduce_all(x < 2), [x])),
    )


def more_matrices(tf):
    x = tf.constant([[3.0, 4.0], [0.0, 2.0]])
    unit, size = tf.linalg.normalize(x, axis=1)
    return (
        unit,
        size,
        tf.linalg.normalize(x)[1],
        tf.linalg.set_diag(x, [7.0, 8.0]),
        tf.linalg.tensor_diag([1.0, 2.0]),
        tf.linalg.cross([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
        tf.linalg.adjoint(x),
        tf.constant(1.0, tf.half).dtype == tf.float16,
    )
