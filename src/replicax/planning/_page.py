"""The HTML page of an explanation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replicax._page import page

__all__ = ["explanation_page"]


def explanation_page(explanation: dict[str, Any]) -> str:
    return page(Path(__file__).with_name("page.html"), _extract_patterns(explanation))


def _extract_patterns(explanation: dict[str, Any]) -> dict[str, Any]:
    """Move the placements of variables to a list without repetitions, `patterns`."""
    patterns: dict[tuple[int, ...], int] = {}
    variables = [
        {**v, "holders": patterns.setdefault(v["holders"], len(patterns))} for v in explanation["variables"]
    ]
    return {**explanation, "variables": variables, "patterns": list(patterns)}
