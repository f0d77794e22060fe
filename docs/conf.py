"""How Sphinx builds the documentation: `make docs`. Nothing is downloaded, and a warning is an error.

Pages are Markdown (MyST). The API pages in `api/` name every public symbol; Sphinx fills in the docstrings,
which are Google-style with `names` in single backticks, as everywhere in the source.
"""

import importlib
import inspect
import json
import re
from pathlib import Path

import replicax

project = "Replicax"
author = "The Replicax authors"
copyright = author
version = release = replicax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
autosummary_generate = False
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # `_notebook_as_markdown` makes it so
myst_heading_anchors = 3

# A `name` in a docstring is a link where there is such a symbol, and code where there is none.
default_role = "py:obj"
add_module_names = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "Replicax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#5fd3a6", "color-brand-content": "#5fd3a6"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# Copies what was typed, without prompts and without what Python answered.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


_COLON = "\ue000"  # stands for one while Napoleon looks


def _code(found):
    """Of `code`, only names can be links. Not `.name`: Sphinx would look for everything of that name."""
    code, after = found[1] or "", found[2]
    text = found[0] if re.fullmatch(r"(\w[\w.]*)?", code) else f"``{' '.join(code.split())}``"
    return text + ("\\ " if after else "")  # `Array`s


def _as_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are written for readers of the source; this is what differs in reStructuredText."""
    text = "\n".join(lines)
    text = re.sub(r"(?:``.+?``|`([^`]+)`)(?=(\w?))", _code, text.replace(_COLON, ":"))
    text = re.sub(r"(?<=/)\*(?=\.)", r"\*", text)  # data/*.npz
    if what == "module":  # drawings and programs are indented
        text = re.sub(r"\n\n(?= {4}\S)", "\n\n::\n\n", text)
    lines[:] = text.split("\n")


def _keep_colons_of_properties(app, what, name, obj, options, lines):
    """Napoleon takes "The devices: one for each." of a property for a type and a description."""
    if what == "property":
        lines[:] = [line.replace(":", _COLON) for line in lines]


def _readable_signature(app, what, name, obj, options, signature, returns):
    """Where Python's own answer does not help: `Variable` is made by a strategy, dtypes are classes."""
    if name == "replicax.Variable":
        from replicax.variables import prepare_variable

        parameters = inspect.signature(prepare_variable).parameters.values()
        signature = ", ".join(f"{parameter.name}={parameter.default}" for parameter in parameters)
        signature = f"({signature.removeprefix('initial_value=None')})".replace("(", "(initial_value", 1)
    elif what == "class" and signature == "(*args, **kwargs)":
        signature = ""
    if signature is None:
        return None
    return re.sub(r"<class 'jax\.numpy\.(\w+)'>", r"jnp.\1", signature), returns


def _skip_other_spellings(app, what, name, obj, skip, options):
    """TensorFlow's `experimental_` spellings are the same methods; the page of strategies lists them."""
    return True if name.startswith("experimental_") and getattr(obj, "__name__", name) != name else None


def _names_directive():
    """`.. names:: module` lists the public names of a module."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Names(SphinxDirective):
        required_arguments = 1

        def run(self):
            module = importlib.import_module(self.arguments[0])
            listed = nodes.paragraph()
            for number, name in enumerate(module.__all__):
                listed += nodes.Text(", " if number else "")
                listed += nodes.literal("", name)
            return [listed]

    return Names


def _notebook_as_markdown(app, docname, content):
    """Show a notebook with the outputs that it has stored; nothing is run."""
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        cells = json.loads(content[0])["cells"]
        content[0] = "\n\n".join(part for cell in cells for part in _cell_parts(cell)) + "\n"


def _cell_parts(cell):
    """A cell of a notebook in Markdown, and its outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [_fenced("python", source), *map(_output_part, cell["outputs"])]


def _output_part(output):
    data = output.get("data", {})
    if "text/html" in data:
        return _fenced("{raw} html", "".join(data["text/html"]))
    return _fenced("text", "".join(data.get("text/plain") or output["text"]))


def _fenced(kind, text):
    return f"```{kind}\n{text.rstrip()}\n```"


def _programs_directive():
    """`programs` shows every program that the README of a folder lists, with its description."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Programs(SphinxDirective):
        required_arguments = 1

        def run(self):
            folder = Path(self.env.srcdir, self.arguments[0]).resolve()
            readme = folder / "README.md"
            self.env.note_dependency(readme)
            rows = re.findall(r"^\| \[`(\w+)`\]\((\S+\.py)\) \| (.*) \|$", readme.read_text(), re.MULTILINE)
            return [self.section(name, folder, path, text) for name, path, text in rows]

        def section(self, name, folder, path, text):
            self.env.note_dependency(folder / path)
            code = (folder / path).read_text()
            section = nodes.section(ids=[nodes.make_id(name)], names=[name])
            section += nodes.title("", name)
            parts = f"{text[:1].upper()}{text[1:]}.".split("`")
            inline = [nodes.literal("", p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts)]
            section += nodes.paragraph("", "", *inline)
            section += nodes.raw("", f"<details><summary>{folder.name}/{path}</summary>", format="html")
            section += nodes.literal_block(code, code, language="python")
            section += nodes.raw("", "</details>", format="html")
            return section

    return Programs


def _without_last_blank_line(app, docname, content):
    """Examples end with a blank line, which tells doctest that the output ends; on the site it is waste."""
    content[0] = re.sub(r"\n\n```(?=\n)", "\n```", content[0])


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _notebook_as_markdown)
    app.connect("source-read", _without_last_blank_line)
    app.connect("autodoc-process-docstring", _keep_colons_of_properties, priority=100)
    app.connect("autodoc-process-docstring", _as_restructured_text)
    app.connect("autodoc-process-signature", _readable_signature)
    app.connect("autodoc-skip-member", _skip_other_spellings)
    app.add_directive("names", _names_directive())
    app.add_directive("programs", _programs_directive())
