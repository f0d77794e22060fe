"""Every signature that the reference documents state is ours too."""

import pytest
from tests.reference_documents import documents
from tests.reference_documents.signatures import STATED, difference, method_of, normal, stated


@pytest.mark.parametrize(("document", "owner", "signature"), stated(), ids=lambda x: str(x)[:40])
def test_signature(document, owner, signature):
    assert difference((owner, method_of(signature)), signature) is None


def test_as_many_as_the_documents_state():
    counts = {document: len(lines.split("\n    ")) - 1 for document, (_, lines) in STATED.items()}
    assert counts == documents.listed_signatures()


@pytest.mark.skipif(not documents.published(), reason="the documents are not here")
@pytest.mark.parametrize("document", STATED)
def test_as_published(document):
    ours = sorted(normal(signature) for name, _, signature in stated() if name == document)
    assert ours == sorted(normal(text) for text in documents.published_signatures()[document])
