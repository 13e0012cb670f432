"""The quickstart's text: prose from documentation strings, and the corpus and the task made from it."""

import ast
import re
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.quickstart import docstrings as library_docs
from bertwright.quickstart import task as library_task
from bertwright.quickstart.docstrings import (
    Documentation,
    Library,
    Module,
    collect,
    corpus_text,
    find_libraries,
    key,
    write_documents,
)
from bertwright.quickstart.prose import is_prose, prose, strip_markup
from bertwright.quickstart.task import MASK, make_task, masker, write_task

# --- prose -----------------------------------------------------------------------------------------------------------


def prose_sentences(text: str) -> list[str]:
    return list(prose("\n" + textwrap.dedent(text)))


def test_wrapped_lines_are_joined_and_sentences_parted() -> None:
    parts = prose_sentences("""
        Open the gate and let
        the sheep walk out. Close the gate
        when the last one has passed.

        A second paragraph says a little more.
    """)
    assert parts == [
        "Open the gate and let the sheep walk out.",
        "Close the gate when the last one has passed.",
        "A second paragraph says a little more.",
    ]


def test_a_dotted_name_is_no_sentence_boundary() -> None:
    text = "The weights come from farm.fields.Barley unless others are given."
    assert prose_sentences(text) == [text]


@pytest.mark.parametrize(
    "block",
    [
        ">>> sheep = count_the_sheep_in_the_field_now\n    There are seven sheep in the field.",
        "```python\nThere are many sheep in this code block.\n```",
        ".. code-block:: python\n\n    There are many sheep in this code block.",
        ".. math::\n\n    there are as many of them as we want.",
        ".. _farm: there are many links to the other farm.",
        ".. [1] A. Farmer, how the sheep were counted in the field.",
        "=====  ==============================\nhead   the words of this table are many.\n=====  ========",
        "| there are many words in this table.  | and a few more. |",
        "count(sheep, field, *, gate=None) -> Sheep",
        "Most Important Things About The Sheep\n-------------------------------------",
        "The Sheep: What They Are And Do\n~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~",
        "+------------------+\n| a table of many words. |\n+------------------+",
        "See Also\n--------\nother : There are many sheep in the other function too.",
        "References\n----------\nA farmer has written about the sheep before.",
    ],
)
def test_what_is_not_prose_is_dropped_and_its_neighbours_are_kept(block: str) -> None:
    before, after = "The sheep are counted before it gets dark.", "The farmer goes home when that is done."
    closing = "\n\nNotes\n-----\n" if "\n---" in block else "\n\n"
    assert prose_sentences(f"{before}\n\n{block}{closing}{after}") == [before, after]


def test_a_literal_block_ends_with_its_indentation() -> None:
    parts = prose_sentences("""
        The sheep are counted like this, one by one::

            there are some words in this literal block.

            there are more words in this literal block.

        Then they may go back to the field.
    """)
    assert parts == ["The sheep are counted like this, one by one:", "Then they may go back to the field."]


def test_admonitions_keep_their_text() -> None:
    parts = prose_sentences("""
        .. versionadded:: 1.2
            The second gate was built in this version.
        .. note:: Sheep that sleep are not
            counted by this function.
    """)
    assert parts == [
        "The second gate was built in this version.",
        "Sheep that sleep are not counted by this function.",
    ]


@pytest.mark.parametrize(
    "table",
    [
        "Parameters\n----------\nfield : ndarray of shape (n,), default=None\n    The field in which the sheep\n    "
        "are counted now.",
        "Args:\n    field (Field, optional): The field in which the sheep\n        are counted now.",
        ":param field: The field in which the sheep\n    are counted now.\n:type field: Field",
        "- field: The field in which the sheep\n  are counted now.",
    ],
)
def test_parameter_lists_lose_names_and_types_and_keep_sentences(table: str) -> None:
    assert prose_sentences(table) == ["The field in which the sheep are counted now."]


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        ("the ``gate`` and the `field`", "the gate and the field"),
        (":class:`Gate` of :func:`~farm.fields.open`", "Gate of open"),
        (":ref:`the farm <farm-label>` and `the site <https://farm.example>`_", "the farm and the site"),
        ("[the farm](https://farm.example) is **very** *old*", "the farm is very old"),
        ("as was shown [1]_ before [Far2001]_.", "as was shown before."),
        ("a product a * b * c stays", "a product a * b * c stays"),
        ("names like coef_ and __all__ stay", "names like coef_ and __all__ stay"),
        ("too   many\tspaces", "too many spaces"),
    ],
)
def test_inline_markup_becomes_the_words_it_marks(marked: str, words: str) -> None:
    assert strip_markup(marked) == words


@pytest.mark.parametrize(
    "text",
    [
        "Count the sheep now.",  # four words
        "Count all of the sheep in the field",  # not closed
        "count = sheep + goats of the farm.",  # code
        "Count all of the {animals} in the field.",  # a hole of a template
        "The mean is \\frac{1}{n} of all of them.",  # TeX
        "See https://farm.example for all of the rest.",
        "A1 B2 C3 D4 E5 F6 G7 are the names.",  # more names than words
    ],
)
def test_what_does_not_read_as_english_is_no_prose(text: str) -> None:
    assert not is_prose(text)
    assert is_prose("Count all of the sheep in the field.")


@given(st.text(alphabet="ab`*:.>_-=|[](){}# \n\t\\~!", max_size=300))
def test_any_text_gives_clean_lines(text: str) -> None:
    for sentence in prose(text):
        assert is_prose(sentence)
        assert sentence == " ".join(sentence.split())


def test_long_lines_take_no_time_to_refuse() -> None:
    # A pattern that backtracks takes minutes for each of these.
    for part in ("word/", "name, ", "`a", "(a", "f(", "*a ", "`a <b", ":a:`", "a (b) "):
        assert prose(part * 4000) == ()


# --- the corpus ------------------------------------------------------------------------------------------------------

BOMB = "import pathlib\npathlib.Path({path!r}).write_text('imported')\n"


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    """Small package with every kind of source file."""
    root = tmp_path / "farm"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text(
        f'"""The farm has many fields and one gate."""\n{BOMB.format(path=str(tmp_path / "trace"))}', "utf-8"
    )
    (root / "fields.py").write_text(
        '''
class Field:
    """A field is a place where sheep may walk."""

    size: int = 3
    """How many sheep can walk in it at once."""

    def grow(self):
        """Let the grass of the field grow again."""
        text = """This string is no documentation of the field."""

add_docstr(Field.mow, r"""
mow(blade) -> None

Cut the grass of the field with a blade. It takes an hour for each of the fields.
""")
''',
        "utf-8",
    )
    (root / "gate.pyx").write_text(
        'cdef class Gate:\n    """The gate is written in another language."""\n    cdef int c_open(self): pass\n',
        "utf-8",
    )
    (root / "old.py").write_bytes(
        '# -*- coding: latin-1 -*-\n"""The café of the farm is open every day."""\n'.encode("latin-1")
    )
    (root / "broken.py").write_text('"""This module has words but it cannot be parsed."""\ndef (:\n', "utf-8")
    (root / "foreign.py").write_bytes('"""Le café de la ferme est fermé les dimanches."""\n'.encode("latin-1"))
    (root / "half.py").write_text('"""Half of a pair stands in these words: \\ud800."""\n', "utf-8")
    (root / ".#old.py").symlink_to("nowhere")
    (root / "tests" / "test_gate.py").write_text('"""The tests of the gate are not documentation."""\n', "utf-8")
    return root


def test_every_kind_of_documentation_is_found(farm: Path) -> None:
    (library,) = collect({"farm": farm}).libraries
    sentences_of = {module.name: list(module.sentences) for module in library.modules}
    assert sentences_of == {
        "farm": ["The farm has many fields and one gate."],
        "farm.fields": [
            "A field is a place where sheep may walk.",
            "How many sheep can walk in it at once.",
            "Let the grass of the field grow again.",
            "Cut the grass of the field with a blade.",
            "It takes an hour for each of the fields.",
        ],
        "farm.gate.pyx": ["The gate is written in another language."],
        "farm.old": ["The café of the farm is open every day."],
    }


def test_files_that_cannot_be_parsed_are_counted(farm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect({"farm": farm})
    message = capsys.readouterr().err
    assert "4 source files are left out, because they cannot be parsed" in message  # .#old, broken, foreign, half
    assert f"{farm / '.#old.py'}: " in message


def test_nothing_is_imported(farm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(farm.parent))
    before = set(sys.modules)
    collect({"farm": farm})
    assert not (farm.parent / "trace").exists()
    assert "farm" not in set(sys.modules) - before
    exec(compile(ast.parse((farm / "__init__.py").read_text("utf-8")), "farm", "exec"), {})
    assert (farm.parent / "trace").exists(), "the trap itself must work"


def test_a_missing_library_and_one_without_prose_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"library goat.*nowhere"):
        collect({"goat": tmp_path / "nowhere"})
    (tmp_path / "bare.py").write_text("x = 1\n", "utf-8")
    with pytest.raises(InputError, match="expected folders of Python source with documentation"):
        collect({"bare": tmp_path})


def test_processes_do_not_change_the_result(farm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = collect({"farm": farm})
    monkeypatch.setattr(library_docs, "_FEW_FILES", 1)
    monkeypatch.setattr(library_docs, "num_cores", lambda: 2)
    assert collect({"farm": farm}) == alone


def test_short_docstrings_share_a_document(tmp_path: Path) -> None:
    words = "The sheep number {} is white and has two black ears."  # 11 words: 11 of them make a document of 120
    body = "\n".join(f'def sheep{n}():\n    """{words.format(n)}"""' for n in range(40))
    (tmp_path / "flock.py").write_text(body, "utf-8")
    (module,) = collect({"flock": tmp_path}).modules
    assert [len(document) for document in module.documents] == [11, 11, 18]
    assert list(module.sentences) == [words.format(n) for n in range(40)]


def documentation(*libraries: tuple[str, dict[str, list[str]]]) -> Documentation:
    return Documentation(
        tuple(
            Library(name, tuple(Module(module, (tuple(texts),)) for module, texts in modules.items()))
            for name, modules in libraries
        )
    )


def test_corpus_holds_each_sentence_once_and_none_of_the_excluded_modules(tmp_path: Path) -> None:
    docs = documentation(
        ("farm", {"farm.a": ["One.", "Two."], "farm.b": ["Two!", "Three."], "farm.c": ["Three.", "Four.", "Five."]})
    )
    assert list(corpus_text(docs, exclude_modules=())) == ["One.\nTwo.", "Three.", "Four.\nFive."]
    assert list(corpus_text(docs, exclude_modules={"farm.b"})) == ["One.", "Four.\nFive."]
    with pytest.raises(InputError, match=r"farm\.d"):
        list(corpus_text(docs, exclude_modules={"farm.d"}))
    write_documents(corpus_text(docs, exclude_modules={"farm.b"}), tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text("utf-8") == "One.\n\nFour.\nFive.\n\n"


def test_this_machine_has_the_standard_library_and_the_core_packages() -> None:
    libraries = find_libraries()
    assert (libraries["python"] / "json" / "__init__.py").exists()
    assert (libraries["numpy"] / "__init__.py").exists()
    assert (libraries["torch"] / "_torch_docs.py").exists()
    (library,) = collect({"pydoc_data": libraries["python"] / "pydoc_data"}).libraries
    text = [sentence for module in library.modules for sentence in module.sentences]
    assert len(text) > 1500
    assert any(sentence.startswith("Assert statements are a convenient way") for sentence in text)


# --- the task --------------------------------------------------------------------------------------------------------

ANIMALS = ("sheep", "goat", "horse", "donkey", "goose", "duck", "rabbit", "cow", "pig", "hen", "cat", "dog")
PLACES = ("field", "barn", "garden", "yard", "wood", "meadow", "stable", "pond")
TIMES = ("morning", "evening", "night", "winter", "summer", "spring")


def farms(*, modules: int = 40) -> Documentation:
    """Return libraries whose modules have twelve sentences of their own, and one that stands in every module."""
    libraries = []
    for name, walks in (("torch", "runs"), ("sympy", "swims"), ("networkx", "flies")):
        animals_of: dict[str, list[str]] = {}
        for number in range(modules):
            lines = [
                f"In {name} number {number} the {animal} {walks} from the {PLACES[number % 8]} at {TIMES[number % 6]} "
                f"because {name} likes it."
                for animal in ANIMALS
            ]
            animals_of[f"{name}.m{number}"] = [
                *lines,
                f"Each module of {name} says this one sentence to all who read it.",
            ]
        libraries.append((name, animals_of))
    return documentation(*libraries)


def drawn_task(docs: Documentation, *, seed: int = 0) -> library_task.LibraryTask:
    return make_task(docs, train_sentences=20, test_sentences=30, dev_sentences=10, seed=seed)


def test_task_is_balanced_and_masked() -> None:
    task = drawn_task(farms())
    assert task.labels == ("torch", "sympy", "networkx")
    for split, size in ((task.train, 20), (task.dev, 10), (task.test, 30)):
        assert Counter(example.label for example in split) == dict.fromkeys(task.labels, size)
    verbs = {"torch": "runs", "sympy": "swims", "networkx": "flies"}
    for example in (*task.train, *task.dev, *task.test):
        assert not re.search("torch|sympy|networkx", example.sentence)
        assert example.sentence.startswith(f"In {MASK} number")
        assert f" {verbs[example.label]} " in example.sentence, "the label is the library that the sentence stands in"


def test_no_module_is_in_two_splits_and_the_corpus_holds_no_held_out_sentence() -> None:
    docs, mask = farms(), masker()
    task = drawn_task(docs)
    home = {mask(text): module.name for module in docs.modules for text in module.sentences[:-1]}
    modules = {name: {home[each.sentence] for each in getattr(task, name)} for name in ("train", "dev", "test")}
    assert modules["dev"] | modules["test"] == set(task.held_out)
    assert not modules["dev"] & modules["test"]
    assert not modules["train"] & set(task.held_out)
    corpus = "\n".join(corpus_text(docs, exclude_modules=task.held_out)).split("\n")
    assert not {home[mask(text)] for text in corpus if mask(text) in home} & set(task.held_out)
    assert {each.sentence for each in task.train} <= set(map(mask, corpus))


def test_a_sentence_of_two_places_is_in_no_split() -> None:
    copied = farms().modules[0].sentences[:6]  # torch's own, also said by sympy, with sympy's name
    docs = farms()
    twin = Module("sympy.copy", (tuple(text.replace("torch", "sympy") for text in copied),))
    torch, sympy, networkx = docs.libraries
    docs = Documentation((torch, replace(sympy, modules=(*sympy.modules, twin)), networkx))
    twice = set(map(masker(), copied))
    for seed in range(5):
        task = drawn_task(docs, seed=seed)
        drawn = {each.sentence for each in (*task.train, *task.dev, *task.test)}
        assert not drawn & twice
        assert not any("says this one sentence" in each for each in drawn)


def test_task_is_a_function_of_documentation_and_seed() -> None:
    assert drawn_task(farms(), seed=3) == drawn_task(farms(), seed=3)
    assert drawn_task(farms(), seed=3).test != drawn_task(farms(), seed=4).test


def test_a_library_with_too_little_is_left_out_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    torch, sympy, networkx = farms().libraries
    short = replace(networkx, modules=networkx.modules[:3])
    task = drawn_task(Documentation((torch, sympy, short)))
    assert task.labels == ("torch", "sympy")
    assert "no classes of the task: networkx" in capsys.readouterr().err
    assert not any(name.startswith("networkx") for name in task.held_out)
    with pytest.raises(InputError, match=r"at least two of the libraries.*20 \+ 10 \+ 30 .*got 1"):
        drawn_task(Documentation((torch, short)))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("PyTorch and torch.nn, TorchScript and libtorch", "library and library.nn, libraryScript and liblibrary"),
        ("__torch_function__ of NUMPY", "__library_function__ of library"),
        ("np.array, pa.Table, plt.show", "library.array, library.Table, library.show"),
        ("a space of parameters, an input, arrowstyle", "a space of parameters, an input, arrowstyle"),
        ("Apache Arrow, scikit-learn, the standard library", "library, library, the library"),
        ("the arrow of Arrow", "the library of library"),
        ("nothing to hide here", "nothing to hide here"),
    ],
)
def test_names_are_masked(text: str, masked: str) -> None:
    assert masker()(text) == masked


def test_task_files_are_plain_tables(tmp_path: Path) -> None:
    task = drawn_task(farms())
    write_task(task, tmp_path)
    for name in ("train", "dev", "test"):
        head, *rows = (tmp_path / f"{name}.tsv").read_text("utf-8").splitlines()
        assert head == "sentence\tlabel"
        assert [tuple(row.split("\t")) for row in rows] == [(e.sentence, e.label) for e in getattr(task, name)]
        assert '"' not in "".join(rows)


def test_key_is_what_copies_share() -> None:
    assert key("The Sheep, counted: 3!") == key("the sheep counted 3") != key("the sheep counted 4")
