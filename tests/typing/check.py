"""Checks the types of the programs in this folder and of the examples, with pyright (strict) and mypy.

A line that must be refused ends with the names that the two checkers have for the error:

    strategy.reduce("MAX", losses, axis=None)  # error: reportCallIssue, call-overload

Any other error fails the check, and so does an error that is expected and not reported. The types that an
editor shows are asserted in the programs with `typing.assert_type`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = [HERE / "passes.py", HERE / "fails.py"]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
BIN = Path(sys.executable).parent

Error = tuple[str, int, str, str]
"""File, line, rule, message."""


def pyright() -> Iterator[Error]:
    """What pyright reports, with `pyrightconfig.json` of this folder."""
    command = [BIN / "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", HERE]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for found in json.loads(output)["generalDiagnostics"]:
        if found["severity"] == "error":
            line = found["range"]["start"]["line"] + 1
            yield found["file"], line, found.get("rule", "error"), found["message"]


def mypy() -> Iterator[Error]:
    """What mypy reports, with `mypy.ini` of this folder."""
    command = [
        BIN / "mypy",
        "--python-executable",
        sys.executable,
        "--output",
        "json",
        "--config-file",
        HERE / "mypy.ini",
        *PROGRAMS,
        *EXAMPLES,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if result.stderr:
        sys.exit(f"mypy failed:\n{result.stderr}")
    for found in map(json.loads, result.stdout.splitlines()):
        if found["severity"] == "error":
            yield str(ROOT / found["file"]), found["line"], found["code"] or "error", found["message"]


def expected(position: int) -> dict[tuple[str, int], str]:
    """The errors that the programs name, by file and line, for pyright (0) or mypy (1)."""
    return {
        (str(program), number): mark[position + 1]
        for program in PROGRAMS
        for number, line in enumerate(program.read_text().splitlines(), 1)
        if (mark := re.search(r"# error: (\w+), ([\w-]+)$", line))
    }


def differences() -> Iterator[str]:
    """One line for each error that is not expected, or expected and missing."""
    for position, checker in enumerate((pyright, mypy)):
        wanted = expected(position)
        reported = set[tuple[str, int, str]]()
        for file, line, rule, message in checker():
            reported.add((file, line, rule))
            if (file, line) not in wanted:
                yield f"{file}:{line}: {checker.__name__}: {message} [{rule}]"
        for (file, line), rule in wanted.items():
            if (file, line, rule) not in reported:
                yield f"{file}:{line}: {checker.__name__} does not report [{rule}]"


if __name__ == "__main__":
    found = list(differences())
    print(
        "\n".join(found) or f"Types: {len(PROGRAMS)} programs and {len(EXAMPLES)} examples are as expected."
    )
    sys.exit(bool(found))
