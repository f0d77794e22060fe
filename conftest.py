"""Eight CPU devices for every test and doctest, asked for before anything uses JAX."""

import os

import replicax

replicax.set_cpu_devices(8)
os.environ["KERAS_BACKEND"] = "jax"

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

jax.devices()  # starts JAX, so that no test can change the devices of the others

# The same examples in every run; `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("repeat", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("repeat")


@pytest.fixture(autouse=True)
def _names_in_doctests(doctest_namespace):
    doctest_namespace.update(rx=replicax, jax=jax, jnp=jnp, np=np)
