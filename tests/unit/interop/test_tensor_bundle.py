"""TensorFlow's checkpoint files: those that it wrote itself, and every way in which they can be broken."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.interop.sorted_table import crc32c, masked_crc32c, read_sorted_table, varint
from bertwright.interop.tensor_bundle import Bundle, open_bundle
from tests.support import bundle_writer as writer
from tests.support.google_values import KINDS, STEP, values, variables, whole_numbers

WRITTEN_BY_TENSORFLOW = Path(__file__).parents[2] / "fixtures" / "google"
PRETRAINED = WRITTEN_BY_TENSORFLOW / "pretrained" / "bert_model.ckpt"
FINE_TUNED = WRITTEN_BY_TENSORFLOW / "classifier" / "model.ckpt-7"
ALL_KINDS = WRITTEN_BY_TENSORFLOW / "kinds" / "kinds.ckpt"


def copied(prefix: Path, folder: Path) -> Path:
    for file in prefix.parent.glob(f"{prefix.name}.*"):
        shutil.copy(file, folder)
    return folder / prefix.name


def bit_by_bit(bit: bytes) -> int:
    """CRC-32C as its definition has it: one bit at a time."""
    state = 0xFFFFFFFF
    for byte in bit:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ 0x82F63B78 * (state & 1)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_checksums_are_those_of_the_standard(data: bytes, expected: int) -> None:
    """The examples of RFC 3720, appendix B.4, and the usual nine digits."""
    assert crc32c(data) == expected
    assert crc32c(np.frombuffer(data, np.uint8)) == expected


@given(st.binary(max_size=70))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_checksums_are_those_of_the_definition(data: bytes) -> None:
    assert crc32c(data) == bit_by_bit(data)
    plain = bit_by_bit(data)
    assert masked_crc32c(data) == ((plain >> 15 | plain << 17) + 0xA282EAD8) % 2**32


def test_a_checksum_leaves_the_array_as_it_was() -> None:
    numbers = np.zeros(9, np.uint8)
    crc32c(numbers)
    assert numbers.flags.writeable


@pytest.mark.parametrize(("prefix", "checkpoint"), [(PRETRAINED, "pretrained"), (FINE_TUNED, "classifier")])
def test_every_value_that_tensorflow_wrote(prefix: Path, checkpoint: str) -> None:
    bundle = open_bundle(prefix)
    expected = variables(checkpoint)
    assert set(bundle.entries) == set(expected) | ({"global_step"} if checkpoint != "pretrained" else set())
    for name, shape in expected.items():
        value = bundle.read(name)
        assert (value.shape, value.dtype) == (shape, np.float32)
        assert value.tobytes() == values(name, shape).tobytes(), name


def test_data_files_and_step() -> None:
    bundle = open_bundle(PRETRAINED)
    assert bundle.num_shards == 2
    assert {entry.shard for entry in bundle.entries.values()} == {0, 1}
    step = open_bundle(FINE_TUNED).read("global_step")
    assert (step.shape, step.dtype, int(step)) == ((), np.int64, STEP)


@pytest.mark.parametrize("kind", KINDS)
def test_every_type(kind: str) -> None:
    bundle = open_bundle(ALL_KINDS)
    value = bundle.read(f"kinds/{kind}")
    assert bundle.entries[f"kinds/{kind}"].type_name == kind
    assert value.dtype == np.dtype("float32" if kind == "bfloat16" else kind)
    assert np.array_equal(value, whole_numbers(kind, 15).reshape(3, 5))


def test_numbers_without_dimensions_and_dimensions_without_numbers() -> None:
    bundle = open_bundle(ALL_KINDS)
    assert bundle.read("single").shape == ()
    assert bundle.read("single") == np.float32(2.5)
    assert bundle.read("none").shape == (0, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other/string", r"kinds\.ckpt: other/string is of type string; allowed are float32, float64, int32, int64"),
        ("other/bool", r"kinds\.ckpt: other/bool is of type bool; allowed are"),
        ("parts/table", r"kinds\.ckpt: parts/table was saved in parts, which cannot be read"),
        ("absent", r"kinds\.ckpt: holds no variable 'absent'"),
    ],
)
def test_what_is_not_read_is_refused_when_it_is_asked_for(name: str, message: str) -> None:
    bundle = open_bundle(ALL_KINDS)
    assert {"other/string", "other/bool", "parts/table"} < set(bundle.entries)
    with pytest.raises(InputError, match=message):
        bundle.read(name)


def test_the_first_format_is_recognised() -> None:
    with pytest.raises(InputError, match=r"bert_model\.ckpt: a checkpoint of TensorFlow's first format"):
        open_bundle(WRITTEN_BY_TENSORFLOW / "first_format" / "bert_model.ckpt")
    with pytest.raises(InputError, match=r"vocab\.txt\.index: there is no such file"):
        open_bundle(PRETRAINED.with_name("vocab.txt"))
    with pytest.raises(InputError, match=r"other\.index: there is no such file"):
        open_bundle(PRETRAINED.with_name("other"))


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
beginnings = st.builds(lambda first, rest: first + rest, st.sampled_from(["", "bert/encoder/layer_"]), names)


@given(
    sizes=st.dictionaries(beginnings, st.integers(0, 5), max_size=50),
    most=st.integers(1, 60),
    compression=st.sampled_from([0, 1]),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_any_names_in_any_blocks(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int], most: int, compression: int
) -> None:
    arrays = {name: np.arange(size, dtype=np.float32) + index for index, (name, size) in enumerate(sizes.items())}
    prefix = tmp_path_factory.mktemp("any") / "m.ckpt"
    writer.write_bundle(prefix, arrays, most=most, compression=compression)
    bundle = open_bundle(prefix)
    assert list(bundle.entries) == sorted(arrays, key=str.encode)
    for name, array in arrays.items():
        assert np.array_equal(bundle.read(name), array)


def flipped(path: Path, position: int, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << bit
    path.write_bytes(raw)


def tensor_bytes(bundle: Bundle, readable: list[str]) -> dict[str, bytes]:
    return {name: bundle.read(name).tobytes() for name in readable}


def test_a_flipped_bit_in_the_index_is_found(tmp_path: Path) -> None:
    """Flipped anywhere in the footer, and at 500 other positions: the error is found, or the same entries are read."""
    prefix = copied(PRETRAINED, tmp_path)
    index = tmp_path / f"{prefix.name}.index"
    whole, entries = index.read_bytes(), dict(open_bundle(prefix).entries)
    draw = random.Random(1)
    footer = len(whole) - 48
    places = [(position, bit) for position in range(footer, len(whole)) for bit in range(8)]
    places += [(draw.randrange(footer), draw.randrange(8)) for _ in range(500)]
    unnoticed = []
    for position, bit in places:
        index.write_bytes(whole)
        flipped(index, position, bit)
        try:
            read_entries = open_bundle(prefix).entries
        except InputError as error:
            message = str(error)
        else:
            message = f"{index}: nothing found"
            unnoticed.append((position - footer, bit))
            assert read_entries == entries
        assert message.startswith(f"{index}: ")
    assert unnoticed == [(5, 7)]  # the last number in the footer, written with a byte more, is the same number


def test_a_flipped_bit_in_a_tensor_is_found_and_the_tensor_named(tmp_path: Path) -> None:
    prefix = copied(PRETRAINED, tmp_path)
    bundle, draw = open_bundle(prefix), random.Random(2)
    for name, entry in bundle.entries.items():
        path = bundle.data_file(entry.shard)
        position, bit = entry.offset + draw.randrange(entry.size), draw.randrange(8)
        flipped(path, position, bit)
        with pytest.raises(InputError, match=rf"{path.name}: {name} \(bytes {entry.offset} to .* the file is damaged"):
            bundle.read(name)
        others = [other for other in bundle.entries if other != name]
        assert len(tensor_bytes(bundle, others)) == len(others)
        flipped(path, position, bit)
        assert bundle.read(name).tobytes() == values(name, entry.shape).tobytes()


def test_a_flipped_bit_anywhere_in_the_data_is_found_or_changes_nothing(tmp_path: Path) -> None:
    prefix = copied(ALL_KINDS, tmp_path)
    bundle = open_bundle(prefix)
    readable = [name for name in bundle.entries if not name.startswith(("other/", "parts/"))]
    before, path = tensor_bytes(bundle, readable), bundle.data_file(0)
    unread = 0
    for position in range(path.stat().st_size):
        flipped(path, position, position % 8)
        try:
            values_read = tensor_bytes(bundle, readable)
        except InputError as error:
            message = str(error)
        else:
            message = "the file is damaged where nothing is read"
            unread += 1
            assert values_read == before
        assert "the file is damaged" in message
        flipped(path, position, position % 8)
    assert unread == 2 + 12 + 96  # two truth values, two words, the parts of a table


def test_an_index_that_is_cut_off_is_found(tmp_path: Path) -> None:
    prefix = copied(PRETRAINED, tmp_path)
    index = tmp_path / f"{prefix.name}.index"
    whole = index.read_bytes()
    for size in [*range(0, 60), *range(60, len(whole), 13), len(whole) - 1]:
        index.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"bert_model\.ckpt\.index: .*cut off"):
            open_bundle(prefix)


def test_data_that_are_cut_off_or_missing_are_named(tmp_path: Path) -> None:
    prefix = copied(PRETRAINED, tmp_path)
    bundle = open_bundle(prefix)
    second = bundle.data_file(1)
    whole = second.read_bytes()
    last = max(
        (name for name, entry in bundle.entries.items() if entry.shard == 1),
        key=lambda name: bundle.entries[name].offset,
    )
    second.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=rf"00001-of-00002: {last} is at bytes 1464 to 1592, but the file has 1591"):
        open_bundle(prefix)
    with pytest.raises(InputError, match=rf"00001-of-00002: {last} \(bytes 1464 to 1592\) is not complete"):
        bundle.read(last)  # cut off after it was opened
    second.unlink()
    with pytest.raises(InputError, match=r"cannot be read: No such file"):
        bundle.read(last)
    with pytest.raises(InputError, match=r"of its 2 data files bert_model\.ckpt\.data-00001-of-00002 is not beside"):
        open_bundle(prefix)
    bundle.data_file(0).unlink()
    with pytest.raises(InputError, match=r"data-00000-of-00002, bert_model\.ckpt\.data-00001-of-00002 are not beside"):
        open_bundle(prefix)


ONE = writer.entry(1, (2,), size=8)
BAD_RECORDS: dict[str, tuple[writer.Records, str]] = {
    "no header": ([(b"a", ONE)], "no header under the empty key"),
    "nothing": ([], "no header under the empty key"),
    "big-endian": ([(b"", b"\x08\x01\x10\x01")], "big-endian machine"),
    "newer format": ([(b"", b"\x08\x01\x1a\x04\x08\x02\x10\x02")], "needs a reader of format 2; formats up to 1"),
    "descending": ([(b"", writer.HEADER), (b"b", ONE), (b"a", ONE)], "the key b'a' follows b'b'"),
    "twice": ([(b"", writer.HEADER), (b"a", ONE), (b"a", ONE)], "the key b'a' follows b'a'"),
    "name": ([(b"", writer.HEADER), (b"\xff", ONE)], r"the name b'\\xff' is not UTF-8"),
    "unknown field": ([(b"", writer.HEADER), (b"a", ONE + b"\x48\x01")], "entry of a .*: field 9 of wire type 0"),
    "other kind": ([(b"", writer.HEADER), (b"a", b"\x0a\x00")], "entry of a .*: field 1 of wire type 2 is unknown"),
    "cut part": ([(b"", writer.HEADER), (b"a", b"\x12\x09\x12")], "entry of a .*: field 2 is cut off"),
    "cut number": ([(b"", writer.HEADER), (b"a", b"\x08")], "entry of a .*: no complete number at byte 1 of 1"),
    "cut checksum": ([(b"", writer.HEADER), (b"a", b"\x35\x00")], "entry of a .*: field 6 is cut off"),
    "unknown rank": ([(b"", writer.HEADER), (b"a", b"\x12\x02\x18\x01")], "number of dimensions is unknown"),
    "data file": ([(b"", writer.HEADER), (b"a", writer.entry(1, (2,), size=8, shard=1))], "names data file 1, but"),
    "place": ([(b"", writer.HEADER), (b"a", writer.entry(1, (2,), size=8, offset=2**62))], "a is at bytes 46116860"),
    "negative place": (
        [(b"", writer.HEADER), (b"a", writer.entry(1, (2,), size=8, offset=2**64 - 1))],
        "a is at bytes",
    ),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_broken_records_are_named(tmp_path: Path, case: str) -> None:
    records, message = BAD_RECORDS[case]
    writer.write_bundle(tmp_path / "m", {"a": np.zeros(2, np.float32)})
    writer.write_index(tmp_path / "m.index", records)
    with pytest.raises(InputError, match=rf"m(\.index|\.data-00000-of-00001)?: .*{message}"):
        open_bundle(tmp_path / "m")


@pytest.mark.parametrize(
    ("entry_bytes", "message"),
    [
        (writer.entry(1, (3,), size=8), r"m: a has 8 bytes, but its shape \(3,\) and type float32 need 12"),
        (writer.entry(1, (2,), size=8), r"m\.data-00000-of-00001: a \(bytes 0 to 8\) has the checksum"),
        (writer.entry(99, (2,), size=8), r"m: a is of type number 99; allowed are"),
    ],
)
def test_broken_entries_are_named_when_they_are_read(tmp_path: Path, entry_bytes: bytes, message: str) -> None:
    writer.write_bundle(tmp_path / "m", {"a": np.zeros(2, np.float32)})
    writer.write_index(tmp_path / "m.index", [(b"", writer.HEADER), (b"a", entry_bytes)])
    with pytest.raises(InputError, match=message):
        open_bundle(tmp_path / "m").read("a")


def stored(data: bytes, compression: int = 0) -> bytes:
    """A block with its checksum, not compressed, whatever its trailer claims."""
    return data + bytes([compression]) + masked_crc32c(data + bytes([compression])).to_bytes(4, "little")


BAD_BLOCKS = {
    "compression": (stored(writer.block([]), 2), r"data block \(bytes 0 to 8\) is compressed by method 2"),
    "no snappy": (stored(b"\x05\xff\xff\xff\xff\xff", 1), "no snappy block"),
    "too much": (stored(writer.varint(2**40), 1), "no snappy block: 6 bytes cannot hold 1099511627776"),
    "empty": (stored(b""), "has 0 bytes, too few"),
    "places": (stored(b"\x09\x00\x00\x00"), "has 4 bytes, too few for the positions of 9"),
    "shared": (stored(b"\x01\x01\x00a" + bytes(4) + b"\x01\0\0\0"), "an entry after the key b'' reaches past"),
    "value": (stored(b"\x00\x01\x09a" + bytes(4) + b"\x01\0\0\0"), "an entry after the key b'' reaches past"),
    "number": (stored(b"\xff" * 11 + bytes(4) + b"\x01\0\0\0"), "no complete number at byte 0 of 19"),
    "large number": (stored(b"\xff" * 9 + b"\x02" + bytes(4) + b"\x01\0\0\0"), "no complete number at byte 0 of 18"),
}


@pytest.mark.parametrize("case", BAD_BLOCKS)
def test_broken_blocks_are_named(tmp_path: Path, case: str) -> None:
    data, message = BAD_BLOCKS[case]
    (tmp_path / "t").write_bytes(writer.table([data], [b"z"]))
    with pytest.raises(InputError, match=rf"t: .*{message}"):
        read_sorted_table(tmp_path / "t")


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(100))
    with pytest.raises(InputError, match=r"its last 8 bytes are 0000000000000000, expected 57fb808b247547db"):
        read_sorted_table(tmp_path / "t")


def test_numbers_of_64_bits() -> None:
    for value in (0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1):
        assert varint(b"\xff" + writer.varint(value) + b"\x01", 1) == (value, 1 + len(writer.varint(value)))
