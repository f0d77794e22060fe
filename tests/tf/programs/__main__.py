"""Records the results of TensorFlow."""

import json
import sys
import traceback
from fnmatch import fnmatch

import tensorflow as tf

from . import SUBJECTS
from .running import DATA, plain, programs_of, recorded

# Each replica blocks a thread in a collective operation; by default there are as many threads as cores.
tf.config.threading.set_inter_op_parallelism_threads(16)
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 4)
chosen = sys.argv[1:]
for subject in SUBJECTS:
    programs, results = programs_of(subject), recorded(subject)
    results = {name: result for name, result in results.items() if name in programs}
    for name, program in programs.items():
        if chosen and not any(fnmatch(x, pattern) for x in (subject, name) for pattern in chosen):
            continue
        try:
            results[name] = plain(program(tf))
        except Exception:
            print(f"{subject}.{name}:")
            traceback.print_exc(limit=-3)
    ordered = {name: results[name] for name in programs if name in results}
    lines = ",\n".join(f'  "{name}": {json.dumps(result)}' for name, result in ordered.items())
    (DATA / f"programs_{subject}.json").write_text(f"{{\n{lines}\n}}\n")
