"""The metric that chooses the best epoch stands first."""

import pytest

from bertwright.errors import InputError
from bertwright.finetuning.prepare import with_chosen_first


def test_the_chosen_metric_stands_first() -> None:
    metrics = {"matched.accuracy": 0.5, "matched.f1": 0.4, "other.f1": 0.6, "collapsed": 0.0}
    assert with_chosen_first(metrics, None) == metrics
    for chosen, first in (("f1", "matched.f1"), ("other.f1", "other.f1"), ("accuracy", "matched.accuracy")):
        reordered = with_chosen_first(metrics, chosen)
        assert next(iter(reordered)) == first
        assert reordered == metrics
    with pytest.raises(InputError, match=r"--best mrr: expected .*: matched.accuracy, matched.f1, other.f1$"):
        with_chosen_first(metrics, "mrr")
