"""Checks an installed package, outside of the repository, as `make test-package` does.

It uses nothing but what `pip install` has put there.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import replicax as rx
from replicax import _native


def check_files() -> None:
    folder = Path(rx.__file__).parent
    assert folder.is_relative_to(sys.prefix), f"{folder} is not in this environment"
    assert (folder / "py.typed").exists()
    assert rx.__version__ == importlib.metadata.version("replicax")
    assert _native.is_built or shutil.which("cc") is None, "the C module is missing"


def check_description() -> None:
    text = importlib.metadata.metadata("replicax")["Description"]
    assert "tf.distribute" in text
    assert not re.search(r"\]\((?!https?:)", text), "a link that is broken on the page of a package index"


def check_training() -> None:
    rx.set_cpu_devices(2)
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        w = rx.Variable(jnp.zeros(4))
        optimizer = rx.Optimizer(optax.sgd(0.1))

    def replica_step(x: jax.Array) -> jax.Array:
        return optimizer.minimize(lambda: rx.compute_average_loss((x @ w - 1.0) ** 2), [w])

    @rx.function
    def train_step(batch: jax.Array) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    batches = strategy.distribute_dataset(rx.from_arrays(jnp.eye(4)).batch(4).repeat(50))
    losses = [float(train_step(batch)) for batch in batches]
    assert losses[-1] < 0.1 * losses[0], losses


def check_command_line() -> None:
    command = [sys.executable, "-m", "replicax", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith(f"replicax {rx.__version__} "), printed


if __name__ == "__main__":
    check_files()
    check_description()
    check_training()
    check_command_line()
    print(f"replicax {rx.__version__} in {sys.prefix} works")
