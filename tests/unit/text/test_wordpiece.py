"""Loading, saving, importing and learning vocabularies: rules, errors, and the same bytes on every run."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.errors import InputError
from bertwright.text import wordpiece as module
from bertwright.text.bpe import train_bpe
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.extend_vocabulary import extend_tokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer, import_vocabulary, train_wordpiece
from tests.support.texts import OWN_TEXT, pieces_of

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "a", "b", "##b", "mask", "é", "e", "."]


def own_paragraphs() -> list[str]:
    documents = read_documents(OWN_TEXT, TextSettings())
    return [paragraph for document in documents for paragraph in document.paragraphs]


@cache
def learned(**rules: bool) -> Tokenizer:
    return train_wordpiece(own_paragraphs(), vocab_size=800, **rules)


def tokenizer_of(pieces: list[str] = PIECES, *, cased: bool = False, strip_accents: bool = False) -> Tokenizer:
    return Tokenizer(pieces, Rules(cased=cased, strip_accents=strip_accents))


def write_vocabulary(folder: Path, lines: list[str]) -> Path:
    path = folder / "vocab.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def test_ids_and_special_tokens_are_those_of_the_list() -> None:
    tokenizer = tokenizer_of()
    assert tokenizer.vocab_size == len(PIECES) == 15
    assert tokenizer.special_ids == (0, 2, 3, 4, 5)
    assert (
        tokenizer.pad_id,
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    ) == tokenizer.special_ids
    assert tokenizer.continuation.dtype == np.bool_
    assert np.flatnonzero(tokenizer.continuation).tolist() == [10]
    assert (tokenizer.id_of("##b"), tokenizer.id_of("absent")) == (10, None)
    assert tokenizer.ids(["ab b", "", "abab"]) == [[8, 10, 9], [], [2]]
    assert tokenizer.ids([]) == []


def test_special_tokens_in_a_text_are_text_unless_asked_for() -> None:
    tokenizer = tokenizer_of()
    assert tokenizer.ids(["a [MASK]."]) == [[8, 6, 11, 7, 14]]
    assert tokenizer.ids(["a [MASK]."], special=True) == [[8, 5, 14]]
    assert tokenizer.ids(["a [MASK]."]) == [[8, 6, 11, 7, 14]]


def test_decode_shows_special_tokens_and_joins_pieces() -> None:
    tokenizer = tokenizer_of()
    assert tokenizer.decode([3, 8, 10, 5, 14, 4]) == "[CLS] ab [MASK]. [SEP]"
    assert tokenizer.decode(np.array([8, 10], dtype=np.uint16).tolist()) == "ab"


def test_offsets_point_into_the_text() -> None:
    text = " AB  é."
    (ids, spans) = tokenizer_of().offsets([text])[0]
    assert ids == tokenizer_of().ids([text])[0] == [8, 10, 12, 14]
    assert [text[first:last] for first, last in spans] == ["A", "B", "é", "."]


def test_long_texts_are_not_cut() -> None:
    assert tokenizer_of().ids(["a " * 5_000]) == [[8] * 5_000]


def test_words_longer_than_the_limit_are_unknown(tmp_path: Path) -> None:
    pieces = [*SPECIAL, "a", "##a"]
    ours = tokenizer_of(pieces)
    assert [len(ids) for ids in ours.ids(["a" * 100, "a" * 101])] == [100, 1]
    theirs = import_vocabulary(write_vocabulary(tmp_path, pieces), cased=False)
    assert [len(ids) for ids in theirs.ids(["a" * 200, "a" * 201])] == [200, 1]
    for tokenizer, longest in ((ours, 100), (theirs, 200)):
        tokenizer.save(tmp_path)
        assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["max_input_chars_per_word"] == longest
        assert Tokenizer.load(tmp_path).rules.longest_word == longest


def test_own_vocabularies_keep_hangul_and_voicing_marks() -> None:
    assert pieces_of(learned(), "골목 ガラス É") == ["골목", "ガ", "##ラ", "##ス", "é"]
    # asked for, letters are decomposed and the marks dropped, as Google's rules do
    letters = "".join(pieces_of(learned(strip_accents=True), "골목 ガ Café")).replace("##", "")
    assert letters == unicodedata.normalize("NFD", "골목") + "カcafe"
    assert not any("가" <= letter <= "힣" for piece in learned(strip_accents=True).pieces for letter in piece)


def test_cased_and_uncased() -> None:
    assert pieces_of(learned(cased=True), "The the")[0] != pieces_of(learned(cased=True), "The the")[-1] == "the"
    assert pieces_of(learned(), "The the") == ["the", "the"]
    assert not any(piece != piece.lower() for piece in learned().pieces if piece not in SPECIAL)
    assert (learned().cased, learned(cased=True).cased) == (False, True)


def test_imported_vocabularies_keep_googles_rules(tmp_path: Path) -> None:
    pieces = [*SPECIAL, "e", "é", "É", "が", "か"]
    uncased = import_vocabulary(write_vocabulary(tmp_path, pieces), cased=False)
    assert pieces_of(uncased, "É が") == ["e", "か"]
    cased = import_vocabulary(write_vocabulary(tmp_path, pieces), cased=True)
    assert pieces_of(cased, "É が") == ["É", "が"]


def test_saved_and_loaded_are_the_same(tmp_path: Path) -> None:
    for tokenizer in (tokenizer_of(), tokenizer_of(cased=True), learned(), learned(strip_accents=True)):
        tokenizer.save(tmp_path / "folder")
        assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == list(FILES)
        loaded = Tokenizer.load(tmp_path / "folder")
        assert (loaded.hash, loaded.pieces, loaded.rules) == (tokenizer.hash, tokenizer.pieces, tokenizer.rules)
        assert loaded.ids(own_paragraphs()) == tokenizer.ids(own_paragraphs())
        before = {name: (tmp_path / "folder" / name).read_bytes() for name in FILES}
        loaded.save(tmp_path / "again")
        assert {name: (tmp_path / "again" / name).read_bytes() for name in FILES} == before


def test_the_files_say_what_transformers_needs(tmp_path: Path) -> None:
    tokenizer_of(cased=True).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "BertTokenizer"
    assert (config["do_lower_case"], config["strip_accents"]) == (False, False)
    assert (tmp_path / "vocab.txt").read_text() == "".join(f"{piece}\n" for piece in PIECES)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    assert [token["content"] for token in described["added_tokens"]] == list(SPECIAL)


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for tokenizer in (learned(), learned(cased=True), learned(strip_accents=True)):
        tokenizer.save(tmp_path)
        theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
        assert type(theirs).__name__.startswith("BertTokenizer")
        for line, ids in zip(own_paragraphs(), tokenizer.ids(own_paragraphs()), strict=True):
            assert theirs(line)["input_ids"] == [tokenizer.cls_id, *ids, tokenizer.sep_id]


def test_special_tokens_in_a_text_are_ordinary_text_as_with_split_special_tokens(tmp_path: Path) -> None:
    """The manual gives this option to readers in transformers; without it a typed token is read as the token."""
    transformers = pytest.importorskip("transformers")
    texts = ["a [SEP] b", "[MASK][CLS]", "[UNK] and [PAD]", "[sep]", "no token"]
    for tokenizer in (learned(), learned(cased=True)):
        tokenizer.save(tmp_path)
        expected = [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in tokenizer.ids(texts)]
        split = transformers.AutoTokenizer.from_pretrained(str(tmp_path), split_special_tokens=True)
        assert split(texts)["input_ids"] == expected
        assert split("a", texts[0])["input_ids"] == [*split("a")["input_ids"], *expected[0][1:]]
        default = transformers.AutoTokenizer.from_pretrained(str(tmp_path))(texts)["input_ids"]
        assert [ids == other for ids, other in zip(default, expected, strict=True)] == [False, False, False, True, True]


def test_different_vocabularies_and_rules_have_different_hashes() -> None:
    swapped = [*PIECES[:-2], PIECES[-1], PIECES[-2]]
    others = [
        tokenizer_of(),
        tokenizer_of(swapped),
        tokenizer_of(PIECES[:-1]),
        tokenizer_of(cased=True),
        tokenizer_of(strip_accents=True),
    ]
    longer = Tokenizer(PIECES, Rules(cased=False, strip_accents=False, longest_word=200))
    assert len({tokenizer.hash for tokenizer in [*others, longer]}) == 6
    assert tokenizer_of().hash == tokenizer_of().hash
    assert len(bytes.fromhex(tokenizer_of().hash)) == 32


def test_it_can_be_sent_to_a_process() -> None:
    sent = pickle.loads(pickle.dumps(learned()))
    assert sent.hash == learned().hash
    assert sent.ids(own_paragraphs()) == learned().ids(own_paragraphs())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*SPECIAL, "a", "b", "a"], r"the piece 'a' has two ids, 5 and 7 \(in vocab\.txt lines 6 and 8"),
        ([*SPECIAL[:4], "a"], r"the special token \[MASK\] is missing"),
        ([*SPECIAL, "", "a"], "vocab.txt:6: expected a piece, got an empty line"),
        ([], "vocab.txt:1: expected a piece, got an empty line"),
    ],
)
def test_broken_vocabularies_are_refused(tmp_path: Path, lines: list[str], words: str) -> None:
    path = write_vocabulary(tmp_path, lines)
    with pytest.raises(InputError, match=words) as caught:
        import_vocabulary(path, cased=False)
    assert str(path) in str(caught.value)


def test_vocabularies_in_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join([*SPECIAL, "é"]).encode("latin-1"))
    with pytest.raises(InputError, match=r"vocab\.txt:6: not UTF-8 text"):
        import_vocabulary(path, cased=False)
    with pytest.raises(InputError, match=r"absent\.txt: cannot be read"):
        import_vocabulary(tmp_path / "absent.txt", cased=False)


def test_line_ends_and_byte_order_mark_of_a_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(("\ufeff" + "\r\n".join([*SPECIAL, "a\u2028"]) + "\r\n").encode())
    assert import_vocabulary(path, cased=False).pieces == [*SPECIAL, "a\u2028"]


def change_nested(path: Path, **values: Any) -> None:
    described = json.loads(path.read_text())
    for dotted, value in values.items():
        *parents, last = dotted.split("__")
        inner = described
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    path.write_text(json.dumps(described))


@pytest.mark.parametrize("missing", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("rules", [{"cased": True}, {"strip_accents": True}, {"cased": False, "strip_accents": False}])
def test_one_of_the_two_vocabulary_files_is_enough(tmp_path: Path, missing: str, rules: dict[str, bool]) -> None:
    tokenizer_of(**rules).save(tmp_path)
    (tmp_path / missing).unlink()
    assert Tokenizer.load(tmp_path).hash == tokenizer_of(**rules).hash


@pytest.mark.parametrize("within", ["model", "tokenizer"])
def test_a_run_and_a_corpus_give_the_tokenizer_within(tmp_path: Path, within: str) -> None:
    tokenizer_of().save(tmp_path / "folder" / within)
    assert Tokenizer.load(tmp_path / "folder").hash == tokenizer_of().hash
    assert open_tokenizer_folder(tmp_path / "folder").hash == tokenizer_of().hash


def test_a_folder_that_says_too_little_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json: there is no such file; name a tokenizer or model folder"):
        Tokenizer.load(tmp_path)
    write_vocabulary(tmp_path, PIECES)
    with pytest.raises(InputError, match=r"tokenizer_config\.json: expected do_lower_case \(true or false\)"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert Tokenizer.load(tmp_path).rules == Rules(cased=False, strip_accents=True)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenize_chinese_chars": false}')
    with pytest.raises(InputError, match="tokenize_chinese_chars is false"):
        Tokenizer.load(tmp_path)
    write_vocabulary(tmp_path, [*SPECIAL, "a", "b", "a"])
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(InputError, match="the piece 'a' has two ids, 5 and 7"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(InputError, match="expected a JSON object, got a list"):
        Tokenizer.load(tmp_path)


def test_a_folder_whose_files_disagree_is_refused(tmp_path: Path) -> None:
    tokenizer_of().save(tmp_path)
    write_vocabulary(tmp_path, [*PIECES[:-1], "!"])
    with pytest.raises(
        InputError, match=r"vocab\.txt:15: the piece '!' has the id 14 here and none in tokenizer\.json"
    ):
        Tokenizer.load(tmp_path)
    write_vocabulary(tmp_path, PIECES[:-1])
    with pytest.raises(InputError, match=r"vocab\.txt holds 14 pieces and tokenizer\.json 15"):
        Tokenizer.load(tmp_path)
    write_vocabulary(tmp_path, PIECES)
    change_nested(tmp_path / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(InputError, match=r"do_lower_case is False, but True in tokenizer\.json"):
        Tokenizer.load(tmp_path)
    change_nested(tmp_path / "tokenizer_config.json", do_lower_case=True, strip_accents=True)
    with pytest.raises(InputError, match=r"strip_accents is True, but False in tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).hash == tokenizer_of().hash


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalizer__type": "NFC"}, "normalizer is 'NFC'; a BERT tokenizer has 'BertNormalizer'"),
        ({"normalizer__handle_chinese_chars": False}, "normalizer.handle_chinese_chars is False"),
        ({"normalizer": None}, "not the description of a BERT tokenizer"),
        ({"pre_tokenizer__type": "ByteLevel"}, "pre_tokenizer is 'ByteLevel'"),
        ({"model__type": "BPE"}, "model is 'BPE'"),
        ({"model__unk_token": "<unk>"}, "model.unk_token is '<unk>'"),
        ({"model__max_input_chars_per_word": 0}, "not the description of a BERT tokenizer"),
        ({"model__vocab": None}, "model.vocab is missing or no object"),
        ({"model__vocab": {"[PAD]": 0, "a": 2}}, "the piece 'a' has the id 2; expected 1"),
        ({"added_tokens": [{"id": 99, "content": "<new>"}]}, "the added token '<new>' is not in the vocabulary"),
        ({"added_tokens": True}, "expected a list in added_tokens, got True"),
        ({"added_tokens": [{"id": 0, "content": []}]}, "expected an added token with text in 'content'"),
    ],
)
def test_other_kinds_of_tokenizer_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    tokenizer_of().save(tmp_path)
    change_nested(tmp_path / "tokenizer.json", **changes)
    with pytest.raises(InputError, match=words):
        Tokenizer.load(tmp_path)


def test_a_description_from_elsewhere_is_read_by_its_rules(tmp_path: Path) -> None:
    tokenizer_of().save(tmp_path)
    change_nested(tmp_path / "tokenizer.json", normalizer__strip_accents=None, truncation={"max_length": 3}, padding={})
    change_nested(tmp_path / "tokenizer_config.json", strip_accents=None)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.rules == Rules(cased=False, strip_accents=True)  # unsaid, accents go where case goes
    assert pieces_of(loaded, "É a a a a") == ["e", "a", "a", "a", "a"]


def test_a_broken_description_is_named(tmp_path: Path) -> None:
    tokenizer_of().save(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{\n"normalizer": ')
    with pytest.raises(InputError, match=r"tokenizer\.json:2: not valid JSON"):
        Tokenizer.load(tmp_path)


LEARN = """
import sys
from pathlib import Path
from bertwright.text.wordpiece import train_wordpiece
text = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
train_wordpiece(text, vocab_size=700).save(Path(sys.argv[2]))
"""


def test_learning_gives_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    hashes = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("2", "2"), ("5", "3")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        out = tmp_path / f"{threads}-{seed}"
        subprocess.run([sys.executable, "-c", LEARN, str(OWN_TEXT), str(out)], env=environment, check=True, timeout=120)
        hashes.add(hashlib.sha256(b"".join((out / name).read_bytes() for name in FILES)).hexdigest())
    assert len(hashes) == 1


def test_the_order_of_texts_does_not_matter() -> None:
    assert train_wordpiece(reversed(own_paragraphs()), vocab_size=800).hash == learned().hash


def test_the_order_of_pieces() -> None:
    pieces = learned().pieces
    assert pieces[:5] == list(SPECIAL)
    rest = pieces[5:]
    num_letters = next(position for position, piece in enumerate(rest) if len(piece) > 1)
    letters = rest[:num_letters]
    num_inner = next(position for position, piece in enumerate(rest[num_letters:]) if len(piece) != 3)
    inner = rest[num_letters : num_letters + num_inner]
    assert letters == sorted(letters)
    assert inner == sorted(inner)
    assert all(piece.startswith("##") for piece in inner)
    assert {"a", "골", "ガ", "☕"} <= set(letters)
    assert "##☕" not in inner
    assert all(len(piece.removeprefix("##")) > 1 for piece in rest[num_letters + num_inner :])


def test_texts_are_read_once_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream() -> Iterator[str]:
        yield from own_paragraphs()

    monkeypatch.setattr(module, "_BLOCK_CHARACTERS", 500)
    monkeypatch.setattr(module, "_FEED_CHARACTERS", 50)
    assert train_wordpiece(stream(), vocab_size=800).hash == learned().hash


def test_rarest_words_go_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_MOST_WORDS", 3)
    tokenizer = train_wordpiece(["xy xy xy xy", "ab ab", "cd", "ef ef ef", "gh"], vocab_size=20)
    assert sorted(piece for piece in tokenizer.pieces if len(piece) == 2) == ["ab", "ef", "xy"]
    assert "some that occur 1 times or less were left out" in capsys.readouterr().err


def test_what_is_seen_often_counts_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that come again and again among ever new ones, in the beginning, the end, or all over the text."""
    monkeypatch.setattr(module, "_MOST_WORDS", 40)
    monkeypatch.setattr(module, "_BLOCK_CHARACTERS", 200)
    rules = Rules(cased=False, strip_accents=False)
    new = [f"n{number}" for number in range(600)]
    for begin, every in ((0, 1), (500, 1), (0, 6)):
        text = [f"{word} often" if at >= begin and (at - begin) % every == 0 else word for at, word in enumerate(new)]
        text = text if begin or every > 1 else [*text[:100], *new[100:]]
        true = sum(line.endswith("often") for line in text)
        assert true == 100
        counted = module.count_words(text, rules)
        assert len(counted) <= 40
        assert true - 60 <= counted["often"] <= true


def test_more_pieces_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(InputError, match="100,000,000,000,000,000,000 pieces: expected at most 10,000,000"):
        train_wordpiece(own_paragraphs(), vocab_size=10**20)
    with pytest.raises(InputError, match="20,000,000,000 merges: expected at most"):
        train_bpe(own_paragraphs(), merges=20_000_000_000)
    with pytest.raises(InputError, match="10,000,001 pieces to add: expected at most"):
        extend_tokenizer(learned(), own_paragraphs(), add=10_000_001)


def test_rare_characters_are_left_out_by_count_then_code_point(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_wordpiece(["aaaa bbb dc"], vocab_size=100, coverage=0.85)
    assert tokenizer.pieces[5:] == ["a", "b", "c", "##a", "##b", "##c", *tokenizer.pieces[11:]]
    assert pieces_of(tokenizer, "d a") == ["[UNK]", "a"]
    assert "1 rare characters (11.111 % of the text) are left out" in capsys.readouterr().err


def test_a_short_text_gives_fewer_pieces_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_wordpiece(["so so so"], vocab_size=100)
    assert tokenizer.pieces == [*SPECIAL, "o", "s", "##o", "##s", "so"]
    assert "it gives 10 pieces, fewer than the 100 requested" in capsys.readouterr().err


@pytest.mark.parametrize("texts", [[], ["", " \n\t"], ["\x00\u200b"]])
def test_texts_without_a_word_are_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="the text holds no word"):
        train_wordpiece(texts, vocab_size=100)


def test_too_small_a_vocabulary_is_refused() -> None:
    texts = ["ab, ab"]
    assert train_wordpiece(texts, vocab_size=10).pieces == [*SPECIAL, ",", "a", "b", "##a", "##b"]
    with pytest.raises(InputError, match=r"9 pieces is too small .* 3 characters, 2 of them .* need at least 10"):
        train_wordpiece(texts, vocab_size=9)
