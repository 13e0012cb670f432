"""Files of sentences: columns and JSON lines, documents, bad input with its line, which file of a folder is which."""

import gzip
import io
import json
import sys
from types import SimpleNamespace

import pytest

from bertwright.errors import InputError
from bertwright.tasks.tagging.conll import Columns, read_tag_lines, sentences_of
from bertwright.tasks.tagging.files import split_tagged, tag_dev_file, tag_train_file


def read_tagged_sentences(path, with_tags=True, **columns):
    return sentences_of(read_tag_lines(path), Columns(**columns), with_tags=with_tags)


SPACES = "Ada B-PER\nwrote O\n\nIn O\nParis B-LOC\n"
CORPUS = [(("Ada", "wrote"), ("B-PER", "O")), (("In", "Paris"), ("O", "B-LOC"))]


def pairs(sentences):
    return list(zip(sentences.words, sentences.tags, strict=True))


@pytest.mark.parametrize(
    "content",
    [
        SPACES,
        SPACES.replace(" ", "\t"),
        SPACES.replace("\n", "\r\n"),
        "\ufeff" + SPACES,
        SPACES.rstrip("\n"),
        "\n\n" + SPACES.replace("\n\n", "\n \n\t\n") + "\n\n",
        SPACES.replace(" ", "   "),
        SPACES.replace(" B-", " NNP x B-").replace(" O", " VB y O"),
        SPACES.replace(" ", "\t").replace("\n\n", "\n\t\n"),
    ],
    ids=["spaces", "tabs", "crlf", "bom", "no end", "blank lines", "several spaces", "four columns", "a lone tab"],
)
def test_columns_are_read_as_they_are(write, content):
    assert pairs(read_tagged_sentences(write("a.conll", content))) == CORPUS


def test_columns_may_be_chosen(write):
    path = write("a.conll", "1 Ada NNP B-PER\n2 wrote VBD O\n")
    assert pairs(read_tagged_sentences(path, word="2", tag="3")) == [(("Ada", "wrote"), ("NNP", "VBD"))]
    assert pairs(read_tagged_sentences(path, word="2")) == [(("Ada", "wrote"), ("B-PER", "O"))]


def test_lines_of_words_are_kept(write):
    sentences = read_tagged_sentences(write("a.conll", SPACES))
    assert sentences.lines == ((1, 2), (4, 5))
    assert sentences.location(1, 1).endswith("a.conll:5")
    assert sentences.num_words == 4
    assert sentences.select([1]).words == (("In", "Paris"),)


def test_words_without_tags_are_read_where_none_are_asked_for(write):
    sentences = read_tagged_sentences(write("a.conll", "Ada\nwrote\n\nIn\n"), with_tags=False)
    assert (sentences.words, sentences.tags) == ((("Ada", "wrote"), ("In",)), None)


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_document_lines_begin_documents(write, separator):
    row = f"-DOCSTART-{separator}-X-{separator}O\n\n"
    body = f"a{separator}NN{separator}O\n\n"
    sentences = read_tagged_sentences(write("a.conll", body + row + body + body + row + row + body + row))
    assert len(sentences) == 4
    assert len(set(sentences.documents)) == 3
    assert sentences.documents[1] == sentences.documents[2]
    assert read_tagged_sentences(write("b.conll", body)).documents is None


def test_a_document_line_ends_a_sentence_and_may_stand_alone(write):
    sentences = read_tagged_sentences(write("a.conll", "a O\n-DOCSTART-\nb O\n"))
    assert sentences.words == (("a",), ("b",))


def test_a_hash_is_a_word_and_a_comment_has_no_tab(write):
    tabs = "# sent_id = 1\n# two\n#\tO\nx\tO\n\n#\tO\n#tag\tB-X\n"
    assert read_tagged_sentences(write("a.conll", tabs)).words == (("#", "x"), ("#", "#tag"))
    assert read_tagged_sentences(write("b.conll", "# O\nx O\n")).words == (("#", "x"),)
    with pytest.raises(InputError, match=r"c\.conll:2: expected 2 columns, as on line 1, got 1"):
        read_tagged_sentences(write("c.conll", "x\tO\n# within a sentence\n"))


@pytest.mark.parametrize("with_tags", [True, False])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_comments_with_tabs_before_a_sentence_are_no_words(write, columns, with_tags):
    rows = ["Ada\tNNP\tB-X", "wrote\tVB\tO"]
    body = "".join("\t".join(row.split("\t")[:columns]) + "\n" for row in rows)
    address = "#\thttps://example.org/status/1\t[2010-01-01]\n"
    path = write("a.conll", f"{address}{body}\n{address}# two\n{body}")
    if with_tags and columns == 1:
        with pytest.raises(InputError, match=r"a\.conll:2: column 1 of 1 cannot be both word and tag"):
            read_tagged_sentences(path)
        return
    sentences = read_tagged_sentences(path, with_tags=with_tags)
    assert sentences.words == (("Ada", "wrote"),) * 2
    assert sentences.lines == ((2, 3), (7, 8))


def test_one_tab_does_not_make_a_file_tab_separated(write):
    rows = SPACES.replace("Paris B-LOC", "Paris\tB-LOC")
    assert pairs(read_tagged_sentences(write("a.conll", rows))) == CORPUS
    assert pairs(read_tagged_sentences(write("b.conll", SPACES.replace("wrote O", "wrote O\t")))) == CORPUS
    with pytest.raises(InputError, match=r"c\.conll:2: expected 2 columns, as on line 1, got 3"):
        read_tagged_sentences(write("c.conll", "Ada B-PER\nwrote a\tO\nIn O\nParis B-LOC\n"))


def test_the_odd_row_is_named_even_if_it_is_the_first(write):
    for odd, got in (("Ada", 1), ("Ada x B-PER", 3), ("Ada B-PER", 1)):
        separator = "\t" if odd == "Ada B-PER" else " "
        path = write("a.conll", f"{odd}\nwrote{separator}O\nIn{separator}O\n")
        for with_tags in (True, False):
            with pytest.raises(InputError, match=rf"a\.conll:1: expected 2 columns, as on line 2, got {got}"):
                read_tagged_sentences(path, with_tags=with_tags)


def test_words_with_spaces_and_other_kinds_of_space(write):
    assert read_tagged_sentences(write("a.tsv", "New York\tB-LOC\n\u00a0\tO\n")).words == (("New York", "\u00a0"),)
    assert read_tagged_sentences(write("a.conll", "\u3000 O\n")).words == (("\u3000",),)


def test_compressed_files_and_standard_input(write, monkeypatch):
    assert pairs(read_tagged_sentences(write("a.conll.gz", gzip.compress(SPACES.encode())))) == CORPUS
    for content in (SPACES, '{"tokens": ["Ada", "wrote"]}\n{"tokens": ["In", "Paris"]}\n'):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
        sentences = read_tagged_sentences("-", with_tags=False)
        assert sentences.words == (("Ada", "wrote"), ("In", "Paris"))
        assert sentences.source == "standard input"


def test_json_lines(write):
    rows = [{"id": 7, "tokens": list(words), "tags": list(tags)} for words, tags in CORPUS]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "\n\n")
    assert pairs(read_tagged_sentences(path)) == CORPUS
    assert read_tagged_sentences(path).documents is None
    assert read_tagged_sentences(path).lines == ((1, 1), (2, 2))
    named = write("b.jsonl", '{"w": ["a"], "t": ["O"], "document": "x"}\n{"w": ["b"], "t": ["O"], "document": "x"}\n')
    assert read_tagged_sentences(named, word="w", tag="t").documents == (0, 0)
    assert read_tagged_sentences(write("c.jsonl", '{"tokens": []}\n'), with_tags=False).words == ((),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\nb\n", r"a\.conll:2: expected 2 columns, as on line 1, got 1"),
        ("a\tO\n\nb\tx\tO\n", r"a\.conll:3: expected 2 columns, as on line 1, got 3"),
        ("a\tO\nb O\n", r"a\.conll:2: expected 2 columns, as on line 1, got 1"),
        ("a\tO\n\tO\n", r"a\.conll:2: expected a word, got an empty cell in \['', 'O'\]"),
        ("a\tO\nb\t\n", r"a\.conll:2: expected a tag, got an empty cell in \['b', ''\]"),
        (
            "a\nb\n",
            r"a\.conll:1: column 1 of 1 cannot be both word and tag",
        ),
        ("a O\n\xff O\n".encode("latin-1"), r"a\.conll:2: not UTF-8"),
        ("a O\nb N\x07X\n", r"a\.conll:2: expected a label in one line without control characters, got 'N\\x07X'"),
        ("\n \n", "is empty"),
        ("-DOCSTART- O\n\n", r"a\.conll: expected sentences, found none"),
        ("", "is empty"),
    ],
)
def test_bad_columns_are_named_with_their_line(write, content, message):
    with pytest.raises(InputError, match=message):
        read_tagged_sentences(write("a.conll", content))


def test_numbers_of_words_are_not_taken_for_words(write):
    numbered = write("a.tsv", "# https://a.org\n1\tAda\tB-PER\tO\n2\twrote\tO\tO\n\n1\tIn\tO\tO\n")
    message = r"a\.tsv:2: expected words in the first of 4 columns, got the numbers .* --text-column 2"
    with pytest.raises(InputError, match=f"{message} --label-column 4"):
        read_tagged_sentences(numbered)
    with pytest.raises(InputError, match=f"{message}$"):
        read_tagged_sentences(numbered, with_tags=False)
    from_zero = write("d.tsv", "0\tAda\tO\n1\twrote\tO\n\n" * 9 + "1-2\tIn\tO\n2\tParis\tO\n")
    with pytest.raises(InputError, match="got the numbers of the words"):
        read_tagged_sentences(from_zero)
    with_gap = write("c.tsv", "1\tAda\tO\n2\twrote\tO\n\n1\tIn\tO\n2\tParis\t\n3\t.\tO\n")
    with pytest.raises(InputError, match="got the numbers of the words"):
        sentences_of(read_tag_lines(with_gap), Columns(), with_tags=True, on_error=lambda _: None)
    assert read_tagged_sentences(numbered, word="2", tag="3").words == (("Ada", "wrote"), ("In",))
    assert read_tagged_sentences(numbered, word="1").words == (("1", "2"), ("1",))
    assert read_tagged_sentences(write("b.tsv", "1\tO\n\n2\tO\n3\tO\n")).words == (("1",), ("2", "3"))


@pytest.mark.parametrize("columns", [{"word": "3"}, {"tag": "0"}, {"word": "-1"}, {"tag": "tag"}])
def test_a_column_that_is_not_there_is_an_error(write, columns):
    with pytest.raises(InputError, match=r"a\.conll:1: expected a column number from 1 to 2, got "):
        read_tagged_sentences(write("a.conll", SPACES), **columns)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"tokens": ["a", "b"], "tags": ["O"]}', "expected one tag per word, got 2 words and 1 tags"),
        ('{"tokens": [], "tags": []}', "expected a sentence with words, got none"),
        ('{"tokens": ["a"]}', "expected a field 'tags' with tags; the fields are: tokens"),
        ('{"words": ["a"], "tags": ["O"]}', "expected a field 'tokens' with words; the fields are: words, tags"),
        ('{"tokens": "a b", "tags": ["O"]}', "expected a list of words in 'tokens', got 'a b'"),
        ('{"tokens": ["a"], "tags": [3]}', "expected tags as text in 'tags', got 3"),
        ('{"tokens": ["a"], "tags": [""]}', "expected tags as text in 'tags', got ''"),
        ('{"tokens": [null], "tags": ["O"]}', "expected words as text in 'tokens', got None"),
        ("[1]", "expected one object {…} a line, got a JSON list"),
        ('{"tokens": ["a"], "tags": ["O"], "tags": ["O"]}', "'tags' is there twice in one object"),
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ('{"tokens": ["a"], "tags": ["N\\u0007"]}', "expected a label in one line without control characters"),
        (
            '{"tokens": ["a"], "tags": ["O"]}',
            "expected a text or number in 'document', in every line or in none, got None",
        ),
        (
            '{"tokens": ["a"], "tags": ["O"], "document": true}',
            "expected a text or number in 'document', in every line or in none, got True",
        ),
    ],
)
def test_bad_json_is_named_with_its_line(write, line, message):
    good = '{"tokens": ["a"], "tags": ["O"], "document": 1}\n'
    with pytest.raises(InputError, match=r"a\.jsonl:2: " + message):
        read_tagged_sentences(write("a.jsonl", good + line + "\n" + good))


def test_a_document_that_is_taken_up_again_is_an_error(write):
    rows = "".join(f'{{"tokens": ["a"], "tags": ["O"], "document": "{name}"}}\n' for name in "xxyx")
    with pytest.raises(
        InputError, match=r"a\.jsonl:4: document 'x' continues after another document; put its sentences together"
    ):
        read_tagged_sentences(write("a.jsonl", rows))


@pytest.mark.parametrize(
    ("names", "train", "dev"),
    [
        (["train.txt", "dev.txt", "test.txt"], "train.txt", "dev.txt"),
        (["train.conll", "valid.conll", "README.md"], "train.conll", "valid.conll"),
        (["eng.train", "eng.testa", "eng.testb"], "eng.train", "eng.testa"),
        (["en_x-train.tsv", "en_x-dev.tsv"], "en_x-train.tsv", "en_x-dev.tsv"),
        (["train.jsonl", "validation.jsonl.gz"], "train.jsonl", "validation.jsonl.gz"),
        (["all.conll"], "all.conll", None),
        (["all.bio", "test.bio"], "all.bio", None),
        (["train.bio", "other.bio", ".train.bio"], "train.bio", None),
    ],
)
def test_files_are_known_by_the_words_in_their_names(write, tmp_path, names, train, dev):
    for name in names:
        write(name, "a O\n")
    assert tag_train_file(tmp_path).name == train
    dev_file = tag_dev_file(tmp_path)
    assert (dev_file and dev_file.name) == dev
    assert tag_train_file(tmp_path / names[0]).name == names[0]
    assert tag_dev_file(tmp_path / names[0]) is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.txt", "train.conll"], r"\.txt; keep one or give the path of the file"),
        (["train.txt", "dev.txt", "valid.txt"], r"\.txt; keep one or give the path of the file"),
        (["a.txt", "b.txt"], r"\.txt; keep one or give the path of the file"),
        (
            ["dev.txt", "test.txt"],
            r"expected a training file \(train\.txt, train\.conll, train\.jsonl …\), found dev\.txt, test\.txt",
        ),
        (
            [],
            r"expected a training file \(train\.txt, train\.conll, train\.jsonl …\), found no such file",
        ),
        (["train.dev.txt"], r"train\.dev\.txt: the name stands for dev and train; rename the file or give its path"),
    ],
)
def test_a_doubt_about_files_is_raised(write, tmp_path, names, message):
    for name in names:
        write(name, "a O\n")
    with pytest.raises(InputError, match=message):
        print(tag_train_file(tmp_path), tag_dev_file(tmp_path))


def test_a_tenth_of_the_sentences_is_kept_and_equal_ones_stay_together(write):
    content = "".join(f"word{number % 50} O\nend O\n\n" for number in range(100))
    sentences = read_tagged_sentences(write("a.conll", content))
    train, dev = split_tagged(sentences)
    assert (len(train), len(dev)) == (90, 10)
    assert not set(train.words) & set(dev.words)
    turned = sentences.select(range(len(sentences))[::-1])
    assert sorted(split_tagged(turned)[1].words) == sorted(dev.words)


def test_whole_documents_are_kept_where_they_are_marked(write):
    documents = ["".join(f"w{number} O\nx{line} O\n\n" for line in range(1 + number % 3)) for number in range(30)]
    sentences = read_tagged_sentences(write("a.conll", "-DOCSTART- O\n\n".join(documents)))
    train, dev = split_tagged(sentences)
    assert len(set(dev.documents)) == 3
    assert not set(train.documents) & set(dev.documents)
    assert len(train) + len(dev) == len(sentences)
    one = sentences.select([row for row, document in enumerate(sentences.documents) if document == 2])
    assert [len(part) for part in split_tagged(one)] == [2, 1]


def test_real_files_are_read_whole(shared_data):
    folder = shared_data / "ner"
    counts = {"train": (3394, 62730), "dev": (1009, 15733), "test": (1287, 23394)}
    for name, (rows, words) in counts.items():
        sentences = read_tagged_sentences(folder / "wnut17" / f"{name}.conll")
        assert (len(sentences), sentences.num_words, sentences.documents) == (rows, words, None)
    gold = read_tagged_sentences(folder / "wikigold" / "wikigold.conll")
    assert (len(gold), gold.num_words, len(set(gold.documents))) == (1696, 39007, 145)


def test_conllu_has_its_own_columns_and_rows_that_are_no_words(write):
    """Range rows and empty nodes are left aside; sentences begin with comments."""
    rows = ["1-2\tdon't\t_\t_\t_", "1\tdo\tdo\tAUX\t_", "2\tn't\tnot\tPART\t_", "2.1\tgo\tgo\tVERB\t_"]
    path = write("a.conllu", "# text = don't\n" + "\n".join(rows) + "\n\n# x\n1\tOne day\tx\tNOUN\t_\n\n")
    sentences = read_tagged_sentences(path)
    assert pairs(sentences) == [(("do", "n't"), ("AUX", "PART")), (("One day",), ("NOUN",))]
    assert sentences.lines == ((3, 4), (8,))
    assert read_tagged_sentences(path, tag="3").tags == (("do", "not"), ("x",))


def test_the_only_sentence_or_document_of_a_tag_is_learned(write):
    common = "".join(f"word{number} NOUN\nend .\n\n" for number in range(30))
    rare = "".join(f"rare{number} T{number}\nend .\n\n" for number in range(30))
    sentences = read_tagged_sentences(write("a.conll", common + rare))
    train, dev = split_tagged(sentences)
    assert {tag for tags in train.tags for tag in tags} == {"NOUN", ".", *(f"T{number}" for number in range(30))}
    assert len(dev) == 6
    marked = "".join(f"-DOCSTART- O\n\n{document}\n\n" for document in (rare.strip(), *common.strip().split("\n\n")))
    train, dev = split_tagged(read_tagged_sentences(write("b.conll", marked)))
    assert {"T0", "T29"} <= {tag for tags in train.tags for tag in tags}
    assert len(dev) == 3
    with pytest.raises(InputError, match=r"c\.conll: expected a text that can be kept for validation, but each has"):
        split_tagged(read_tagged_sentences(write("c.conll", "one A\n\ntwo B\n")))


def test_the_format_of_an_option_is_read(write):
    line = '{"tokens": ["Ada"], "tags": ["A"]}\n'
    assert read_tag_lines(write("words.dat", line), "jsonl").format == "jsonl"
    with pytest.raises(InputError, match=r"c\.conll:1: column 1 of 1 .* expected a word and its tag, with a tab"):
        read_tagged_sentences(write("c.conll", "Ada,B-PER\n"))
