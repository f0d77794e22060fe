"""Every code block of the reference documents runs with `import replicax.tf as tf`, as documented."""

import pytest
from tests.reference_documents import blocks, documents
from tests.reference_documents.cases import CASES, HERE, ONE_DEVICE, TWO_WORKERS
from tests.reference_documents.signatures import BLOCKS as SIGNATURE_BLOCKS
from tests.reference_documents.signatures import difference

needs_documents = pytest.mark.skipif(not documents.published(), reason="the documents are not here")


def names_of(where):
    return [name for name, case in CASES.items() if case.where == where]


@needs_documents
@pytest.mark.parametrize("name", names_of(HERE))
def test_on_eight_devices(name):
    blocks.run(name)


@pytest.fixture(scope="module")
def with_one_device():
    return blocks.run_all(ONE_DEVICE)


@needs_documents
@pytest.mark.parametrize("name", names_of(ONE_DEVICE))
def test_on_one_device(name, with_one_device):
    assert with_one_device[name] is None, with_one_device[name]


@needs_documents
@pytest.mark.parametrize("name", names_of(TWO_WORKERS))
def test_on_two_workers(name):
    failure = blocks.run_with_two_workers(name)[name]
    assert failure is None, failure


@needs_documents
@pytest.mark.parametrize("name", SIGNATURE_BLOCKS)
def test_signature(name):
    assert difference(SIGNATURE_BLOCKS[name], documents.published()[name]) is None


def test_every_block_has_a_test():
    assert {*CASES, *SIGNATURE_BLOCKS} == set(documents.listed())


@needs_documents
def test_the_list_is_that_of_the_documents():
    hashes = {name: documents.hash_of(text) for name, text in documents.published().items()}
    assert hashes == documents.listed()
