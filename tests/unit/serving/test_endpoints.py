"""The entries of models."""

from bertwright.serving.predictor import Predictor
from tests.support.requests import Requests


def test_the_entry_of_one_model_is_that_of_the_list(models: dict[str, Predictor]) -> None:
    served = {"lm": models["lm"], "runs/sst": models["sst"]}
    listed, single, unknown = Requests(served)(
        ("GET", "/v1/models"), ("GET", "/v1/models/runs/sst"), ("GET", "/v1/models/sst")
    )
    assert single.json() == listed.json()["data"][1]
    assert (single.json()["id"], single.json()["owned_by"]) == ("runs/sst", "bertwright")
    assert single.json()["created"] > 1_700_000_000
    assert (unknown.status_code, unknown.json()["error"]["message"]) == (
        404,
        "there is no model 'sst'; there are lm, runs/sst",
    )
