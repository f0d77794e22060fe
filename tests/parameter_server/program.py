"""A cluster of two servers and two workers; prints one line of JSON for each scenario.

A program of its own: Ray leaves threads behind in the process that starts it.
"""

import contextlib
import json
import logging
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from replicax.parameter_server._staleness import StalenessLimit

# Silence is no failure here: the machine may be slow.
OPTIONS = {"snapshot_seconds": 0.5, "heartbeat_timeout_seconds": 250.0}


def start(num_ps=2, num_workers=2, **kwargs):
    strategy = rx.ParameterServerStrategy(num_ps=num_ps, num_workers=num_workers, **{**OPTIONS, **kwargs})
    return strategy, rx.ClusterCoordinator(strategy)


def regression(seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(32, 6)), rng.normal(size=(32, 3))
    w, b = rng.normal(size=(6, 3)), np.zeros(3)
    return [jnp.asarray(array, jnp.float32) for array in (x, y, w, b)]


def as_plain_optax(strategy, coordinator, folder):
    """Steps one after the other, on two servers with a divided matrix, equal those of plain optax."""
    x, y, w0, b0 = regression()
    with strategy.scope():
        params = {"w": rx.Variable(w0, name="w"), "b": rx.Variable(b0, name="b")}
        optimizer = rx.Optimizer(optax.adam(0.05))
        seen = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM, name="seen")
        mean = rx.Mean("loss")

    @rx.function
    def step(batch):
        def replica_step(batch):
            x, y = batch

            def loss_fn():
                return rx.compute_average_loss(jnp.sum((x @ params["w"] + params["b"] - y) ** 2, -1))

            loss = optimizer.minimize(loss_fn, params)
            mean.update_state(loss)
            seen.assign_add(float(len(x)))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    def train(batch):
        return step(strategy.distribute_batch(batch))

    plain = {"w": w0, "b": b0}
    transformation = optax.adam(0.05)
    state = transformation.init(plain)

    @jax.jit
    def plain_step(params, state):
        loss, gradients = jax.value_and_grad(
            lambda p: jnp.mean(jnp.sum((x @ p["w"] + p["b"] - y) ** 2, -1))
        )(params)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    off = 0.0
    for _ in range(5):
        value = coordinator.schedule(train, args=((np.asarray(x), np.asarray(y)),))
        coordinator.join()
        plain, state, loss = plain_step(plain, state)
        off = max(off, abs(float(loss) - float(value.fetch())))
        off = max(off, *(float(np.abs(plain[k] - params[k].numpy()).max()) for k in plain))
    slots = {slot.name: slot.numpy() for slot in optimizer.slots}
    off = max(off, float(np.abs(slots["optimizer/0/mu/w:0"] - state[0].mu["w"]).max()))
    parts = len(params["w"].layout.placement.parts)
    servers = sorted({part.server for v in params.values() for part in v.layout.placement.parts})
    checkpoint = rx.Checkpoint(params=params, optimizer=optimizer)
    path = checkpoint.save(f"{folder}/checkpoint")
    with rx.MirroredStrategy(["CPU:0"]).scope():
        other = {"w": rx.Variable(w0, name="w"), "b": rx.Variable(b0, name="b")}
        other_optimizer = rx.Optimizer(optax.adam(0.05))
        other_optimizer.build(other)
    rx.Checkpoint(params=other, optimizer=other_optimizer).restore(path)
    same = np.array_equal(other["w"].numpy(), params["w"].numpy())
    other["w"].assign(jnp.ones((6, 3)))
    path = rx.Checkpoint(params=other, optimizer=other_optimizer).save(f"{folder}/back")
    checkpoint.restore(path)
    return {
        "off": off,
        "parts": parts,
        "servers": servers,
        "count": int(slots["optimizer/0/count:0"]),
        "niceness": coordinator.schedule(lambda: os.nice(0)).fetch(),
        "iterations": int(optimizer.iterations.numpy()),
        "seen": float(seen.numpy()),
        "mean": float(mean.result()) > 0,
        "checkpoint": [same, float(params["w"].numpy().sum())],
    }


def digits(strategy, coordinator, folder):
    """Both workers train on their own shuffled dataset, without waiting for each other."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1400], order[1400:]
    keys = jax.random.split(jax.random.key(4), 2)
    with strategy.scope():
        params = {
            "w1": rx.Variable(jax.random.normal(keys[0], (64, 64)) * 0.15),
            "b1": rx.Variable(jnp.zeros(64)),
            "w2": rx.Variable(jax.random.normal(keys[1], (64, 10)) * 0.15),
            "b2": rx.Variable(jnp.zeros(10)),
        }
        optimizer = rx.Optimizer(optax.adam(optax.cosine_decay_schedule(8e-3, 300)))
        accuracy = rx.SparseCategoricalAccuracy("accuracy")

    def logits(x):
        return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]

    def dataset_fn():
        seed = 1 + rx.get_current_worker_index()
        dataset = rx.from_arrays((images[train], labels[train]))
        return dataset.shuffle(seed=seed).repeat().batch(100)

    @rx.function
    def step(iterator):
        def replica_step(batch):
            x, y = batch

            def loss_fn():
                return rx.compute_average_loss(
                    optax.softmax_cross_entropy_with_integer_labels(logits(x), y)
                )

            loss = optimizer.minimize(loss_fn, params)
            accuracy.update_state(y, logits(x))
            return loss

        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce("SUM", losses, axis=None)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(300)]
    coordinator.join()
    losses = [float(x) for x in coordinator.fetch(values)]
    values = rx.read_values(params)
    hidden = jax.nn.relu(images[test] @ values["w1"] + values["b1"])
    found = jnp.argmax(hidden @ values["w2"] + values["b2"], -1)
    return {
        "accuracy": float((found == labels[test]).mean()),
        "training": float(accuracy.result()),
        "losses": [losses[0], losses[-1]],
        "updates": [int(optimizer.iterations.numpy())],
    }


def embedding(strategy, coordinator, folder):
    """Steps with a divided table equal those of plain JAX, and move only the rows that they look up."""
    rng = np.random.default_rng(0)
    table0, w0 = (rng.normal(size=shape).astype(np.float32) for shape in ((1000, 8), 8))
    with strategy.scope():
        table, w = rx.Variable(table0, name="table"), rx.Variable(w0, name="w")
        optimizer = rx.Optimizer(optax.adagrad(0.1))
    optimizer.build([table, w])

    @rx.function
    def step(ids):
        def replica_step(ids):
            return optimizer.minimize(lambda: jnp.mean((table[ids] @ w.value - 1.0) ** 2), [table, w])

        return strategy.run(replica_step, args=(ids,))

    transformation = optax.adagrad(0.1)
    plain = [jnp.asarray(table0), jnp.asarray(w0)]
    state = transformation.init(plain)

    def moved():
        return sum(server["bytes_pulled"] + server["bytes_pushed"] for server in strategy.statistics())

    before, off = moved(), 0.0
    for _ in range(4):
        ids = rng.integers(0, 1000, 10)
        coordinator.schedule(step, args=(ids,))
        coordinator.join()
        gradients = jax.grad(lambda p, ids=ids: jnp.mean((p[0][ids] @ p[1] - 1.0) ** 2))(plain)
        updates, state = transformation.update(gradients, state, plain)
        plain = optax.apply_updates(plain, updates)
    total = moved() - before
    for mine, expected in zip((table, w), plain, strict=True):
        off = max(off, float(np.abs(mine.numpy() - expected).max()))
    return {"off": off, "bytes": total, "parts": len(table.layout.placement.parts)}


def staleness(strategy, coordinator, folder):
    """The staleness of updates by both workers, without a limit and with limits."""
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

    @rx.function
    def step(x):
        total.assign_add(x)

    def histogram():
        counts = [dict(server["staleness"]) for server in strategy.statistics()]
        return counts[total.layout.placement.parts[0].server]

    found = {}
    for most in (None, 0, 1):
        coordinator._limit = StalenessLimit(most)
        before = histogram()
        for _ in range(40):
            coordinator.schedule(step, args=(np.float32(1.0),))
        coordinator.join()
        found[str(most)] = [n for n, count in histogram().items() if count > before.get(n, 0)]
    coordinator._limit = StalenessLimit(None)
    return {"staleness": found, "total": float(total.numpy())}


def failing_function(strategy, coordinator, folder):
    """An error is raised at the next call, with the worker's traceback; what waits is cancelled."""

    def fail():
        raise ValueError("no such file: weights.npz")

    def slow():
        time.sleep(0.2)

    running = [coordinator.schedule(slow) for _ in range(2)]
    failing = coordinator.schedule(fail)
    waiting = [coordinator.schedule(slow) for _ in range(30)]
    result = {}
    try:
        coordinator.join()
    except ValueError as error:
        result["error"] = [str(error), *error.__notes__]
    result["failing"] = failing.status.name
    result["running"] = [value.status.name for value in running]
    result["cancelled"] = sum(value.status.name == "ABORTED" for value in waiting)
    try:
        waiting[-1].fetch()
    except rx.errors.CancelledError as error:
        result["message"] = str(error)
    result["after"] = coordinator.schedule(lambda: rx.get_current_worker_index() in (0, 1)).fetch()
    coordinator.join()
    result["done"] = coordinator.done()
    return result


def mistakes(strategy, coordinator, folder):
    """What newcomers get wrong."""
    with strategy.scope():
        table = rx.Variable(jnp.ones((4, 2)), name="table")
        biases = [rx.Variable(jnp.ones(3), name=f"bias{i}") for i in range(2)]
        clipping = rx.Optimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)))
        rows = rx.Optimizer(optax.scale_by_trust_ratio())

    def create():
        with strategy.scope():
            rx.Variable(1.0)

    remote = coordinator.schedule(lambda: 1)
    attempts = {
        "global norm": lambda: clipping.build(biases),
        "divided": lambda: rows.build([table]),
        "creates": lambda: coordinator.schedule(create).fetch(),
        "remote value": lambda: coordinator.schedule(lambda x: x, args=(remote,)),
        "second": lambda: rx.ClusterCoordinator(strategy, max_queued=5),
        "strategy": lambda: rx.ClusterCoordinator(rx.OneDeviceStrategy("CPU:0")),
        "next": lambda: next(coordinator.create_per_worker_resource(list)),
    }
    messages = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(rx.errors.ContextError):
            coordinator.join()
    return messages


def keras_model(units=16):
    import keras

    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(units, activation="relu", kernel_regularizer="l2")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    model.compile(keras.optimizers.Adam(0.02), loss="mse", metrics=["mae"])
    return model


def keras_fit(strategy, coordinator, folder):
    """`fit`: one step at a time like plain Keras; then with a dataset in each worker; checkpoints."""
    x, y = (np.asarray(array) for array in regression()[:2])
    plain = keras_model()
    with strategy.scope():
        model = keras_model()
    arguments = {"batch_size": len(x), "epochs": 3, "verbose": 0}
    histories = [m.fit(x, y, **arguments).history for m in (plain, model)]
    off = max(abs(a - b) for k in histories[0] for a, b in zip(*(h[k] for h in histories), strict=True))
    weights = zip(plain.get_weights(), model.get_weights(), strict=True)
    off = max(off, *(float(np.abs(a - b).max()) for a, b in weights))

    def dataset_fn(context):
        batch_size = context.get_per_replica_batch_size(len(x))
        return rx.from_arrays((x, y)).shuffle(seed=0).repeat().batch(batch_size)

    history = model.fit(dataset_fn, epochs=2, steps_per_epoch=5, verbose=0).history
    iterations = int(model.optimizer.iterations.numpy())
    path = rx.Checkpoint(model=model, optimizer=model.optimizer).save(f"{folder}/keras")
    with rx.MirroredStrategy(["CPU:0"]).scope():
        other = keras_model()
        other.optimizer.build(other.trainable_variables)
    rx.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    same = [np.array_equal(a, b) for a, b in zip(other.get_weights(), model.get_weights(), strict=True)]
    slots = [
        np.array_equal(a.numpy(), b.numpy())
        for a, b in zip(other.optimizer.variables, model.optimizer.variables, strict=True)
    ]
    other.set_weights([np.ones_like(w) for w in other.get_weights()])
    path = rx.Checkpoint(model=other, optimizer=other.optimizer).save(f"{folder}/keras_back")
    rx.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
    return {
        "off": off,
        "history": {name: [float(v) for v in values] for name, values in history.items()},
        "iterations": iterations,
        "same": all(same) and all(slots),
        "back": sum(float(w.sum()) for w in model.get_weights()),
    }


def keras_more(strategy, coordinator, folder):
    """`evaluate`, `predict` and validation; mistakes."""
    x, y = (np.asarray(array) for array in regression()[:2])
    plain = keras_model()
    with strategy.scope():
        model = keras_model()
    evaluated = [m.evaluate(x, y, batch_size=10, verbose=0, return_dict=True) for m in (plain, model)]
    off = max(abs(evaluated[0][k] - evaluated[1][k]) for k in evaluated[0])
    predicted = float(np.abs(plain.predict(x, verbose=0) - model.predict(x, verbose=0)).max())
    history = model.fit(x, y, batch_size=16, validation_data=(x, y), verbose=0).history

    def ends():
        return rx.from_arrays((x, y)).batch(16)

    messages = {}
    attempts = {
        "steps": lambda: model.fit(ends, verbose=0),
        "on batch": lambda: model.train_on_batch(x, y),
        "ends": lambda: model.fit(ends, steps_per_epoch=9, verbose=0),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return {"off": [off, predicted], "history": sorted(history), "messages": messages}


def positions(strategy, coordinator, folder):
    """Where each worker is in its dataset is saved, and new workers take part."""

    def dataset_fn():
        return rx.from_arrays(np.arange(100)).repeat().batch(2)

    def take(iterator, seconds):
        time.sleep(seconds)
        return rx.get_current_worker_index(), [int(x) for x in np.asarray(next(iterator))]

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    first = [coordinator.schedule(take, args=(iterator, 0.05)) for _ in range(6)]
    coordinator.join()
    seen = coordinator.fetch(first)
    checkpoint = rx.Checkpoint(iterator=iterator)
    path = checkpoint.save(f"{folder}/positions")
    more = [coordinator.schedule(take, args=(iterator, 0.0)) for _ in range(6)]
    coordinator.join()
    checkpoint.restore(path)
    again = coordinator.fetch([coordinator.schedule(take, args=(iterator, 0.2)) for _ in range(2)])
    coordinator.join()
    coordinator.add_workers()
    deadline, workers = time.monotonic() + 60, set()
    while 2 not in workers and time.monotonic() < deadline:
        values = [coordinator.schedule(take, args=(iterator, 0.02)) for _ in range(3)]
        workers |= {index for index, _ in coordinator.fetch(values)}
    return {"seen": seen, "again": again, "workers": sorted(workers), "more": len(coordinator.fetch(more))}


def faults(strategy, coordinator, folder):
    """Some faults of tests/parameter_server/faults.py; what does not hold afterwards."""
    import faults as program
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(program)
    place = Path(folder, "faults")
    place.mkdir()
    matrix, problems = program.Matrix(strategy, coordinator, place), {}
    chosen = [("kill", "worker", "pull"), ("kill", "ps", "save")]
    for kind, task, moment in chosen:
        problems[f"{kind} {task}, {moment}"] = matrix.fault(kind, task, moment).problems
    return problems


def survivors(strategy, coordinator, folder):
    """The processes that run some seconds after the strategy has ended."""
    import ray

    actors = [*(server.actor for server in strategy.cluster.servers), *strategy.workers]
    pids = [strategy.cluster.ping(actor) for actor in actors]
    address = ray.nodes()[0]["NodeManagerAddress"]
    strategy.shutdown()
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"started": len(pids), "alive": alive, "address": address}


def main(folder, *scenarios):
    logging.basicConfig(level=logging.WARNING)
    strategy, coordinator = start(variable_partitioner=rx.MinSizePartitioner(16, max_shards=2))
    for name in scenarios:
        begin = time.monotonic()
        result = globals()[name](strategy, coordinator, folder)
        seconds = round(time.monotonic() - begin, 1)
        print("RESULT", json.dumps({"scenario": name, "result": result, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
