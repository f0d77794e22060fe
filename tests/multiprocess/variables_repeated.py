"""Creates many large variables in several processes, again and again, and counts wrong initial values.

    python -m tests.multiprocess.variables_repeated --runs 100

Each run starts new processes. The values of each process differ, so that all of them are broadcast.
"""

import argparse

import jax
import numpy as np
from tests.multiprocess import variables_repeated  # workers can't import from `__main__`

import replicax as rx
from replicax import testing

NUM_VARIABLES, SIZE = 20, 200_000


def count_wrong_values():
    """In a worker: create the variables as quickly as possible; returns how many have a wrong value."""
    strategy = rx.MultiWorkerMirroredStrategy()
    values = [np.full(SIZE, i + 1000 * jax.process_index(), np.float32) for i in range(NUM_VARIABLES)]
    with strategy.scope():
        rx.Variable(np.full(SIZE, -1.0 - jax.process_index(), np.float32))  # compiles the broadcast
        variables = [rx.Variable(value) for value in values]
    expected = [np.full(SIZE, i, np.float32) for i in range(NUM_VARIABLES)]
    return sum(not np.array_equal(v.numpy(), e) for v, e in zip(variables, expected, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    wrong = failed = 0
    for run in range(arguments.runs):
        try:
            wrong += sum(testing.run(variables_repeated.count_wrong_values, num_workers=arguments.workers))
        except rx.errors.RunFailedError as error:
            failed += 1
            print(f"run {run} failed: {error}", flush=True)
    total = arguments.runs * arguments.workers * NUM_VARIABLES
    print(f"{arguments.runs} runs: {wrong} of {total} variables have a wrong value; {failed} runs failed")


if __name__ == "__main__":
    main()
