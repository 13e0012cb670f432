"""Whole rows: put together as the paper's, the same in any batch, from any kind of corpus."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bertwright.corpus.encode import EncodedDocuments
from bertwright.corpus.shards import Corpus
from bertwright.corpus.writer import CorpusWriter
from bertwright.errors import InputError
from bertwright.objectives.dataset import Examples, PretrainingBatch, held_out_split
from bertwright.objectives.masking import truncate
from bertwright.objectives.sampling import stream_key
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from bertwright.text.wordpiece import import_vocabulary
from tests.support import example_oracle as oracle

NAMES = [field.name for field in dataclasses.fields(PretrainingBatch)]
SINGLE = ExampleSettings(second_sentence="none")
UNCHANGED = MaskingSettings(mask=0.0, same=1.0, random=0.0)


def assert_same_batches(one: PretrainingBatch, other: PretrainingBatch) -> None:
    for name in NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def assert_rows_are_the_oracle_s(corpus, documents, settings: ExampleSettings, *, length: int, seed: int, epoch: int):
    examples = Examples(corpus, settings, length=length, seed=seed)
    walk = {"next": oracle.pair_rows, "order": oracle.order_rows, "none": oracle.segment_rows}[settings.second_sentence]
    framed = 3 if settings.pairs else 2
    expected = walk(documents, length, seed, epoch, settings.short_share)
    assert examples.num_rows(epoch) == len(expected)
    batch = examples.batch(epoch, np.arange(len(expected)))
    tokenizer = corpus.tokenizer
    for number, pair in enumerate(expected):
        a, b = oracle.truncated(pair, number, length - framed, seed, epoch)
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id]
        segments = [0] * len(ids)
        if settings.pairs:
            ids += [*b, tokenizer.sep_id]
            segments += [1] * (len(b) + 1)
        masked = oracle.masked(ids, number, settings.masking, tokenizer, length, seed, epoch)
        padding = length - len(ids)
        assert batch.ids[number].tolist() == masked.ids + [tokenizer.pad_id] * padding
        assert batch.segments[number].tolist() == segments + [0] * padding
        assert batch.lengths[number] == len(ids)
        assert batch.positions[number][batch.weights[number] > 0].tolist() == masked.positions
        assert batch.labels[number][batch.weights[number] > 0].tolist() == masked.labels
        assert batch.is_random[number] == pair.is_random


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize(
    "settings",
    [
        ExampleSettings(),
        ExampleSettings(short_share=0.5, masking=MaskingSettings(units="word")),
        ExampleSettings(second_sentence="order", masking=MaskingSettings(units="span")),
        SINGLE,
    ],
)
def test_rows_are_those_of_plain_python(corpus, settings, length):
    assert_rows_are_the_oracle_s(corpus, corpus.documents, settings, length=length, seed=3, epoch=1)


def test_rows_of_a_corpus_on_disk_are_those_of_plain_python(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{i}" for i in range(300)),
        *(f"##{i}" for i in range(195)),
    ]
    vocabulary.write_text("\n".join(pieces) + "\n")
    documents = oracle.random_documents(1, num_documents=40)
    folder = tmp_path / "corpus"
    folder.mkdir()
    with CorpusWriter(folder, tokenizer=import_vocabulary(vocabulary, cased=True), shard_tokens=4000) as writer:
        for begin in range(0, 40, 4):
            some = documents[begin : begin + 4]
            sentences = [sentence for document in some for sentence in document]
            writer.add(
                EncodedDocuments(
                    np.array([piece for sentence in sentences for piece in sentence], np.uint16),
                    np.cumsum([0, *map(len, sentences)]),
                    np.cumsum([0, *map(len, some)]),
                )
            )
        writer.finish(text={}, sources=(), dropped=0)
    corpus = Corpus.open(folder)
    assert len(corpus.views) > 2
    for settings in (ExampleSettings(masking=MaskingSettings(units="word")), SINGLE):
        assert_rows_are_the_oracle_s(corpus, documents, settings, length=48, seed=0, epoch=0)


def test_shapes_and_types(corpus):
    examples = Examples(corpus, ExampleSettings(), length=128, seed=0)
    batch = examples.step_batch(0, 12)
    assert examples.max_predictions == 19
    shapes = {name: (getattr(batch, name).dtype.name, getattr(batch, name).shape) for name in NAMES}
    assert shapes == {
        "ids": ("int32", (12, 128)),
        "segments": ("int32", (12, 128)),
        "lengths": ("int32", (12,)),
        "positions": ("int32", (12, 19)),
        "labels": ("int32", (12, 19)),
        "weights": ("float32", (12, 19)),
        "is_random": ("int32", (12,)),
    }


def test_a_row_is_the_same_in_any_batch_and_any_process(corpus):
    examples = Examples(corpus, ExampleSettings(), length=64, seed=9)
    rows = np.array([5, 70, 5, 0, 31])
    together = examples.batch(4, rows)
    examples.batch(0, np.arange(20))
    again = Examples(corpus, ExampleSettings(), length=64, seed=9)
    for position, row in enumerate(rows):
        alone = again.batch(4, np.array([row]))
        for name in NAMES:
            np.testing.assert_array_equal(getattr(together, name)[position], getattr(alone, name)[0])


def test_masks_and_truncation_change_from_epoch_to_epoch(corpus):
    examples = Examples(corpus, ExampleSettings(second_sentence="none", short_share=0.0), length=32, seed=0)
    assert examples.num_rows(0) == examples.num_rows(1)  # the walk without draws is the same, the rows are not
    rows = np.arange(examples.num_rows(0))
    one, other = examples.batch(0, rows), examples.batch(1, rows)
    assert (one.positions != other.positions).any(axis=1).mean() > 0.9


def test_steps_go_through_all_rows_and_into_the_next_epoch(corpus):
    examples = Examples(corpus, ExampleSettings(), length=128, seed=2)
    num_rows = examples.num_rows(0)
    batch_size = num_rows // 3 + 5  # the third batch ends in epoch 1
    steps = (range(step * batch_size, (step + 1) * batch_size) for step in range(3))
    groups = [group for step in steps for group in examples._sampler.rows(step.start, step.stop)]
    assert sorted(row for epoch, rows in groups if epoch == 0 for row in rows) == list(range(num_rows))
    assert [epoch for epoch, _ in groups] == [0, 0, 0, 1]
    spanning = examples.step_batch(2, batch_size)
    assert len(spanning.ids) == batch_size
    (_, rows), (_, next_rows) = groups[2:]
    for name in NAMES:
        parts = [getattr(examples.batch(0, rows), name), getattr(examples.batch(1, next_rows), name)]
        np.testing.assert_array_equal(getattr(spanning, name), np.concatenate(parts))


def test_the_first_rows_come_in_the_order_of_the_walk(corpus):
    examples = Examples(corpus, ExampleSettings(), length=64, seed=0)
    batches = list(examples.first(25, batch_size=10))
    assert [len(batch.ids) for batch in batches] == [10, 10, 5]
    assert_same_batches(batches[2], examples.batch(0, np.arange(20, 25)))
    everything = examples.first(10**9, batch_size=512)
    assert sum(len(batch.ids) for batch in everything) == examples.num_rows(0)


def test_a_row_that_an_epoch_does_not_have_is_refused(corpus):
    examples = Examples(corpus, ExampleSettings(), length=64, seed=0)
    for row in (-1, examples.num_rows(0)):
        with pytest.raises(IndexError, match="epoch 0 has rows 0 to"):
            examples.batch(0, np.array([0, row]))


def test_the_longer_side_loses_tokens_at_front_and_back_alike():
    sizes = np.tile(np.array([[70, 100]]), (20_000, 1))
    fronts, left = truncate(np.arange(20_000), sizes, 125, stream_key(0))
    assert (left == [63, 62]).all()  # B down to 70, then in turns, B first
    cut = (sizes - left).sum()
    assert abs(fronts.sum() / cut - 0.5) < 3 * (0.25 / cut) ** 0.5
    # Not all from one end, but each token by itself: 38 coins for B.
    assert abs(fronts[:, 1].var() - 38 / 4) < 0.5
    over_long, _ = truncate(np.arange(1), np.array([[100_000, 0]]), 126, stream_key(0))
    assert 49_000 < over_long[0, 0] < 51_000


def test_the_label_says_where_b_came_from(tmp_path):
    documents = [[[5 + d % 400] * 10] * 13 for d in range(9000)]  # each says one word only
    corpus = oracle.FakeCorpus(documents, folder=tmp_path)
    examples = Examples(corpus, ExampleSettings(masking=UNCHANGED), length=128, seed=0)
    batch = examples.batch(0, np.arange(examples.num_rows(0)))
    last = batch.ids[np.arange(len(batch.ids)), batch.lengths - 2]
    is_random = batch.is_random == 1
    differs = batch.ids[:, 1] != last
    assert not differs[~is_random].any()
    # 22 or 23 of 9,000 documents say the same word as A's, but A's own is never chosen.
    expected = 1 - 21.5 / 8999
    assert is_random.sum() > 10_000
    assert abs(differs[is_random].mean() - expected) < 3 * (expected * (1 - expected) / is_random.sum()) ** 0.5


# ---------------------------------------------------------------- parts of a corpus


def test_a_split_parts_the_documents_by_their_numbers_alone(tmp_path):
    first = np.arange(20_001)
    train = held_out_split(first, part="train", held_out_share=0.1)
    held_out = held_out_split(first, part="held_out", held_out_share=0.1)
    assert sorted([*train, *held_out]) == list(range(20_000))
    assert abs(held_out.size - 2000) < 3 * (20_000 * 0.09) ** 0.5
    more = held_out_split(first, part="held_out", held_out_share=0.2)
    assert set(held_out) <= set(more)
    assert held_out_split(first, part="all", held_out_share=0.1).size == 20_000
    assert held_out_split(first, part="train", held_out_share=0.0).size == 20_000


def test_the_parts_share_no_text(tmp_path):
    documents = [[[5 + d] * 12] * 8 for d in range(400)]
    corpus = oracle.FakeCorpus(documents, folder=tmp_path)
    words: dict[str, set[int]] = {}
    for part in ("train", "held_out"):
        examples = Examples(
            corpus,
            ExampleSettings(masking=UNCHANGED),
            length=64,
            seed=len(part),
            part=part,
            held_out_share=0.25,
        )
        rows = examples.batch(0, np.arange(examples.num_rows(0)))
        words[part] = set(np.unique(rows.ids).tolist()) - {oracle.PAD, oracle.CLS, oracle.SEP}
    assert not words["train"] & words["held_out"]
    assert len(words["train"] | words["held_out"]) == 400
    assert 60 < len(words["held_out"]) < 140


@pytest.mark.parametrize(
    ("documents", "settings", "part", "message"),
    [
        ([[[5, 6]]], ExampleSettings(), "all", "expected at least two documents, .* found one"),
        ([], ExampleSettings(), "all", "at least one document with text, found none"),
        ([[[5, 6]]] * 3, SINGLE, "held_out", "part 'held_out': expected at least one document"),
    ],
)
def test_too_small_a_corpus_is_refused(tmp_path, documents, settings, part, message):
    corpus = oracle.FakeCorpus(documents, folder=tmp_path, num_shards=1)
    with pytest.raises(InputError, match=message) as error:
        Examples(corpus, settings, length=64, seed=0, part=part, held_out_share=1e-9)
    assert str(tmp_path) in str(error.value)


def test_one_document_is_enough_without_next_sentence_prediction(tmp_path):
    corpus = oracle.FakeCorpus([[[5, 6, 7], [8, 9]]], folder=tmp_path, num_shards=1)
    assert len(Examples(corpus, SINGLE, length=16, seed=0).step_batch(0, 3).ids) == 3


# ---------------------------------------------------------------- plans on disk


def plan_files(corpus) -> list[Path]:
    return sorted((corpus.folder / "plans").glob("*"))


def test_a_plan_is_walked_once_and_read_from_its_file(large_corpus, monkeypatch):
    first = Examples(large_corpus, ExampleSettings(), length=64, seed=0).step_batch(3, 10)
    (path,) = plan_files(large_corpus)
    monkeypatch.setattr("bertwright.objectives.pair_index.plan_rows", lambda *_, **__: pytest.fail("walked again"))
    assert_same_batches(first, Examples(large_corpus, ExampleSettings(), length=64, seed=0).step_batch(3, 10))
    monkeypatch.undo()
    for settings, length, seed, part in [
        (ExampleSettings(), 65, 0, "all"),
        (ExampleSettings(), 64, 1, "all"),
        (ExampleSettings(short_share=0.2), 64, 0, "all"),
        (SINGLE, 64, 0, "all"),
    ]:
        before = len(plan_files(large_corpus))
        Examples(large_corpus, settings, length=length, seed=seed, part=part).num_rows(0)
        assert len(plan_files(large_corpus)) == before + 1
    masked = ExampleSettings(masking=MaskingSettings(share=0.3))
    Examples(large_corpus, masked, length=64, seed=0).num_rows(0)  # masks decide nothing about the walk
    assert len(plan_files(large_corpus)) == 5
    assert path in plan_files(large_corpus)


def test_a_broken_plan_is_made_again_with_a_word(large_corpus, capsys):
    expected = Examples(large_corpus, ExampleSettings(), length=32, seed=7).step_batch(0, 10)
    (path,) = [path for path in plan_files(large_corpus) if path.name.startswith("pairs-32-")]
    whole = path.read_bytes()
    for content in (whole[:1000], b"", b"nonsense" * 100):
        path.write_bytes(content)
        assert_same_batches(expected, Examples(large_corpus, ExampleSettings(), length=32, seed=7).step_batch(0, 10))
        assert "it is not used" in capsys.readouterr().err
        assert path.read_bytes() == whole


def test_where_plans_cannot_be_written_they_stay_in_memory(tmp_path, large_corpus, capsys):
    expected = Examples(large_corpus, ExampleSettings(), length=16, seed=0).step_batch(0, 10)
    elsewhere = oracle.FakeCorpus(large_corpus.documents, folder=tmp_path, num_shards=1)
    (tmp_path / "plans").write_text("not a folder")
    assert_same_batches(expected, Examples(elsewhere, ExampleSettings(), length=16, seed=0).step_batch(0, 10))
    assert "stays in memory" in capsys.readouterr().err


def test_small_plans_leave_no_file(corpus):
    Examples(corpus, ExampleSettings(), length=64, seed=0).step_batch(0, 10)
    assert not (corpus.folder / "plans").exists()
