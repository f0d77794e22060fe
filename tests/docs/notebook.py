"""Runs a notebook without Jupyter: each cell in order, as its kernel would, with what it shows.

`python -m tests.docs.notebook` writes the outputs into the notebook; a test compares them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "docs" / "quick_start_notebook.ipynb"


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of all code cells, run one after the other in a new namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run("".join(cell["source"]), names, number) for number, cell in enumerate(cells, 1)]


def _run(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names) if last else None
    found = [_printed(printed.getvalue())] if printed.getvalue() else []
    return found if value is None else [*found, _shown(value, number)]


def _printed(text: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}


def _shown(value: Any, number: int) -> dict[str, Any]:
    texts = value._repr_mimebundle_() if hasattr(value, "_repr_mimebundle_") else {}
    if hasattr(value, "_repr_html_"):
        texts.setdefault("text/html", value._repr_html_())
    if "text/plain" not in texts:
        texts["text/plain"] = repr(value)
    data = {kind: text.splitlines(keepends=True) for kind, text in texts.items()}
    return {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}


def written(notebook: dict[str, Any]) -> str:
    """The text of the notebook with its outputs."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, found) in enumerate(zip(cells, outputs(notebook), strict=True), 1):
        cell["execution_count"], cell["outputs"] = number, found
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(written(json.loads(NOTEBOOK.read_text())))
