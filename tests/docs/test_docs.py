"""The documentation is complete and true: symbols, errors, pages, links, pictures, the quick start."""

import difflib
import importlib
import importlib.util
import inspect
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import replicax as rx
from replicax import cluster, errors
from replicax.compat import v1

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
API = "\n".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md")))
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])


def _documented(module):
    """The names that the API pages document, of a module."""
    names = set()
    for block in re.findall(r"```\{eval-rst\}\n(.*?)```", API, re.DOTALL):
        if f".. names:: {module}\n" in block or f".. automodule:: {module}\n" in block:
            names |= set(importlib.import_module(module).__all__)
        if f".. currentmodule:: {module}\n" in block:
            names |= set(re.findall(r"^\.\. (?:autoclass|autofunction|data):: (\w+)$", block, re.MULTILINE))
    return names


@pytest.mark.parametrize("module", [rx, cluster, errors, v1], ids=lambda module: module.__name__)
def test_the_api_pages_document_every_public_symbol(module):
    documented = _documented(module.__name__)
    missing = set(module.__all__) - documented
    assert not missing, f"docs/api has nothing about {sorted(missing)} of {module.__name__}"
    gone = documented - set(module.__all__)
    assert not gone, f"docs/api documents {sorted(gone)}, which {module.__name__} does not have"


@pytest.mark.parametrize("library", ["equinox", "flax", "keras"])
def test_the_api_pages_document_the_integrations(library):
    module = f"replicax.integrations.{library}"
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    (names,) = re.findall(r"^__all__ = \[(.*?)\]", Path(spec.origin).read_text(), re.MULTILINE | re.DOTALL)
    assert _documented(module) == set(re.findall(r'"(\w+)"', names))


@pytest.mark.parametrize("name", rx.__all__)
def test_every_symbol_has_an_example(name):
    symbol = getattr(rx, name)
    assert isinstance(symbol, int) or ">>>" in (inspect.getdoc(symbol) or ""), f"rx.{name} has no example"


def test_every_page_is_in_a_table_of_contents():
    for folder in (DOCS, DOCS / "api", DOCS / "recipes"):
        contents = re.findall(r"```\{toctree\}\n(.*?)```", (folder / "index.md").read_text(), re.DOTALL)
        entries = re.findall(r"^(?:.*<)?([\w/]+)>?$", "\n".join(contents), re.MULTILINE)
        assert len(entries) == len(set(entries))
        pages = {path.stem for path in (*folder.glob("*.md"), *folder.glob("*.ipynb"))} - {"index"}
        assert {entry for entry in entries if not entry.endswith("/index")} == pages


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_explained(name):
    page = (DOCS / "errors.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
    if name == "ReplicaxError":
        assert "`ReplicaxError` itself" in page
        return
    assert len(rows) == 1, f"docs/errors.md needs one row for {name}, and has {len(rows)}"
    error = getattr(errors, name)
    bases = re.findall(r"`([\w.]+)`", rows[0].split("|")[1])[1:]
    assert bases
    for base in bases:
        module, _, kind = base.rpartition(".")
        assert issubclass(error, getattr(importlib.import_module(module or "builtins"), kind))


def _anchors(path):
    """The anchors of a page's headings, as MyST and GitHub make them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}, which does not exist"
        assert not anchor or anchor in _anchors(path), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_whole_and_readable_in_the_dark(path):
    text = path.read_text()
    ElementTree.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    assert "<title" in text
    assert not re.search(r"(href|src|url)\s*[=(]\s*[\"']?http", text), "pictures load nothing"
    assert f"images/{path.name})" in "".join(page.read_text() for page in DOCS.glob("*.md"))


def _diff_of_the_examples():
    """From the program for one device to the distributed one, whole, without their docstrings."""
    texts = [(ROOT / "examples" / name).read_text() for name in ("one_device.py", "quick_start.py")]
    before, after = (text.split('"""\n\n', 1)[1].splitlines() for text in texts)
    return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=1000))[3:])


@pytest.mark.parametrize("page", ["README.md", "docs/quick_start.md"])
def test_the_shown_diff_is_that_of_the_examples(page):
    shown = re.findall(r"```diff\n(.*?)\n```", (ROOT / page).read_text(), re.DOTALL)
    assert shown == [_diff_of_the_examples()]


def test_the_front_page_shows_the_quick_start():
    program = (ROOT / "examples" / "quick_start.py").read_text().split('"""\n\n', 1)[1]
    assert re.findall(r"```python\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL) == [program]
