"""The page that shows an explanation in a browser: one file, with its data and without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["page"]


def page(explanation: dict[str, Any]) -> str:
    """The page for an explanation, as HTML."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps(_with_patterns(explanation)).replace("<", "\\u003c")  # a name may have "</script>"
    return template.replace("{{data}}", data)


def _with_patterns(explanation: dict[str, Any]) -> dict[str, Any]:
    """The same, with each way to place a variable on the devices only once, in a list of `patterns`."""
    patterns: dict[tuple[int, ...], int] = {}
    variables = [
        {**v, "holders": patterns.setdefault(v["holders"], len(patterns))} for v in explanation["variables"]
    ]
    return {**explanation, "variables": variables, "patterns": list(patterns)}
