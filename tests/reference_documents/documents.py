"""The code blocks of the five reference documents, as they are published.

The documents are TensorFlow's; neither their text nor their code is part of this repository.
`blocks.json` lists the name of every block and a hash of its code. The code is read from the folder
`shared/reference` next to the repository. Without that folder the tests of the blocks are skipped; the
tests of the signatures and `tests/reference` (the same examples, written for Replicax) still run.

A block is named after its document, the heading above it and its number there:
`003_run_2` is the second block in the section `run` of the document 003. Comments are stripped, except
those that state an output. `python -m tests.reference_documents.documents` writes the list again.
"""

import functools
import hashlib
import html
import json
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
LIST = HERE / "blocks.json"
DOCUMENTS = HERE.parents[2] / "shared" / "reference"

_HEADING = re.compile(r'<h3 id="(\w+)"|#{2,3} (\w+)$')
_SIGNATURE = re.compile(r"tfo-signature-link\">\s*<code>(.*?)</code>", re.DOTALL)
_STATED_OUTPUT = re.compile(r"# *(result is$|Mirrored:\{|\d+: tf\.Tensor|\}$)")
_COMMENT = re.compile(r"(^|\s+)#.*")


@functools.cache
def listed():
    """The hash of every block by its name."""
    return json.loads(LIST.read_text())["blocks"]


@functools.cache
def listed_signatures():
    """How many signatures each document states outside of its blocks."""
    return json.loads(LIST.read_text())["signatures"]


@functools.cache
def published():
    """The code of every block by its name; empty without the documents."""
    blocks = {}
    for path in sorted(DOCUMENTS.glob("00*.txt")):
        count = Counter()
        for heading, text in _fenced(path.read_text()):
            count[heading] += 1
            blocks[f"{path.name[:3]}_{heading}_{count[heading]}"] = without_comments(text)
    return blocks


@functools.cache
def published_signatures():
    """The signatures that the documents state outside of their blocks, by document."""
    return {
        path.name[:3]: [html.unescape(text) for text in _SIGNATURE.findall(path.read_text())]
        for path in sorted(DOCUMENTS.glob("00*.txt"))
    }


def _fenced(document):
    """The blocks of a document, each with the heading above it."""
    heading, block = "overview", None
    for line in document.split("\n"):
        if line.startswith("```"):
            if block is not None:
                yield heading, "\n".join(block) + "\n"
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
        elif found := _HEADING.match(line):
            heading = (found[1] or found[2]).strip("_")


def without_comments(text):
    """`text` without its comments, except those that state an output."""
    lines = []
    for line in text.removeprefix(" ").rstrip().split("\n"):
        if not _STATED_OUTPUT.search(line):
            stripped = _COMMENT.sub("", line)
            if stripped != line and stripped in ("", ">>>", "..."):
                continue
            line = stripped
        lines.append(line.rstrip())
    return "\n".join(lines).strip("\n") + "\n"


def hash_of(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_list():
    """Write `blocks.json` from the documents."""
    blocks = {name: hash_of(text) for name, text in published().items()}
    signatures = {document: len(stated) for document, stated in published_signatures().items()}
    LIST.write_text(json.dumps({"blocks": blocks, "signatures": signatures}, indent=1) + "\n")


if __name__ == "__main__":
    write_list()
