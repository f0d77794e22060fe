"""HTML pages: each is one self-contained file, with its data, that needs no network.

A template has three placeholders: `{{style}}` and `{{script}}` are shared by all pages (`page.css`,
`page.js`), and `{{data}}` is what this page shows, as JSON.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["frame", "page", "save_page"]


def page(template: Path, data: dict[str, Any]) -> str:
    """Fill a template with data; returns HTML."""
    text = template.read_text(encoding="utf-8")
    for place, name in (("{{style}}", "page.css"), ("{{script}}", "page.js")):
        text = text.replace(place, Path(__file__).with_name(name).read_text(encoding="utf-8"))
    # Last, because the data may contain a placeholder. Escaped, because a name may contain "</script>".
    return text.replace("{{data}}", json.dumps(data).replace("<", "\\u003c"))


def save_page(html: str, path: str | PathLike[str]) -> Path:
    """Write a page to a file; returns its path."""
    path = Path(path)
    path.write_text(html, encoding="utf-8")
    return path


def frame(html: str) -> str:
    """A page in an iframe, for a notebook."""
    from html import escape

    return f'<iframe srcdoc="{escape(html)}" style="width:100%;height:900px;border:0"></iframe>'
