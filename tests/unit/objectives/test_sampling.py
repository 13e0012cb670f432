"""Counter-based random numbers, and the order of the rows that is made of them."""

import numpy as np
import pytest

from bertwright.objectives import sampling as random
from bertwright.objectives.sampling import Sampler, shuffled
from tests.support import example_oracle as oracle


def test_the_numbers_are_those_of_splitmix64():
    # The first numbers that the public reference implementation gives for the seed 1234567.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [random.draw(np.uint64(1234567), np.uint64(i)) for i in range(5)] == published
    assert [oracle.draw(1234567, i) for i in range(5)] == published


@pytest.mark.parametrize("words", [(), (0,), (0, 0), (1, 2, 3), (-1,), (2**70 + 3, 5)])
def test_keys_are_those_of_plain_python(words):
    assert int(random.stream_key(*words)) == oracle.stream(*words)


def test_streams_of_neighbours_differ():
    keys = {
        int(random.stream_key(seed, epoch, item)) for seed in range(10) for epoch in range(10) for item in range(10)
    }
    assert len(keys) == 1000


def test_bounded_numbers_are_uniform_and_reach_both_ends():
    counts = np.bincount([oracle.below(oracle.draw(7, i), 10) for i in range(20_000)], minlength=10)
    compiled = [random.below(np.uint64(random.draw(np.uint64(7), np.uint64(i))), np.uint64(10)) for i in range(1000)]
    assert compiled == [oracle.below(oracle.draw(7, i), 10) for i in range(1000)]
    assert counts.size == 10
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi-square, 9 degrees of freedom, p = 0.001


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_an_event_happens_as_often_as_it_should(share):
    threshold = random.probability(share)
    happened = sum(random.happens(np.uint64(oracle.draw(3, i)), threshold) for i in range(20_000))
    assert abs(happened - 20_000 * share) <= 3 * (20_000 * share * (1 - share)) ** 0.5


def feistel(position: int, num_rows: int, seed: int, epoch: int) -> int:
    half = max(1, -(-(num_rows - 1).bit_length() // 2))
    key = oracle.stream(seed, epoch, 0x0DE5)
    value = position
    while True:
        left, right = value >> half, value % 2**half
        for number in range(6):
            left, right = right, left ^ oracle.draw(oracle.child(key, number), right) % 2**half
        value = left << half | right
        if value < num_rows:
            return value


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 17, 64, 65, 1000, 4097])
def test_the_order_is_a_bijection_and_the_one_of_plain_python(num_rows):
    rows = shuffled(np.arange(num_rows), num_rows, seed=5, epoch=2)
    assert sorted(rows) == list(range(num_rows))
    places = range(0, num_rows, max(1, num_rows // 50))
    assert [rows[position] for position in places] == [feistel(position, num_rows, 5, 2) for position in places]


def test_huge_epochs_need_no_memory():
    num_rows = 3_000_000_019
    places = np.array([0, 1, num_rows - 1])
    rows = shuffled(places, num_rows, seed=0, epoch=0)
    assert len(set(rows)) == 3
    assert [int(row) for row in rows] == [feistel(int(position), num_rows, 0, 0) for position in places]


def test_the_order_looks_random():
    orders = [shuffled(np.arange(10_000), 10_000, seed=seed, epoch=epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    standard_error = 10_000**-0.5
    for one in range(3):
        assert abs(np.corrcoef(np.arange(10_000), orders[one])[0, 1]) < 4 * standard_error
        assert abs(np.corrcoef(orders[one][:-1], orders[one][1:])[0, 1]) < 4 * standard_error
        assert abs(np.corrcoef(orders[one], orders[(one + 1) % 3])[0, 1]) < 4 * standard_error


def test_steps_go_through_every_row_of_every_epoch_once():
    sizes = [10, 7, 12, 9]
    sampler = Sampler(lambda epoch: sizes[epoch], seed=3)
    seen = []
    for step in range(9):  # 36 of 38 rows
        groups = sampler.rows(step * 4, (step + 1) * 4)
        assert sum(rows.size for _, rows in groups) == 4
        seen += [(epoch, int(row)) for epoch, rows in groups for row in rows]
    assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen)
    for epoch in range(3):
        assert sorted(row for at, row in seen if at == epoch) == list(range(sizes[epoch]))
    assert len(set(seen)) == 36


def test_a_step_alone_is_the_step_in_order():
    def sampler():
        return Sampler(lambda epoch: 5 + epoch % 3, seed=11)

    whole = sampler()
    in_order = [whole.rows(step * 8, (step + 1) * 8) for step in range(20)]
    for step in (19, 0, 7):
        alone = sampler().rows(step * 8, (step + 1) * 8)
        assert [epoch for epoch, _ in alone] == [epoch for epoch, _ in in_order[step]]
        for (_, one), (_, other) in zip(alone, in_order[step], strict=True):
            assert one.tolist() == other.tolist()


def test_a_batch_may_span_more_than_two_epochs():
    groups = Sampler(lambda epoch: 3, seed=0).rows(0, 8)
    assert [(epoch, rows.size) for epoch, rows in groups] == [(0, 3), (1, 3), (2, 2)]


def test_an_epoch_without_rows_ends_the_search():
    with pytest.raises(ValueError, match="epoch 0 has no rows"):
        Sampler(lambda epoch: 0, seed=0).rows(0, 8)
