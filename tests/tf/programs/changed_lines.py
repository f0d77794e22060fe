"""How many lines of the notebooks' programs a port changes.

    python -m tests.tf.programs.changed_lines [SRC]

A line has to change if it uses a name that `replicax.tf` does not have, or calls something that such a name
made, as `tape.gradient` does. The line with the import changes in any case. SRC is the folder `src` of
another version of Replicax, made by `git worktree add`; without it, this version is used. The last
column tells whether the program runs unchanged on two replicas, apart from the import.
"""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap

from . import notebooks
from .running import recorded

_FIND = """
import json, sys
import replicax.tf as tf
def has(name):
    thing = tf
    try:
        for part in name.split('.')[1:]:
            thing = getattr(thing, part)
    except AttributeError:
        return False
    return True
print(json.dumps([name for name in json.load(sys.stdin) if not has(name)]))
"""

_RUN = """
import sys
import replicax as rx
rx.set_cpu_devices(4)
import replicax.tf as tf
from tests.tf.programs.running import plain, programs_of
plain(programs_of('notebooks')[sys.argv[1]](tf))
"""


def dotted(node):
    """`tf.a.b` of an expression that is such a name, else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(["tf", *reversed(parts)]) if isinstance(node, ast.Name) and node.id == "tf" else None


def names_in(tree):
    """The longest names that begin with `tf.`, each with its lines."""
    found, inner = {}, set()
    for node in ast.walk(tree):
        name = dotted(node) if isinstance(node, ast.Attribute) else None
        if name is not None and node not in inner:
            found.setdefault(name, set()).add(node.lineno)
        if name is not None:
            inner |= {part for part in ast.walk(node) if part is not node}
    return found


def made_by(tree, missing):
    """The variables that hold what a missing name made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            made, variable = node.context_expr, node.optional_vars.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made, variable = node.value, node.targets[0].id
        else:
            continue
        if isinstance(made, ast.Call) and dotted(made.func) in missing:
            yield variable


def lines_to_change(tree, missing):
    lines = {line for name, at in names_in(tree).items() if name in missing for line in at}
    variables = {*made_by(tree, missing)}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(value, ast.Name) and value.id in variables:
            lines.add(node.lineno)
    return lines


def python(code, source, *args, **options):
    path = os.pathsep.join([source, os.getcwd()])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **options)


def error_in(traceback):
    """The last line of a traceback that has an error."""
    lines = [line for line in traceback.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return f"no: {lines[-1][:90]}" if lines else "no"


def main(source):
    programs = {name.removesuffix("_2") for name in recorded("notebooks") if name.endswith("_2")}
    print("| program | lines | lines that change | runs |\n| --- | --- | --- | --- |")
    for name in sorted(programs):
        text = textwrap.dedent(inspect.getsource(notebooks.PROGRAMS[name]))
        tree = ast.parse(text)
        given = json.dumps([*names_in(tree)])
        missing = json.loads(python(_FIND, source, input=given, check=True).stdout)
        ran = python(_RUN, source, f"{name}_2")
        why = "yes" if ran.returncode == 0 else error_in(ran.stderr)
        count = 1 + len(lines_to_change(tree, missing))
        print(f"| {name} | {len(text.splitlines())} | {count} | {why} |", flush=True)


if __name__ == "__main__":
    here = os.path.join(os.getcwd(), "src")
    main(os.path.abspath(sys.argv[1]) if sys.argv[1:] else here)
