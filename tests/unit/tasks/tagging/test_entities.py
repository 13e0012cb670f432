"""Tags and entities: the schemes and their conversions without loss, impossible sequences, conlleval's counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.tasks.tagging.entities import (
    Counts,
    Entity,
    count_entities,
    detect,
    entities_of,
    first_impossible,
    in_scheme,
    scheme_of_labels,
    tags_of,
)

SCHEMES = ("iob1", "iob2", "iobes")
KINDS = ("PER", "LOC", "creative-work")

# conlleval's rule as a table, for two neighbours of one type: does an entity begin at the second (s), does the first
# one's go on (c), or is there none (-)? Between different types one always begins.
BEGINS = {
    before: dict(zip("OBIES", row, strict=True))
    for before, row in {"O": "-ssss", "B": "-sccs", "I": "-sccs", "E": "-ssss", "S": "-ssss"}.items()
}

# One sentence in the three schemes: "EU rejects German call , Anna Maria Bo Li" with two people side by side.
EXAMPLE = {
    "iob1": "I-ORG O I-MISC O O I-PER I-PER B-PER I-PER".split(),
    "iob2": "B-ORG O B-MISC O O B-PER I-PER B-PER I-PER".split(),
    "iobes": "S-ORG O S-MISC O O B-PER E-PER B-PER E-PER".split(),
}
ENTITIES = [Entity("ORG", 0, 1), Entity("MISC", 2, 3), Entity("PER", 5, 7), Entity("PER", 7, 9)]


@st.composite
def entity_spans(draw):
    """Entities that do not overlap, left to right, and the length of their sentence."""
    entities, at = [], 0
    for _ in range(draw(st.integers(0, 6))):
        start = at + draw(st.integers(0, 2))
        at = start + draw(st.integers(1, 4))
        entities.append(Entity(draw(st.sampled_from(KINDS)), start, at))
    return entities, at + draw(st.integers(0, 2))


any_tags = st.lists(
    st.one_of(st.just("O"), st.tuples(st.sampled_from("BIES"), st.sampled_from(KINDS)).map("-".join)), max_size=12
)


def by_the_table(tags):
    entities, before = [], "O"
    for position, tag in enumerate(tags):
        same = tag.partition("-")[2] == before.partition("-")[2] or "O" in (tag, before)
        verdict = BEGINS[before[0]][tag[0]] if same else "s"
        if verdict == "s":
            entities.append([tag.partition("-")[2], position, position])
        if verdict in "sc":
            entities[-1][2] = position + 1
        before = tag
    return [tuple(one) for one in entities]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_sentence_in_every_scheme(scheme):
    assert entities_of(EXAMPLE[scheme], scheme) == ENTITIES
    assert tags_of(ENTITIES, 9, scheme) == tuple(EXAMPLE[scheme])
    assert first_impossible(EXAMPLE[scheme], scheme) is None
    assert detect([["O"], EXAMPLE[scheme]]) == (scheme, (1, 0))
    for other in SCHEMES:
        assert in_scheme(EXAMPLE[scheme], scheme, other) == tuple(EXAMPLE[other])


@given(entity_spans())
def test_conversions_lose_nothing(drawn):
    entities, length = drawn
    for scheme in SCHEMES:
        tags = tags_of(entities, length, scheme)
        assert len(tags) == length
        assert entities_of(tags, scheme) == entities
        assert first_impossible(tags, scheme) is None
        for other in SCHEMES:
            assert in_scheme(in_scheme(tags, scheme, other), other, scheme) == tags


@given(entity_spans())
def test_the_scheme_is_found_where_there_is_an_entity(drawn):
    entities, length = drawn
    for scheme in SCHEMES:
        assert detect([tags_of(entities, length, scheme)])[0] == (scheme if entities else "iob2")


@given(any_tags)
def test_entities_are_conllevals_in_possible_and_impossible_sequences(tags):
    assert entities_of(tags, "iobes") == by_the_table(tags)


@given(any_tags)
def test_a_sequence_is_possible_where_writing_its_entities_gives_it_back(tags):
    """Another way to ask: the letters are those of the scheme, and the entities read are written as these tags."""
    for scheme, letters in (("iob1", "OBI"), ("iob2", "OBI"), ("iobes", "OBIES")):
        fits = {tag[0] for tag in tags} <= set(letters)
        possible = fits and tags_of(entities_of(tags, scheme), len(tags), scheme) == tuple(tags)
        assert (first_impossible(tags, scheme) is None) == possible


@pytest.mark.parametrize(
    ("scheme", "tags", "position", "message"),
    [
        ("iob2", "O I-PER", 1, "'I-PER' after 'O' is impossible in IOB2"),
        ("iob2", "I-PER", 0, "'I-PER' at the beginning of a sentence is impossible in IOB2"),
        ("iob2", "B-PER I-LOC", 1, "'I-LOC' after 'B-PER' is impossible in IOB2"),
        ("iob1", "O B-PER", 1, "'B-PER' after 'O' is impossible in IOB1"),
        ("iob1", "I-LOC B-PER", 1, "'B-PER' after 'I-LOC' is impossible in IOB1"),
        ("iobes", "B-PER O", 1, "'O' after 'B-PER' is impossible in IOBES"),
        ("iobes", "O B-PER", 1, "'B-PER' at the end of a sentence is impossible in IOBES"),
        ("iobes", "O E-PER", 1, "'E-PER' after 'O' is impossible in IOBES"),
        ("iobes", "S-PER I-PER", 1, "'I-PER' after 'S-PER' is impossible in IOBES"),
        ("iobes", "B-PER S-PER", 1, "'S-PER' after 'B-PER' is impossible in IOBES"),
        ("iob2", "O S-PER", 1, "'S-PER' is not a tag of IOB2 (O, B-TYPE, I-TYPE)"),
        ("iob2", "O NN", 1, "'NN' is not a tag of IOB2"),
        ("iob2", "B-", 0, "'B-' is not a tag of IOB2"),
        ("iob2", "BI-PER", 0, "'BI-PER' is not a tag of IOB2"),
        ("iobes", "L-PER", 0, "'L-PER' is not a tag of IOBES (O, B-TYPE, I-TYPE, E-TYPE, S-TYPE)"),
    ],
)
def test_the_first_impossible_tag_is_named(scheme, tags, position, message):
    impossible = first_impossible(tags.split(), scheme)
    assert impossible is not None
    assert impossible[0] == position
    assert impossible[1].startswith(message)


def test_iob1_allows_what_iob2_does_not():
    tags = ["O", "I-PER", "I-LOC", "I-LOC", "B-LOC"]
    assert first_impossible(tags, "iob1") is None
    assert first_impossible(tags, "iob2") == (1, "'I-PER' after 'O' is impossible in IOB2")


def test_plain_tags_are_entities_of_one_word():
    assert entities_of(["DT", "NN", "NN"], "plain") == [("DT", 0, 1), ("NN", 1, 2), ("NN", 2, 3)]
    assert tags_of(entities_of(["DT", "NN", "NN"], "plain"), 3, "plain") == ("DT", "NN", "NN")
    assert first_impossible(["I-PER", "anything"], "plain") is None


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["O", "B-PER", "I-PER"], "iob2"),
        (["B-creative-work", "O", "I-creative-work"], "iob2"),
        (["O", "I-PER", "I-LOC"], "iob1"),
        (["O", "B-PER", "I-PER", "E-PER", "S-PER"], "iobes"),
        (["NOUN", "VERB"], "plain"),
        (["LABEL_0", "LABEL_1"], "plain"),
        (["B-PER", "I-PER"], "plain"),
        (["O"], "plain"),
        (["O", "B-PER", "X"], "plain"),
    ],
)
def test_the_scheme_of_a_model_follows_from_its_labels(labels, scheme):
    assert scheme_of_labels(labels) == scheme


def test_counts_are_those_of_a_case_done_by_hand():
    """Three there and four found; a wrong end, a wrong type and a spurious one leave one right."""
    there = [[Entity("PER", 0, 2), Entity("LOC", 3, 4)], [Entity("LOC", 0, 1)]]
    predicted = [[Entity("PER", 0, 1), Entity("LOC", 3, 4)], [Entity("PER", 0, 1), Entity("LOC", 5, 6)]]
    whole, by_type = count_entities(predicted, there)
    assert whole == Counts(correct=1, predicted=4, true=3)
    assert (whole.precision, whole.recall) == (1 / 4, 1 / 3)
    assert whole.f1 == pytest.approx(2 * (1 / 4) * (1 / 3) / (1 / 4 + 1 / 3), abs=1e-15)
    assert by_type == {"LOC": Counts(1, 2, 2), "PER": Counts(0, 2, 1)}
    assert (by_type["PER"].precision, by_type["PER"].recall, by_type["PER"].f1) == (0.0, 0.0, 0.0)


def test_nothing_found_and_nothing_there_count_as_0():
    whole, by_type = count_entities([[]], [[]])
    assert (whole.precision, whole.recall, whole.f1, by_type) == (0.0, 0.0, 0.0, {})
    assert count_entities([[]], [[Entity("PER", 0, 1)]])[0] == Counts(0, 0, 1)
