"""Runs blocks by name. `python -m tests.reference_documents.blocks` prints the table of all of them."""

import traceback

from tests.reference_documents.cases import CASES, HERE, ONE_DEVICE, TWO_WORKERS
from tests.reference_documents.documents import published
from tests.reference_documents.elsewhere import run_with_one_device, run_with_two_workers
from tests.reference_documents.running import run_block
from tests.reference_documents.signatures import BLOCKS as SIGNATURE_BLOCKS
from tests.reference_documents.signatures import difference


def run(name, change=lambda text: text, names=()):
    """Run a block in this process.

    Args:
        name: of the block.
        change: what changes its text first.
        names: names for it, besides those of its case.
    """
    case = CASES[name]
    texts = [change(published()[block]) for block in (*case.after, name)]
    run_block(case, texts, names)


def failure(name, *changed):
    """Run a block; the traceback if it failed, or None."""
    try:
        run(name, *changed)
    except Exception:
        return traceback.format_exc()
    return None


def run_all(where):
    """Run all blocks of one place; the traceback of each that failed, or None."""
    names = [name for name, case in CASES.items() if case.where == where]
    if where == ONE_DEVICE:
        return run_with_one_device(names)
    if where == TWO_WORKERS:
        return {name: run_with_two_workers(name)[name] for name in names}
    return {name: failure(name) for name in names}


def print_table():
    """Print every block with its placeholders and whether its test passed."""
    failures = {name: difference(SIGNATURE_BLOCKS[name], text) for name, text in _signatures().items()}
    for where in (HERE, ONE_DEVICE, TWO_WORKERS):
        failures |= run_all(where)
    for name in sorted(failures):
        case = CASES.get(name)
        place, placeholders = ("signature", "none") if case is None else (case.where, case.placeholders)
        problem = (failures[name] or "passed").strip().splitlines()[-1]
        print(f"{name[:3]} | {name[4:]:50} | {place:9} | {placeholders} | {problem}")


def _signatures():
    return {name: text for name, text in published().items() if name in SIGNATURE_BLOCKS}


if __name__ == "__main__":
    import replicax

    replicax.set_cpu_devices(8)
    print_table()
