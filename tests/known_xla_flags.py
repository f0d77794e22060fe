"""Print those of the XLA flags given as arguments that the installed jaxlib knows.

XLA aborts a process that has an unknown flag in XLA_FLAGS, and flags come and go between versions. XLA has
no list of its flags, so they are tried in a process: all of them, and if it aborts, one after the other.
"""

import os
import subprocess
import sys


def is_known(*flags):
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode and "Unknown flag" not in done.stderr:
        sys.exit(f"JAX does not start with XLA_FLAGS={' '.join(flags)}:\n{done.stderr}")
    return done.returncode == 0


if __name__ == "__main__":
    flags = sys.argv[1:]
    print(*(flags if is_known(*flags) else filter(is_known, flags)))
