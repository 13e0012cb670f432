"""Files that are made to run code, to fill the memory or to take hours are refused, or read within bounds."""

import bz2
import gzip
import io
import json
import lzma
import math
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertwright import files, load
from bertwright.cli import main
from bertwright.corpus.encode import EncodedDocuments
from bertwright.corpus.manifest import check_sizes
from bertwright.corpus.shards import Corpus, _length
from bertwright.corpus.writer import CorpusWriter
from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.interop.huggingface import read_weights
from bertwright.interop.sorted_table import read_sorted_table
from bertwright.interop.tensor_bundle import open_bundle
from bertwright.model.families.bert import BERT_FAMILY
from bertwright.model.folder import model_within, open_model
from bertwright.model.hf_weights import read_safetensors
from bertwright.objectives import pair_index as plans
from bertwright.reports.runs import read_run
from bertwright.shipped import folder_of
from bertwright.tables.reader import read_table as read_rows
from bertwright.tasks.question_answering.data import read_questions
from bertwright.text import decompress as opening
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wiki_cuts import count_unclosed
from bertwright.text.wikitext import passages
from bertwright.text.wordpiece import Tokenizer
from tests.support import bundle_writer as writer
from tests.support.encoders import write_encoder
from tests.support.other_weights import put

DEEP = "[" * 100_000
DUMP = "<mediawiki><page><title>T</title><id>1</id><revision><text>Some {} text.</text></revision></page></mediawiki>"
LAUGHS = '<!DOCTYPE m [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'


def read_paragraphs(path: Path, content: str | bytes) -> list[str]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [line for document in read_documents(path, TextSettings()) for line in document.paragraphs]


@pytest.mark.parametrize(
    ("prolog", "message"),
    [
        (LAUGHS, "declares a document type"),
        ("<?xml version='1.0'?><!-- <mediawiki> -->" + LAUGHS, "declares a document type"),
        ("<?xml version='1.0'?>" + " " * 70_000 + LAUGHS, "XML without an element in its first 65,536 bytes"),
    ],
)
def test_a_document_type_is_refused_wherever_it_hides(tmp_path: Path, prolog: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_paragraphs(tmp_path / "a.xml", prolog + DUMP.format("&b;"))


def test_a_page_without_end_is_refused(tmp_path: Path) -> None:
    assert read_paragraphs(tmp_path / "a.xml", DUMP.format("good")) == ["Some good text."]
    many = DUMP.format("x").replace("<text>", "<a/>" * 150_000 + "<text>")
    with pytest.raises(
        InputError, match=r"pages of at most 20 MB and 100,000 elements, got a larger one before its first page"
    ):
        read_paragraphs(tmp_path / "a.xml", many)
    outside = "<mediawiki>" + "<revision><text>x</text></revision>" * 60_000 + "</mediawiki>"
    with pytest.raises(InputError, match="100,000 elements"):
        read_paragraphs(tmp_path / "a.xml", outside)


def test_of_many_revisions_one_is_held(tmp_path: Path) -> None:
    revision = "<revision><text>Older words.</text></revision>"
    many = DUMP.format("new").replace("<revision>", revision * 60_000 + "<revision>", 1)
    assert read_paragraphs(tmp_path / "a.xml", many) == ["Some new text."]


@pytest.mark.parametrize(
    "markup",
    [
        "{{" + " " * 50_000,
        "<ref x",
        "{{convert|1",
        "<b>",
        "{{x|",
        "{|\n",
        "[[a|",
        '<b a="',
        "[[ {{ ]] }}",
        "<!--",
        ",",
        "(,",
    ],
)
def test_broken_markup_takes_no_hours(tmp_path: Path, markup: str) -> None:
    text = markup if len(markup) > 1000 else markup * (50_000 // len(markup))
    assert "Fine words." in read_paragraphs(
        tmp_path / "a.xml",
        DUMP.format("good").replace(
            "Some good text.", "Fine words.\n" + text.replace("&", "&amp;").replace("<", "&lt;")
        ),
    )


def test_nested_brackets_and_long_numbers_take_no_hours() -> None:
    assert passages("Words " + "(" * 30_000 + ")" * 30_000)
    assert passages("It is {{convert|" + "1" * 100_000 + "x|m}} long.")
    assert passages("#a" + " " * 50_000 + "Words.") == ()


def test_openings_without_an_end_are_counted() -> None:
    assert count_unclosed("[[a]] {{b|[[c]]}} <b>d</b> <br> <ref/> {|\n|}") == 0
    assert count_unclosed("[[a {{b ]] }} <b> <i") == 3
    assert count_unclosed("{{" * 100 + "}}" * 100) > 50


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_packed_table_that_unpacks_without_end_is_refused(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_ALWAYS_UNPACKED", 100_000)
    path = tmp_path / f"rows.tsv{suffix}"
    path.write_bytes(pack(b"a\tb\n" + b"1\t2\n" * 1_000_000))
    with pytest.raises(InputError, match="unpacks to more than 300 times its size"):
        read_rows(path)
    path.write_bytes(pack(b"a\tb\n1\t2\n"))
    assert read_rows(path).rows == (("1", "2"),)


def test_xz_takes_no_more_memory_than_is_allowed(tmp_path: Path) -> None:
    text = b"Some words.\n"
    greedy = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    with pytest.raises(InputError, match="broken or cut short: Memory usage limit"):
        read_paragraphs(
            tmp_path / "a.txt.xz",
            lzma.compress(text, filters=[{**greedy[0], "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]),
        )
    assert (
        read_paragraphs(tmp_path / "b.txt.xz", lzma.compress(text) + lzma.compress(text) + bytes(8))
        == ["Some words."] * 2
    )


def test_where_a_line_without_end_is_no_utf8(tmp_path: Path) -> None:
    long = "é".encode() * 100_001
    with pytest.raises(InputError, match=r"a\.txt:2: not UTF-8 text: byte 0xff at byte 200005 of the text"):
        read_paragraphs(tmp_path / "a.txt", b"a\n" + long + b"\xff" + long)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DEEP, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("9" * 5000, "not usable JSON"),
        ('"\\ud800"', "half of a surrogate pair"),
        (b"\xff", "not UTF-8"),
        ("0" * 3000, "expected at most \\d+ MB of JSON"),
    ],
)
def test_json_files_are_refused(
    tmp_path: Path, content: str | bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if "at most" in message:
        monkeypatch.setattr(files, "MOST_JSON", 1000)
    with pytest.raises(InputError, match=message):
        read_json(path)


def test_deep_json_is_refused_by_every_reader(tmp_path: Path) -> None:
    readers: dict[str, Callable[[Path], Any]] = {
        "run.json": lambda path: read_run(path.parent),
        "manifest.json": lambda path: Corpus.open(path.parent),
        "tokenizer.json": lambda path: Tokenizer.load(path.parent),
        "config.json": lambda path: open_model(str(path.parent)),
        "squad.json": read_questions,
        "rows.jsonl": read_rows,
        "text.jsonl": lambda path: list(read_documents(path, TextSettings())),
    }
    for name, read in readers.items():
        (tmp_path / name).write_text(DEEP)
        with pytest.raises(InputError, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize(
    "ids", [[-1, 0, 1], [0, 1, 2**70], [0, 1, 1], [0, 2, 3], [0, 1, "2"], [0, 1, 2.0], [0, 1, True]]
)
def test_impossible_ids_are_refused(tmp_path: Path, ids: list[Any]) -> None:
    Tokenizer([*SPECIAL, "a", "b", "c"], Rules(cased=False, strip_accents=False)).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["vocab"] |= {
        piece: 5 + id if type(id) is int else id for piece, id in zip("abc", ids, strict=True)
    }
    path.write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"tokenizer\.json: the piece"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("size", [10**9, 2**63, 2**64 - 1])
def test_a_safetensors_header_of_any_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "m.safetensors").write_bytes(size.to_bytes(8, "little") + b'{"a":1}' + bytes(100))
    with pytest.raises(InputError, match="broken or truncated safetensors file"):
        read_safetensors(tmp_path / "m.safetensors")


@pytest.mark.parametrize("places", [[(0, 8), (4, 12)], [(0, 8), (8, 2**40)], [(0, 8), (-8, 0)], [(4, 12), (12, 20)]])
def test_safetensors_that_overlap_or_lie_outside_are_refused(tmp_path: Path, places: list[tuple[int, int]]) -> None:
    header = {f"t{n}": {"dtype": "F32", "shape": [2], "data_offsets": list(bounds)} for n, bounds in enumerate(places)}
    raw = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(16))
    with pytest.raises(InputError, match="broken or truncated safetensors file"):
        read_safetensors(tmp_path / "m.safetensors")


def write_weights(folder: Path, value: Any, **options: Any) -> Path:
    torch.save(value, folder / "pytorch_model.bin", **options)
    return folder / "pytorch_model.bin"


class Calls:
    """A pickle that asks for a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("old", [False, True])
def test_calls_in_a_pickle_are_refused_unrun(tmp_path: Path, old: bool) -> None:
    for call in (Calls(Path.touch, tmp_path / "ran"), Calls(bytearray, 10**13)):
        write_weights(tmp_path, {"a": torch.ones(2), "b": call}, _use_new_zipfile_serialization=not old)
        with pytest.raises(InputError, match="holds more than tensors, so it is not opened"):
            read_weights(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_tensor_larger_than_its_numbers_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": torch.ones(1).half().expand(1 << 40)})
    with pytest.raises(InputError, match="the file holds fewer numbers"):
        read_weights(tmp_path)
    shared = torch.ones(1000)
    write_weights(tmp_path, {f"a{n}": shared.view(-1) for n in range(500)})
    with pytest.raises(InputError, match="the file holds fewer numbers"):
        read_weights(tmp_path)


def packed_again(path: Path, rename: Callable[[str], str] = str, kind: int = zipfile.ZIP_STORED) -> None:
    raw = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(raw) as before, zipfile.ZipFile(path, "w", kind) as after:
        for name in before.namelist():
            after.writestr(rename(name), before.read(name))


def test_packed_archives_and_paths_that_lead_outside(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    path = write_weights(tmp_path / "m", {"a": torch.zeros(1000)})
    packed_again(path, kind=zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="is compressed, which torch never does"):
        read_weights(tmp_path / "m")
    path = write_weights(tmp_path / "m", {"a": torch.zeros(1000)})
    packed_again(path, lambda name: f"../../{name}")
    before = sorted(tmp_path.rglob("*"))
    with suppress(InputError):  # torch finds its contents by the end of their names, or does not
        read_weights(tmp_path / "m")
    assert sorted(tmp_path.rglob("*")) == before
    path.write_bytes(write_weights(tmp_path / "m", {"a": torch.zeros(9)}).read_bytes() + b"behind")
    with pytest.raises(InputError, match="the archive does not end as torch's archives do"):
        read_weights(tmp_path / "m")


def test_an_index_that_names_a_block_many_times_is_refused(tmp_path: Path) -> None:
    data = writer.with_trailer(writer.block([(b"a", bytes(1000)), (b"b", b"2")]))
    block_entry = writer.varint(0) + writer.varint(len(data) - 5)
    index = writer.with_trailer(writer.block([(b"%09d" % n, block_entry) for n in range(20_000)], 1))
    meta = writer.with_trailer(writer.block([]))
    footer = b"".join(
        writer.varint(begin) + writer.varint(len(block) - 5)
        for begin, block in ((len(data), meta), (len(data) + len(meta), index))
    )
    path = tmp_path / "m.index"
    path.write_bytes(data + meta + index + footer.ljust(40, b"\0") + writer.MAGIC)
    with pytest.raises(InputError, match="more than the file"):
        read_sorted_table(path)


def test_keys_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.index"
    writer.write_index(path, [(b"k" * 5000, b"")])
    with pytest.raises(InputError, match="too long for names of variables"):
        read_sorted_table(path)


@pytest.mark.parametrize("shape", [(1,) * 9, (0, 2**63), (2**64 - 1,)])
def test_dimensions_too_many_or_too_large_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(8))
    writer.write_index(tmp_path / "m.index", [(b"", writer.HEADER), (b"a", writer.entry(1, shape))])
    with pytest.raises(InputError, match="dimensions are too many or too large"):
        open_bundle(tmp_path / "m")


def test_a_plan_whose_header_breaks_numpys_reader_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.npy"
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,), \n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24))
    held = object.__new__(plans.Plans)
    held._path = lambda _: path  # type: ignore[method-assign]
    assert held._read(0) is None
    assert "not a readable pair index" in capsys.readouterr().err


@pytest.mark.parametrize("offsets", [[0, 3, 2], [-1, 1, 2], [0, 1, 99], [0, 1, 2**62]])
def test_forged_offsets_are_refused(tmp_path: Path, offsets: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With checksums that fit."""
    monkeypatch.setattr(Corpus, "_refuse_changed", lambda *_: None)
    tokenizer = Tokenizer([*SPECIAL, *"abc"], Rules(cased=False, strip_accents=False))
    with CorpusWriter(tmp_path, tokenizer=tokenizer) as corpus:
        ids, first = np.array([5, 6, 7], np.uint16), np.array([0, 2, 3], np.int64)
        corpus.add(EncodedDocuments(ids=ids, sentence_first=first, document_first=np.arange(3)))
        corpus.finish(text={}, sources=(), dropped=0)
    path = tmp_path / "shard-00000.arrow"
    raw, whole = path.read_bytes(), np.array([0, 2, 3], np.int64).tobytes()
    assert raw.count(whole) == 1
    path.write_bytes(raw.replace(whole, np.array(offsets, np.int64).tobytes()))
    with pytest.raises(
        InputError, match=r"shard-00000\.arrow: record batch 0: expected offsets of 2 sentences that rise"
    ):
        Corpus.open(tmp_path).sentence_lengths()


def test_a_size_that_the_weights_do_not_have_takes_no_memory(tmp_path: Path) -> None:
    config = {"vocab_size": 2**23, "hidden_size": 2**20, "num_attention_heads": 1, "intermediate_size": 2**23}
    save_file({"bert.embeddings.word_embeddings.weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    for layers, message in (
        (1, r"bert\.embeddings\.word_embeddings\.weight has shape \(3, 4\), expected"),
        (9000, "config.json asks for 9000 layers, but there are 1 tensors"),
    ):
        shape = {**config, "num_hidden_layers": layers, "hidden_act": "gelu"}
        (tmp_path / "config.json").write_text(json.dumps(shape))
        with pytest.raises(InputError, match=message):
            open_model(str(tmp_path))


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "intermediate_size", "type_vocab_size"])
@pytest.mark.parametrize("value", [2**63 - 1, 10**30])
def test_a_size_beyond_all_numbers_is_refused(tmp_path: Path, name: str, value: int) -> None:
    shape = {
        "vocab_size": 3,
        "hidden_size": 4,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
    }
    save_file({"bert.embeddings.word_embeddings.weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**shape, "hidden_act": "gelu", name: value}))
    with pytest.raises(InputError, match="less than 16777216"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("pad", [3, 10**30])
def test_rows_are_filled_up_with_a_piece_that_there_is(tmp_path: Path, pad: int) -> None:
    shape = {"vocab_size": 3, "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 8}
    shape |= {"num_hidden_layers": 1, "hidden_act": "gelu", "pad_token_id": pad}
    save_file({"bert.embeddings.word_embeddings.weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(shape))
    with pytest.raises(InputError, match=f"pad_id {pad} is not below the vocab_size 3"):
        open_model(str(tmp_path))


def test_a_run_of_any_number_of_seeds_is_refused(tmp_path: Path) -> None:
    run = {"kind": "finetune", "settings": {"seeds": 10**15}, "data": {}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(InputError, match="expected at most 10,000 seeds"):
        read_run(tmp_path)


def test_bad_input_ends_with_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(DEEP)
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bertwright: ")
    assert "Traceback" not in said


def test_a_longest_word_beyond_every_number_is_refused(tmp_path: Path) -> None:
    Tokenizer([*SPECIAL, "a"], Rules(cased=False, strip_accents=False)).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["max_input_chars_per_word"] = 2**64
    path.write_text(json.dumps(described))
    with pytest.raises(InputError, match="not the description of a BERT tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("key", [{}, {"bert.encoder.layer.0.attention.self.key.weight": torch.ones(3)}])
def test_a_query_without_its_key_is_refused(key: dict[str, torch.Tensor]) -> None:
    with pytest.raises(InputError, match="expected query, key and value of the same shape"):
        BERT_FAMILY.weights_from_foreign(
            {"bert.encoder.layer.0.attention.self.query.weight": torch.ones(2, 2), **key}, "m"
        )


def test_a_pickle_takes_no_memory_for_a_length_that_it_claims(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02\x8b" + (2**31 - 1).to_bytes(4, "little") + b"1")
    with pytest.raises(InputError, match="broken or truncated"):
        read_weights(tmp_path)


def test_a_column_of_a_negative_length_is_refused(tmp_path: Path) -> None:
    class Negative:
        def __len__(self) -> int:
            raise SystemError

    with pytest.raises(InputError, match="the length of a column is negative"):
        _length(tmp_path, Negative())


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    listed: Any = SimpleNamespace(shards=[SimpleNamespace(name="[" * 300, bytes=1)], duplicates=None)
    with pytest.raises(InputError, match=r"manifest\.json: \[+… cannot be a file's name"):
        check_sizes(tmp_path, listed)


def small_bert(folder: Path, *, weights: Callable[[dict[str, torch.Tensor]], None], **said: Any) -> str:
    """A BERT of four layers, with other weights and another config.json."""
    write_encoder(folder, model_within(folder_of("small-wiki")), layers=4)
    tensors = load_file(folder / "model.safetensors")
    weights(tensors)
    put(folder, tensors)
    config = {**json.loads((folder / "config.json").read_text()), **said}
    kept = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return str(folder)


def test_layers_that_config_json_leaves_out_are_not_dropped_in_silence(tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "m", weights=lambda _: None, num_hidden_layers=3)
    with pytest.raises(
        InputError, match=r"12 tensors do not belong to the model of config\.json: bert\.encoder\.layer\.3\."
    ):
        open_model(folder)


def test_a_tensor_beside_a_weight_is_not_passed_over(tmp_path: Path) -> None:
    def scaled(tensors: dict[str, torch.Tensor]) -> None:
        tensors["bert.encoder.layer.1.output.dense.weight_scale"] = torch.ones(1)

    with pytest.raises(
        InputError,
        match=r"1 tensors do not belong to the model of .*: bert\.encoder\.layer\.1\.output\.dense\.weight_scale",
    ):
        open_model(small_bert(tmp_path / "m", weights=scaled))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused_before_they_answer(tmp_path: Path, value: float) -> None:
    def broken(tensors: dict[str, torch.Tensor]) -> None:
        tensors["bert.encoder.layer.1.attention.self.query.bias"][3] = value

    with pytest.raises(
        InputError,
        match=r"bert\.encoder\.layer\.1\.attention\.self\.\{query,key,value\}\.bias holds infinite values or values",
    ):
        load(small_bert(tmp_path / "m", weights=broken), precision="fp32")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden_size", None, r"config\.json: hidden_size is missing$"),
        ("layer_norm_eps", -1.0, "layer_norm_eps is -1.0: Input should be greater than 0"),
        ("hidden_dropout_prob", 1.0, "hidden_dropout_prob is 1.0: Input should be less than 1"),
    ],
)
def test_an_impossible_shape_is_reported_with_the_names_of_its_file(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    folder = small_bert(tmp_path / "m", weights=lambda _: None, **{name: value})
    with pytest.raises(InputError, match=message):
        open_model(folder)
