"""The page that shows a report in a browser: one file, with its data and without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["page"]


def page(report: dict[str, Any]) -> str:
    """The page for a report, as HTML."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps(report).replace("<", "\\u003c")  # a name may have "</script>"
    return template.replace("{{data}}", data)
