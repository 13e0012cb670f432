"""Ids and positions of pieces against `BertTokenizerLegacy`, the pure-Python tokenizer of transformers.

Where it is not the original's (google-research/bert, tokenization.py), the tests say so:

- it composes characters (NFC) before it splits, which the original does not: `Original` leaves that step out;
- it drops private-use characters, as the Rust code here does; the original keeps them, and their word is [UNK];
- it drops characters that Python's Unicode does not know; the original and the Rust code keep them.

And where the Rust code is neither's:

- it folds case letter by letter, so no final sigma is made of a capital at the end of a word;
- its tables of punctuation, marks and format characters are those of an older Unicode, and it leaves 256 ideographs
  (U+2B820 to U+2B91F) in the words beside them.
"""

import importlib.util
import lzma
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertwright.text.vocabulary import Rules, read_vocabulary
from bertwright.text.wordpiece import Tokenizer, import_vocabulary, train_wordpiece
from tests.support.texts import own_lines

pytest.importorskip("transformers", reason="has the oracle; it is in the dev extra")
legacy = importlib.import_module("transformers.models.bert.tokenization_bert_legacy")

UNCASED, CASED, MULTILINGUAL = RELEASED = (
    "bert-base-uncased-vocab.txt",
    "bert-base-cased-vocab.txt",
    "bert-base-multilingual-cased-vocab.txt",
)
UNKNOWN_IDEOGRAPHS = range(0x2B820, 0x2B920)
ODD = [
    "Smile 🙂🚲💨 family 👨‍👩‍👧 flag 🇰🇷 thumbs 👍🏽 keycap 1️⃣",
    "bell\x07 null\x00 escape\x1b[0m delete\x7f next\x85line soft\u00adhyphen",
    "zero\u200bwidth join\u200der mark\ufeff left\u200eright replaced\ufffd",
    "tab\tline\nreturn\r\nform\x0cfeed vertical\x0btab unit\x1fmark",
    "no\u00a0break en\u2002em\u2003thin\u2009wide\u3000ogham\u1680line\u2028paragraph\u2029narrow\u202fmath\u205fend",
    "e\u0301 E\u0301cole n\u0303 a\u0323\u0302 \u0301alone o\u0308\u0304\u0301 Å Å Ω ﬁ ﬀ ǅ ĳ ß ẞ İstanbul ı ſ",
    "한국어 한국어 ㅎㅎㅋ 가각힣 が か\u3099 カﾞ 日本語テキスト 漢字と仮名 豈 丽 𠀀 㐀",
    "[MASK] [CLS]a [SEP].[UNK] [PAD]##ing ## # @-@ ... --- $5.00 a_b^c`d~e|f\\g",
    "don't «quoted» “typographic” ¿qué? ¡sí! …·•§¶ ‚low‘ ‐‑‒–—― 、。「」！？",
    "नमस्ते ไทย עִבְרִית عَرَبِيّ Ελληνικά ΣΊΣΥΦΟΣ ΣΟΦΟΣ. Привет й ё",
    "   leading and trailing   ",
    "",
    " \t\u3000 ",
    "\u0301",
    "\u200b",
]


class Original:
    """transformers' tokenizer, with the original's longest word and without NFC."""

    def __init__(self, vocabulary: Path, rules: Rules) -> None:
        theirs = without_nfc().BertTokenizerLegacy(
            str(vocabulary), do_lower_case=not rules.cased, strip_accents=rules.strip_accents
        )
        self.basic, self.pieces, self.vocabulary = theirs.basic_tokenizer, theirs.wordpiece_tokenizer, theirs.vocab
        self.pieces.max_input_chars_per_word = rules.longest_word
        self.cased = rules.cased

    def words(self, text: str) -> list[str]:
        words: list[str] = self.basic.tokenize(text if self.cased else text.replace("Σ", "σ"))
        return words

    def ids(self, text: str) -> list[int]:
        return [self.vocabulary[piece] for word in self.words(text) for piece in self.pieces.tokenize(word)]


@cache
def without_nfc() -> ModuleType:
    """A second copy of transformers' module, in which composing characters changes nothing."""
    spec = importlib.util.find_spec(legacy.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.unicodedata = SimpleNamespace(  # type: ignore[attr-defined]
        category=unicodedata.category,
        normalize=lambda form, text: text if form == "NFC" else unicodedata.normalize(form, text),
    )
    return module


@cache
def learned_with_oracle(folder: Path, cased: bool, strip_accents: bool) -> tuple[Tokenizer, Original]:
    """A vocabulary learned from our own text, and the oracle for it."""
    folder = folder / f"{cased}-{strip_accents}"
    train_wordpiece(own_lines(), vocab_size=800, cased=cased, strip_accents=strip_accents).save(folder)
    tokenizer = Tokenizer.load(folder)
    return tokenizer, Original(folder / "vocab.txt", tokenizer.rules)


@cache
def released(vocabulary: Path) -> tuple[Tokenizer, Original]:
    tokenizer = import_vocabulary(vocabulary, cased=vocabulary.name != UNCASED)
    return tokenizer, Original(vocabulary, tokenizer.rules)


@pytest.fixture(scope="module")
def tokenizers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


# ---------------------------------------------------------------- real text


def wiki_lines(path: Path, every: int) -> list[str]:
    """Every so-many-th line of text of a WikiExtractor file."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        lines = (line.rstrip("\n") for line in stream)
        return [line for line in lines if line.strip() and not line.startswith(("<doc ", "</doc>"))][::every]


def reviews(path: Path) -> list[str]:
    return [line.split("\t")[1] for line in path.read_text("utf-8").split("\n")[1:] if line]


def assert_same_ids(ours: Tokenizer, lines: list[str], theirs: Iterable[list[int]]) -> None:
    for line, mine, other in zip(lines, ours.ids(lines), theirs, strict=True):
        assert mine == other, line


@pytest.mark.parametrize(
    ("vocabulary", "at_least"),
    [(UNCASED, 8_000), (CASED, 7_900), pytest.param(MULTILINGUAL, 34_500, marks=pytest.mark.slow)],
)  # 50,700 lines together
def test_released_vocabularies_on_real_lines(vocabulary: str, at_least: int, shared_data: Path) -> None:
    """transformers' tokenizer, changed in its longest word alone; a line that NFC would change goes to `Original`."""
    if vocabulary == UNCASED:
        lines = wiki_lines(shared_data / "enwiki" / "heldout.xz", 3)
    elif vocabulary == CASED:
        lines = wiki_lines(shared_data / "enwiki" / "wiki-00.xz", 19)
    else:
        lines = wiki_lines(shared_data / "ko" / "kowiki.xz", 10)
        lines += reviews(shared_data / "ko" / "nsmc-test.tsv") + reviews(shared_data / "ko" / "nsmc-train.tsv")[::2]
    assert len(lines) >= at_least
    path = shared_data / "vocab" / vocabulary
    ours, original = released(path)
    theirs = legacy.BertTokenizerLegacy(str(path), do_lower_case=vocabulary == UNCASED)
    theirs.wordpiece_tokenizer.max_input_chars_per_word = 200

    def expected(line: str) -> list[int]:
        if not unicodedata.is_normalized("NFC", line):
            return original.ids(line)
        ids: list[int] = theirs.convert_tokens_to_ids(theirs._tokenize(line))
        return ids

    assert sum(unicodedata.is_normalized("NFC", line) for line in lines) > 0.99 * len(lines)
    assert_same_ids(ours, lines, map(expected, lines))


@pytest.mark.parametrize("vocabulary", RELEASED)
def test_released_vocabularies_on_mixed_and_odd_lines(vocabulary: str, shared_data: Path) -> None:
    """English and Korean in one line, and unusual characters; ids and positions."""
    ours, theirs = released(shared_data / "vocab" / vocabulary)
    english = wiki_lines(shared_data / "enwiki" / "heldout.xz", 199)
    korean = wiki_lines(shared_data / "ko" / "kowiki.xz", 811)
    both = list(zip(english, korean, strict=False))
    assert len(both) > 110
    lines = (
        [f"{one} {other}" for one, other in both] + [f"{one}{other}" for other, one in both[::8]] + own_lines() + ODD
    )
    assert_same_ids(ours, lines, map(theirs.ids, lines))
    assert_places(ours, theirs, lines)


# ---------------------------------------------------------------- our own text, which is always at hand

RULES = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("cased", "strip_accents"), RULES)
def test_own_vocabularies(tokenizers_folder: Path, cased: bool, strip_accents: bool) -> None:
    ours, theirs = learned_with_oracle(tokenizers_folder, cased, strip_accents)
    lines = [*own_lines(), *ODD, " ".join(own_lines())]
    assert_same_ids(ours, lines, map(theirs.ids, lines))
    assert_places(ours, theirs, lines)


@pytest.mark.parametrize("longest", [100, 200])
def test_very_long_words(tokenizers_folder: Path, longest: int) -> None:
    """Letters are counted after folding: a syllable of Hangul is three, an accent none."""
    pieces = learned_with_oracle(tokenizers_folder, False, True)[0].pieces
    ours = Tokenizer(pieces, Rules(cased=False, strip_accents=True, longest_word=longest))
    theirs = Original(tokenizers_folder / "False-True" / "vocab.txt", ours.rules)
    assert read_vocabulary(tokenizers_folder / "False-True" / "vocab.txt") == pieces
    lines = [letter * count for letter in "aÉ골" for count in (33, 34, 66, 67, 99, 100, 101, 199, 200, 201, 500)]
    lines += ["e\u0301" * 100, "e\u0301" * 101, "a\u200b" * 200, "ab" * 50 + "." + "ba" * 100, "İ" * 200, "ß" * 101]
    assert_same_ids(ours, lines, map(theirs.ids, lines))
    unknown = {line for line, ids in zip(lines, ours.ids(lines), strict=True) if ids == [ours.unk_id]}
    assert {"a" * (longest + 1), "골" * (longest // 3 + 1)} <= unknown
    assert not {"a" * longest, "é" * longest, "골" * (longest // 3), "e\u0301" * 100} & unknown
    assert_places(ours, theirs, lines)


# ---------------------------------------------------------------- any text


def settled(char: str) -> bool:
    """Return True if the Rust code's older tables have Python's entry for the character, as for letters and digits."""
    if char in CHANGED or ord(char) in UNKNOWN_IDEOGRAPHS or unicodedata.category(char) in ("Cn", "Cs"):
        return False
    is_old = unicodedata.ucd_3_2_0.category(char) != "Cn"
    return is_old or (unicodedata.category(char)[0] not in "PM" and unicodedata.category(char) != "Cf")


CHANGED = "\u166d\u1734\u1885\u1886"
"""Characters that Unicode has put into another category since."""
ANY = st.characters(exclude_categories=("Cs", "Cn")).filter(settled)
TEXTS = st.text(st.one_of(st.sampled_from("abcdeABCDE ,.'#[]\t\u0301Σσ골"), ANY), max_size=80)


@pytest.mark.parametrize(("cased", "strip_accents"), RULES)
@settings(max_examples=150, deadline=None)
@example(text="ΟΔΥΣΣΕΥΣ, Σ")
@example(text="\u1100\u1161\u11a8\u0323\u0307s")
@given(text=TEXTS)
def test_any_text(tokenizers_folder: Path, cased: bool, strip_accents: bool, text: str) -> None:
    ours, theirs = learned_with_oracle(tokenizers_folder, cased, strip_accents)
    assert ours.ids([text]) == [theirs.ids(text)]
    assert_places(ours, theirs, [text])


@pytest.mark.parametrize("cased", [pytest.param(True, marks=pytest.mark.slow), False])
def test_every_character_of_unicode(tokenizers_folder: Path, cased: bool) -> None:
    """Each character between two letters. The vocabulary holds the oracle's words, so that ids show the cuts."""
    theirs = learned_with_oracle(tokenizers_folder, cased, not cased)[1]
    texts = [f"a{char}b" for char in assigned()]
    words = [theirs.words(text) for text in texts]
    known = {word: None for some in words for word in some}
    vocabulary = Tokenizer(
        [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *known], Rules(cased=cased, strip_accents=not cased)
    )
    differ = {
        text[1]
        for text, ids, some in zip(texts, vocabulary.ids(texts), words, strict=True)
        if [vocabulary.pieces[id] for id in ids] != some
    }
    assert not {char for char in differ if settled(char)}
    assert set(map(chr, UNKNOWN_IDEOGRAPHS)) <= differ  # one that the Rust code learns of should go from the list above
    assert "\u166d" in differ


def assigned() -> Iterator[str]:
    """Every character of Python's Unicode, one private-use character among them."""
    return (
        char
        for char in map(chr, range(0x110000))
        if unicodedata.category(char) not in ("Cn", "Cs", "Co") or char == "\ue000"
    )


def test_the_steps_that_are_not_the_originals(tokenizers_folder: Path) -> None:
    """The differences that the head of this file lists, one by one."""
    ours, theirs = learned_with_oracle(tokenizers_folder, True, False)
    composing = legacy.BasicTokenizer(do_lower_case=False)
    assert composing.tokenize("e\u0301 Å") == ["é", "Å"]
    assert theirs.words("e\u0301 Å") == ["e\u0301", "Å"]
    folding = legacy.BasicTokenizer(do_lower_case=True, strip_accents=False)
    assert folding.tokenize("ΣΟΦΟΣ") == ["σοφος"]
    letters = Tokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "σοφος", "σοφοσ", "ab", "e\u0301", "é"],
        Rules(cased=False, strip_accents=False),
    )
    assert [letters.pieces[id] for id in letters.ids(["ΣΟΦΟΣ a\ue000b e\u0301"])[0]] == ["σοφοσ", "ab", "e\u0301"]
    assert composing.tokenize("a\ue000b") == ["ab"]
    assert ours.cased


# ---------------------------------------------------------------- places


def assert_places(ours: Tokenizer, theirs: Original, lines: list[str]) -> None:
    """Spans lie in the text in order; folded, what they span is their pieces, and what no span holds is nothing.

    Pieces made of one character (a syllable of Hangul comes apart into letters) share it and are looked at together.
    """
    for line, (ids, spans) in zip(lines, ours.offsets(lines), strict=True):
        assert ids == ours.ids([line])[0]
        assert all(0 <= first < last <= len(line) for first, last in spans), line
        assert spans == sorted(spans)
        assert [last for _, last in spans] == sorted(last for _, last in spans)
        done = 0
        for first, last, pieces in together(ids, spans):
            assert theirs.words(line[done:first]) == []
            said = "".join(theirs.words(line[first:last]))
            if ours.unk_id in pieces:
                assert len(pieces) == 1
                assert theirs.ids(line[first:last]) == [ours.unk_id]
            else:
                assert said == "".join(ours.pieces[id].removeprefix("##") for id in pieces), line[first:last]
            done = last
        assert theirs.words(line[done:]) == []


def together(ids: list[int], spans: list[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """(first, last, ids) of runs of pieces whose spans overlap."""
    runs: list[tuple[int, int, list[int]]] = []
    for id, (first, last) in zip(ids, spans, strict=True):
        if runs and first < runs[-1][1]:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]), [*runs[-1][2], id])
        else:
            runs.append((first, last, [id]))
    return runs
