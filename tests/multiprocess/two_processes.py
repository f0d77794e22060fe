"""The program that both processes run; see `test_two_processes.py`.

Four replicas: 0 and 1 in the first process, 2 and 3 in the second. Every function whose name begins
with `check_` is called, with a strategy and with a decorator that compiles a step or leaves it eager.
"""

import os
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
import replicax.errors


def process():
    return jax.process_index()


def local_ids():
    return 2 * process(), 2 * process() + 1


def equal(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-6)


def rows_seen(strategy, dataset):
    """What the replicas of this process get, step by step."""
    return [[part.tolist() for part in strategy.local_results(batch)] for batch in dataset]


def check_a_dataset_is_split_over_both_processes(strategy, mode):
    dataset = strategy.distribute_dataset(rx.from_arrays(np.arange(16)).batch(8))
    first = 4 * process()
    assert rows_seen(strategy, dataset) == [
        [[first, first + 1], [first + 2, first + 3]],
        [[first + 8, first + 9], [first + 10, first + 11]],
    ]
    total = mode(lambda batch: strategy.reduce("SUM", batch, axis=0))
    assert [int(total(batch)) for batch in dataset] == [28, 92]


def check_padded_batches_over_both_processes(strategy, mode):
    arrays = rx.from_arrays(np.arange(1.0, 12.0, dtype=np.float32)).batch(8)
    dataset = strategy.distribute_dataset(arrays, rx.InputOptions(partial_batch="pad"))
    step = mode(lambda x: strategy.reduce("MEAN", strategy.run(lambda x: 2 * x, args=(x,)), axis=0))
    assert [float(step(batch)) for batch in dataset] == [9.0, 20.0]


def check_batches_that_do_not_divide_evenly(strategy, mode):
    """Replicas get 3, 3, 2, 2 rows, then 3, 2, 2, 2, then 1, 1, 0, 0."""
    rows = [np.arange(10.0), np.arange(9.0) + 10, np.arange(2.0) + 30]
    dataset = strategy.distribute_dataset([x.astype(np.float32) for x in rows])

    @mode
    def step(batch):
        doubled = strategy.run(lambda x: 2 * x, args=(batch,))
        count = strategy.run(lambda x: jnp.float32(x.shape[0]), args=(batch,))
        return strategy.reduce("MEAN", batch, axis=0), strategy.reduce("SUM", count, axis=None), doubled

    for batch, whole in zip(dataset, rows, strict=True):
        mean, count, doubled = step(batch)
        equal(mean, whole.mean())
        equal(count, len(whole))
        sizes = [len(part) for part in np.array_split(whole, 4)]
        assert [len(part) for part in strategy.local_results(doubled)] == [sizes[i] for i in local_ids()]
        equal(strategy.gather(batch, axis=0), whole)
        equal(strategy.gather(doubled, axis=0), 2 * whole)
        if mode is rx.function:
            again = rx.function(lambda x: strategy.reduce("SUM", x, axis=0))
            equal(again(doubled), 2 * whole.sum())


def check_processes_with_their_own_data(strategy, mode):
    def dataset_fn(context):
        assert context == rx.InputContext(2, process(), 4)
        start = 100 * process()
        return rx.from_arrays(np.arange(start, start + 4 * (2 - process()))).batch(2)

    dataset = strategy.distribute_datasets_from_function(dataset_fn, rx.InputOptions(partial_batch="pad"))
    total = mode(lambda batch: strategy.reduce("SUM", batch, axis=0))
    # The second process has data for one step only; in the other step its batches are empty.
    assert [int(total(batch)) for batch in dataset] == [6 + 406, 22]


def check_a_reader_that_fails_in_one_process(strategy, mode):
    def dataset_fn(context):
        yield np.arange(2)
        yield np.arange(2)
        if process() == 1:
            raise OSError("no disk")
        while True:
            yield np.arange(2)

    try:
        for _ in strategy.distribute_datasets_from_function(dataset_fn):
            pass
    except (OSError, rx.errors.InputError) as error:
        assert str(error) == "no disk" or "pipeline 1 failed" in str(error), error
    else:
        raise AssertionError("no error")


def passes(name, mode_name, mode, strategy):
    try:
        globals()[name](strategy, mode)
    except Exception:
        print("FAILED", name, mode_name)
        traceback.print_exc(file=sys.stdout)
        return False
    print("passed", name, mode_name)
    return True


def main():
    from launch import join_cluster

    join_cluster(devices_per_process=2)
    strategy = rx.MirroredStrategy(devices=jax.devices())
    modes = {"eager": lambda step: step, "compiled": rx.function}
    checks = [name for name in globals() if name.startswith("check_")]
    results = [
        passes(name, mode_name, mode, strategy) for name in checks for mode_name, mode in modes.items()
    ]
    if not all(results):
        os._exit(1)  # an orderly end would wait for the other process
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
