"""Files: TFRecord, text, their names, and what is wrong with them."""

import gzip
import io
import struct
import sys

import pytest
from tests.tf.records import write_record

import replicax as rx
from replicax.errors import InputError, MissingFilesError
from replicax.tf import data
from replicax.tf.data._tfrecord import masked_crc32c, read_record

Dataset = data.Dataset


def unmasked(checksum):
    rotated = (checksum - 0xA282EAD8) % 2**32
    return (rotated << 15 | rotated >> 17) % 2**32


@pytest.mark.parametrize(
    "content, checksum",
    [  # from RFC 3720, and the customary one
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_checksums(content, checksum):
    assert unmasked(masked_crc32c(content)) == checksum


def framed(*records):
    file = io.BytesIO()
    for record in records:
        write_record(file, record)
    return file.getvalue()


RECORDS = [b"", b"one", b"\0" * 5000, b"two\0"]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "some.tfrecord"
    path.write_bytes(framed(*RECORDS))
    return path


def test_records_are_read(path):
    dataset = data.TFRecordDataset(path)
    assert list(dataset) == RECORDS == list(dataset)
    assert isinstance(dataset, Dataset) and dataset.cardinality() == data.UNKNOWN_CARDINALITY
    assert dataset.element_spec == rx.TensorSpec((), object)
    assert repr(dataset) == "<TFRecordDataset element_spec=TensorSpec(shape=(), dtype=object)>"
    assert list(data.TFRecordDataset([str(path)] * 2, buffer_size=64)) == RECORDS * 2
    assert list(data.TFRecordDataset(Dataset.from_tensor_slices([str(path)]))) == RECORDS
    (batch,) = dataset.batch(9)
    assert batch.dtype == object and batch.tolist() == RECORDS


def test_files_are_read_in_turn(path):
    assert list(data.TFRecordDataset([path, path], num_parallel_reads=2).take(4)) == [
        b"",
        b"",
        b"one",
        b"one",
    ]
    assert list(data.TFRecordDataset([path, path], num_parallel_reads=data.AUTOTUNE)) == RECORDS * 2


def test_compressed_records(tmp_path):
    path = tmp_path / "some.tfrecord.gz"
    path.write_bytes(gzip.compress(framed(*RECORDS)))
    dataset = data.TFRecordDataset(path, compression_type="GZIP")
    assert list(dataset) == RECORDS
    whole = path.read_bytes()
    path.write_bytes(whole[:-12])
    with pytest.raises(InputError, match="truncated"):
        list(dataset)
    path.write_bytes(framed(b"a"))
    with pytest.raises(InputError, match="compression_type"):
        list(dataset)
    path.write_bytes(whole)
    with pytest.raises(InputError, match="compression_type"):
        list(data.TFRecordDataset(path))


@pytest.mark.parametrize("missing", [1, 4, 6, 9, 13, 18])
def test_a_truncated_file(path, missing):
    path.write_bytes(framed(b"first", b"second")[:-missing])
    with iter(data.TFRecordDataset(path)) as records:
        assert next(records) == b"first"
        with pytest.raises(InputError, match=r"some.tfrecord is truncated: it ends in .* at byte 21"):
            next(records)


@pytest.mark.parametrize(
    "byte, message", [(21, "no TFRecord at byte 21"), (33, "is damaged: the record at byte 21")]
)
def test_a_damaged_file(path, byte, message):
    content = bytearray(framed(b"first", b"second"))
    content[byte] ^= 4
    path.write_bytes(content)
    with iter(data.TFRecordDataset(path)) as records:
        assert next(records) == b"first"
        with pytest.raises(InputError, match=message):
            next(records)


def test_a_wild_length_is_not_read():
    header = struct.pack("<Q", 2**60)
    with pytest.raises(InputError, match="checksum of its length"):
        read_record(io.BytesIO(header + b"1234"))


def test_without_a_package_for_checksums_there_is_a_hint(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ImportError, match=r"google-crc32c.*pip install 'replicax\[grain\]'"):
        list(data.TFRecordDataset(path))


def test_lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\r\n\n  two \nlast")
    assert list(data.TextLineDataset(path)) == [b"one", b"", b"  two ", b"last"]
    assert list(data.TextLineDataset(path).skip(1).filter(lambda line: len(line) > 0)) == [
        b"  two ",
        b"last",
    ]
    (tmp_path / "lines.gz").write_bytes(gzip.compress(path.read_bytes()))
    zipped = data.TextLineDataset([tmp_path / "lines.gz"], compression_type="GZIP")
    assert list(zipped) == list(data.TextLineDataset(path))


def test_names_of_files(tmp_path):
    paths = [tmp_path / f"{i}.txt" for i in range(8)]
    for path in paths:
        path.touch()
    names = [str(path).encode() for path in paths]
    pattern = str(tmp_path / "*.txt")
    assert list(Dataset.list_files(pattern, shuffle=False)) == names
    shuffled = Dataset.list_files(pattern, seed=1)
    assert sorted(shuffled) == names and list(shuffled) != list(shuffled)
    two = [str(tmp_path / "1.*"), str(tmp_path / "[12].txt")]
    assert list(Dataset.list_files(two, shuffle=False)) == names[1:3]


def test_missing_files(tmp_path):
    with pytest.raises(MissingFilesError, match="found no files"):
        Dataset.list_files(str(tmp_path / "*.none"))
    for kind in (data.TFRecordDataset, data.TextLineDataset):
        with pytest.raises(FileNotFoundError, match=r"do not exist: .*gone"):
            kind([tmp_path / "gone"])
        with pytest.raises(MissingFilesError, match="gone does not exist"):
            list(kind(Dataset.from_tensor_slices([str(tmp_path / "gone")])))


def test_bad_arguments(path):
    with pytest.raises(InputError, match="compression_type='ZLIB'"):
        data.TFRecordDataset(path, compression_type="ZLIB")
    with pytest.raises(InputError, match=r"num_parallel_reads=0\): pass a number of at least 1"):
        data.TFRecordDataset(path, num_parallel_reads=0)
    with pytest.raises(TypeError, match="names of files, got 3"):
        data.TextLineDataset(3)
