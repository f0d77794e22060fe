"""Pages for a browser: each is one file, with its data and without a network.

A template has three places: `{{style}}` and `{{script}}` are what all pages share (`page.css`, `page.js`),
and `{{data}}` is what this page shows, as JSON.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["frame", "page", "save_page"]


def page(template: Path, data: dict[str, Any]) -> str:
    """A template filled with data, as HTML."""
    text = template.read_text(encoding="utf-8")
    for place, name in (("{{style}}", "page.css"), ("{{script}}", "page.js")):
        text = text.replace(place, Path(__file__).with_name(name).read_text(encoding="utf-8"))
    # Last, since data may contain a placeholder; a name in it may contain "</script>".
    return text.replace("{{data}}", json.dumps(data).replace("<", "\\u003c"))


def save_page(html: str, path: str | PathLike[str]) -> Path:
    """Write a page to a file; returns its path."""
    path = Path(path)
    path.write_text(html, encoding="utf-8")
    return path


def frame(html: str) -> str:
    """A page in a frame, for a notebook."""
    from html import escape

    return f'<iframe srcdoc="{escape(html)}" style="width:100%;height:900px;border:0"></iframe>'
