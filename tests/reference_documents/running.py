"""Runs a code block as its case says, statement by statement, and keeps what each statement printed."""

import ast
import contextlib
import doctest
import io
import json
import os
import re
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.reference_documents.compare import normal

import replicax.tf as tf

_GPU = re.compile(r"/?gpu:", re.IGNORECASE)


@dataclass
class Run:
    """One run of a block: the names it reads and sets, and what it printed."""

    text: str
    names: dict[str, Any] = field(default_factory=lambda: {"tf": tf, "np": np, "os": os, "json": json})
    printed: list[str] = field(default_factory=list)  # by every statement that printed something

    def __getitem__(self, name):
        return self.names[name]

    def __setitem__(self, name, value):
        self.names[name] = value

    def execute(self, source):
        """Run one statement like the interpreter does at its prompt; what it printed."""
        out = io.StringIO()
        before, sys.displayhook = sys.displayhook, _display
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(source, "<block>", "single"), self.names)
        finally:
            sys.displayhook = before
        if out.getvalue():
            self.printed.append(out.getvalue())
        return out.getvalue()

    def execute_all(self, text):
        """Run the statements of `text`; those that have prompts must print what is documented."""
        if ">>>" not in text:
            for statement in ast.parse(text).body:
                self.execute(ast.Interactive([statement]))
            return
        for example in doctest.DocTestParser().get_examples(text):
            got = self.execute(example.source)
            expect_output(example.want, got)


def _display(value):
    if value is not None and value is not ...:  # a line `...` stands for other code
        print(repr(value))


def on_cpu(text):
    """`text` with the names of GPUs replaced by those of CPU devices."""
    return _GPU.sub("CPU:", text)


def expect_output(documented, got):
    """Fail unless `got` means what is documented."""
    assert normal(got) == normal(documented), f"documented:\n{documented}\ngot:\n{got}"


def run_block(case, texts, names=()):
    """Run the block `texts[-1]`, after those before it, with what `case` puts in for its placeholders."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Strategy.* belongs to version 1", DeprecationWarning)
        run = Run(texts[-1])
        run.names.update(names)
        placeholders = case.program(run)
        next(placeholders)
        for text in texts[:-1]:
            run.execute_all(on_cpu(text))
        run.printed.clear()
        if case.ends_with is None:
            run.execute_all(case.completed(texts[-1]))
        else:
            try:
                run.execute_all(case.completed(texts[-1]))
            except case.ends_with as error:
                # The frames of the loop refer to its iterator, which reads ahead until it is freed.
                error.__traceback__ = None
            else:
                raise AssertionError(f"the block did not end with {case.ends_with.__name__}")
        for _ in placeholders:
            raise AssertionError("a case yields once: where the block runs")
        run.names.clear()  # functions of the block refer to it, and an iterator in it reads ahead
