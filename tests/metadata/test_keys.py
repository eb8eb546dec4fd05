import xxhash

from chunkstore.chunk_id import print_id
from metadata import keys

DATASET_ID = bytes(range(16))


def test_golden_keys() -> None:
    """Changed? Every index in use becomes unreadable: raise the version of the records."""
    assert keys.DATASETS == b"{dieselfs}n"
    assert keys.chunks_of(DATASET_ID) == b"{--31-kF40VR71FcA2-oD2k}c"
    assert keys.state_of(DATASET_ID) == b"{--31-kF40VR71FcA2-oD2k}s"
    tag = print_id(xxhash.xxh3_128_digest(DATASET_ID + b"cat/big")).encode()
    assert keys.files_of(DATASET_ID, b"cat/big") == b"{" + tag + b"}f"
    assert keys.directories_of(DATASET_ID, b"cat/big") == b"{" + tag + b"}d"
    assert keys.files_of(DATASET_ID, b"cat") == b"{DLjIOjoEhMjgwwHJwzFdYF}f"


def test_a_directory_is_one_slot_and_directories_are_many() -> None:
    directories = [b"n%08d" % number for number in range(2_000)]
    tags = {keys.directory_tag(DATASET_ID, directory) for directory in directories}
    assert len(tags) == len(directories)
    for directory in directories[:50]:
        tag = keys.directory_tag(DATASET_ID, directory)
        assert keys.files_of(DATASET_ID, directory).startswith(tag)
        assert keys.directories_of(DATASET_ID, directory).startswith(tag)


def test_keys_are_as_the_port_wants_them() -> None:
    made = [keys.DATASETS, keys.chunks_of(DATASET_ID), keys.state_of(DATASET_ID)]
    for directory in [b"", b"a", b"\xff\n", b"d" * 4000]:
        made += [keys.files_of(DATASET_ID, directory), keys.directories_of(DATASET_ID, directory)]
    assert len(set(made)) == len(made)
    for key in made:
        assert key.isascii()
        assert key.decode().isprintable()
        assert 1 <= len(key) <= 64
        assert [other for other in made if other.startswith(key)] == [key]


def test_another_life_of_a_name_shares_no_key() -> None:
    assert keys.files_of(DATASET_ID, b"a") != keys.files_of(bytes(16), b"a")
    assert keys.chunks_of(DATASET_ID) != keys.chunks_of(bytes(16))


def test_golden_keys_of_the_allocation_directory() -> None:
    """Changed? Processes of two releases no longer see each other's decisions."""
    tag = b"dieselfs:{allocation}:"
    made = {
        b"caches": keys.ALLOCATED_CACHES,
        b"io": keys.ALLOCATED_IO,
        b"jobs": keys.ALLOCATION_JOBS,
        b"state": keys.ALLOCATION_STATE,
        b"leader": keys.ALLOCATION_LEADER,
        b"leases": keys.READER_LEASES,
        b"ends": keys.READER_ENDS,
        b"ends:2d06800538d394c2": keys.reader_ends_of(""),
    }
    assert made == {name: tag + name for name in made}
    assert keys.reader_ends_of("resnet") != keys.reader_ends_of("bert")
