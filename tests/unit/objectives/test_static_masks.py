"""Static masks: the same few versions of every row for ever, in ever another order. Plans that are no longer needed."""

import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError

from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.settings import ExampleSettings

NAMES = [field.name for field in dataclasses.fields(PretrainingBatch)]


def whole_epoch(examples: Examples, epoch: int) -> PretrainingBatch:
    return examples.batch(epoch, np.arange(examples.num_rows(epoch)))


def same_batches(one: PretrainingBatch, other: PretrainingBatch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in NAMES)


@pytest.mark.parametrize("second_sentence", ["next", "order", "none"])
def test_epoch_e_and_e_plus_k_have_the_same_rows_and_others_do_not(corpus, second_sentence):
    settings = ExampleSettings(second_sentence=second_sentence, static_masks=3)
    static = Examples(corpus, settings, length=48, seed=4)
    dynamic = Examples(corpus, ExampleSettings(second_sentence=second_sentence), length=48, seed=4)
    for epoch in range(3):
        version = whole_epoch(dynamic, epoch)  # the versions are the first epochs of a dynamic run
        assert same_batches(whole_epoch(static, epoch), version)
        assert same_batches(whole_epoch(static, epoch + 3), version)
        assert same_batches(whole_epoch(static, epoch + 30), version)
        assert not same_batches(whole_epoch(static, epoch + 1), version)
        assert not same_batches(whole_epoch(dynamic, epoch + 3), version)


def test_the_order_of_a_repeated_epoch_is_another_one(corpus):
    examples = Examples(corpus, ExampleSettings(static_masks=2), length=48, seed=0)
    orders: dict[int, list[int]] = {}
    for step in range(5 * examples.num_rows(0) // 10):
        for epoch, rows in examples._sampler.rows(10 * step, 10 * step + 10):
            orders.setdefault(epoch, []).extend(rows.tolist())
    assert set(orders) >= {0, 1, 2, 3}
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(examples.num_rows(0)))
    assert sorted(orders[1]) == sorted(orders[3]) == list(range(examples.num_rows(1)))
    assert orders[0] != orders[2]
    assert orders[1] != orders[3]


def test_one_static_mask_is_one_version_and_none_is_dynamic(corpus):
    single = Examples(corpus, ExampleSettings(static_masks=1), length=48, seed=0)
    assert same_batches(whole_epoch(single, 0), whole_epoch(single, 7))
    assert ExampleSettings().static_masks == 0
    with pytest.raises(ValidationError):
        ExampleSettings(static_masks=-1)


# ---------------------------------------------------------------- plans that are no longer needed


def epochs_on_disk(corpus, ending: str) -> list[int]:
    return sorted(int(path.name.split("-")[3]) for path in (corpus.folder / "plans").glob(f"*.{ending}"))


def test_the_newest_two_plans_are_kept_and_of_older_ones_their_number_of_rows(large_corpus, monkeypatch):
    settings = ExampleSettings(short_share=0.9)
    examples = Examples(large_corpus, settings, length=64, seed=0)
    reader = Examples(large_corpus, settings, length=64, seed=0)
    first = reader.batch(0, np.arange(10))  # holds the map of epoch 0
    other = Examples(large_corpus, settings, length=32, seed=0)
    other.num_rows(0)
    counts = [examples.num_rows(epoch) for epoch in range(4)]
    assert epochs_on_disk(large_corpus, "npy") == [0, 2, 3]  # 0: of the other length
    assert epochs_on_disk(large_corpus, "rows") == [0, 1]
    assert same_batches(reader.batch(0, np.arange(10)), first)
    again = Examples(large_corpus, settings, length=64, seed=0)
    with monkeypatch.context() as patched:
        patched.setattr("bertwright.objectives.pair_index.plan_rows", lambda *_, **__: pytest.fail("walked again"))
        assert [again.num_rows(epoch) for epoch in range(4)] == counts
    assert same_batches(again.batch(0, np.arange(10)), first)  # asked for all the same, it is walked again


def test_a_note_of_rows_that_cannot_be_read_is_not_believed(large_corpus):
    examples = Examples(large_corpus, ExampleSettings(), length=64, seed=0)
    counts = [examples.num_rows(epoch) for epoch in range(3)]
    (note,) = (large_corpus.folder / "plans").glob("*.rows")
    note.write_text("many")
    assert Examples(large_corpus, ExampleSettings(), length=64, seed=0).num_rows(0) == counts[0]


def test_a_broken_plan_that_is_no_longer_needed_is_removed_like_the_others(large_corpus, capsys):
    examples = Examples(large_corpus, ExampleSettings(), length=64, seed=0)
    examples.num_rows(0)
    (path,) = (large_corpus.folder / "plans").glob("*.npy")
    path.write_bytes(b"nonsense")
    assert [examples.num_rows(epoch) > 0 for epoch in (1, 2)] == [True, True]
    assert epochs_on_disk(large_corpus, "npy") == [1, 2]
    assert epochs_on_disk(large_corpus, "rows") == []
    assert "not a readable pair index" in capsys.readouterr().err


def test_all_plans_of_static_masks_are_kept(large_corpus):
    examples = Examples(large_corpus, ExampleSettings(static_masks=3), length=64, seed=0)
    for epoch in range(7):
        examples.num_rows(epoch)
    assert epochs_on_disk(large_corpus, "npy") == [0, 1, 2]
    assert epochs_on_disk(large_corpus, "rows") == []
