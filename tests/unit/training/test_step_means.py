"""Means of losses since the last log line, kept by a checkpoint."""

from bertwright.training.step_means import StepMeans


def test_each_name_is_divided_by_the_steps_that_had_it() -> None:
    means = StepMeans()
    for values in ({"mlm": 6.0, "lm": 9.0}, {"mlm": 4.0}, {"mlm": 5.0, "lm": 7.0}):
        means.add(values)
    assert means.means() == {"mlm": 5.0, "lm": 8.0}
    again = StepMeans()
    again.restore(means.notes(), steps=3.0)
    again.add({"mlm": 1.0, "lm": 2.0})
    assert again.means() == {"mlm": 4.0, "lm": 6.0}
    again.clear()
    assert again.means() == {}


def test_a_checkpoint_of_an_earlier_version_counts_its_steps() -> None:
    means = StepMeans()
    means.restore({"sums": {"mlm": 10.0}}, steps=2.0)
    means.add({"mlm": 2.0})
    assert means.means() == {"mlm": 4.0}
