"""Small programs that run with TensorFlow and with `replicax.tf`, and TensorFlow's results.

Each module has the programs of one subject: functions of `tf` that return a structure of numbers, strings
and arrays. In an environment with TensorFlow, `python -m tests.tf.programs` runs them there and writes the
results to `tests/tf/data/programs_*.json`; patterns of names as arguments choose some of them.
`tests/tf/test_programs.py` runs them with `replicax.tf` and compares.
"""

SUBJECTS = (
    "variables",
    "values",
    "errors",
    "strategies",
    "names",
    "checkpoints",
    "keras_models",
    "notebooks",
)
