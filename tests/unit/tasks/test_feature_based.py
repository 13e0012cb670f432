"""The feature-based way: an encoder that stays as it is, its states computed once, a BiLSTM that learns from them."""

import json
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertwright.errors import InputError
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import WAYS
from bertwright.model.folder import open_model
from bertwright.tasks import frozen_features as frozen
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.classification.task import positions_of
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.frozen_features import Recurrent, states_of
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.text.wordpiece import Tokenizer, train_wordpiece

SST2, RTE, STSB = get_task("sst2"), get_task("rte"), get_task("stsb")
FAST = FinetuneSettings(epochs=6, batch_size=4, max_length=24, threads=1, features="last", lstm_width=16)


@pytest.fixture
def features_arguments(tmp_path: Path, own_text: Path) -> dict[str, Any]:
    """A tokenizer, a table that can be learned, and the arguments of a fine-tuning."""
    train_wordpiece([own_text.read_text("utf-8")], vocab_size=400).save(tmp_path / "tok")
    data = tmp_path / "data"
    data.mkdir()
    for name, count in (("train", 24), ("dev", 10)):
        rows = "".join(f"{'the river is wide' if n % 2 else 'no'} {n}\t{n % 2}\n" for n in range(count))
        (data / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    return {"model": "random:tiny", "data": data, "tokenizer": tmp_path / "tok"}


def test_features_are_computed_where_ctrl_c_ends_it_at_once(
    features_arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the training loop it would be heard after the step, of which the first one would wait for all features."""
    with monkeypatch.context() as patched:
        patched.setattr(frozen, "_fill", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            finetune(FAST, SST2, out=tmp_path / "run", **features_arguments)
    again = finetune(FAST, SST2, out=tmp_path / "run", resume=True, **features_arguments)
    assert again["scores"] == finetune(FAST, SST2, out=tmp_path / "whole", **features_arguments)["scores"]


def test_states_are_kept_in_a_file_that_need_not_fit_into_memory(
    features_arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has numpy's own bytes; where the disk has no room, nothing is computed and nothing is left."""
    words = Tokenizer.load(features_arguments["tokenizer"])
    encoder = frozen_encoder(
        open_model("random:tiny", tokenizer=features_arguments["tokenizer"], vocab_size=words.vocab_size)
    )
    wanted = positions_of(encode(words, ["the river is wide", "no"], max_length=16))
    filled = []
    really = frozen._fill
    monkeypatch.setattr(frozen, "_fill", lambda *arguments: (filled.append(arguments[0]), really(*arguments)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            frozen.states_for(encoder, wanted, [0, 2], cache=tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert filled == list((tmp_path / "cache").iterdir()) == []
    states = frozen.states_for(encoder, wanted, [0, 2], cache=tmp_path / "cache")
    assert isinstance(filled[0], np.memmap)
    assert isinstance(states.values, np.memmap)
    alone = frozen.states_for(encoder, wanted, [0, 2])
    assert np.array_equal(states.values, alone.values)
    np.save(tmp_path / "numpys.npy", alone.values)
    (path,) = (tmp_path / "cache").iterdir()
    assert path.read_bytes() == (tmp_path / "numpys.npy").read_bytes()


def test_a_way_names_its_states() -> None:
    assert [states_of(way, 12) for way in WAYS] == [
        [0],
        [11],
        [12],
        [9, 10, 11, 12],
        [9, 10, 11, 12],
        list(range(1, 13)),
        list(range(13)),
    ]
    assert states_of("concat-last-four", 2) == [1, 2]
    with pytest.raises(
        InputError,
        match="unknown way 'first'; allowed: embeddings, second-to-last, last,",
    ):
        states_of("first", 12)  # type: ignore[arg-type]


def test_a_weighted_sum_and_a_concatenation() -> None:
    torch.manual_seed(0)
    states = torch.randn(2, 3, 4, 5)
    summed = Recurrent("sum-last-four", states=4, hidden=5, width=6, dropout=0.0)
    with torch.no_grad():
        summed.shares.copy_(torch.tensor([0.0, 1.0, -1.0, 2.0]))
        summed.factor.fill_(1.5)
    shares = torch.tensor([0.0, 1.0, -1.0, 2.0]).exp()
    shares /= shares.sum()
    expected = 1.5 * sum(share * states[:, :, position] for position, share in enumerate(shares))
    torch.testing.assert_close(summed.mix(states), expected)
    assert summed.shares.requires_grad
    with_embeddings = Recurrent("elmo", states=4, hidden=5, width=6, dropout=0.0)
    with_embeddings.load_state_dict(summed.state_dict())
    torch.testing.assert_close(with_embeddings.mix(states), expected)
    assert with_embeddings.shares.requires_grad
    joined = Recurrent("concat-last-four", states=4, hidden=5, width=6, dropout=0.0)
    assert torch.equal(joined.mix(states)[1, 2], states[1, 2].flatten())
    assert not joined.shares.requires_grad


def test_what_pads_a_row_changes_nothing() -> None:
    torch.manual_seed(0)
    model = Recurrent("last", states=1, hidden=5, width=6, dropout=0.0).eval()
    states = torch.randn(2, 7, 1, 5)
    lengths = torch.tensor([7, 3])
    both = model(states, lengths)
    assert both.shape == (2, 7, 6)
    torch.testing.assert_close(both[1, :3], model(states[1:, :3], torch.tensor([3]))[0])
    assert not both[1, 3:].any()


def test_states_are_those_of_the_encoder(features_arguments: dict[str, Any]) -> None:
    """Whatever rows stand in one batch; segments of pairs too."""
    words = Tokenizer.load(features_arguments["tokenizer"])
    saved = open_model("random:tiny", tokenizer=features_arguments["tokenizer"], vocab_size=words.vocab_size)
    encoder = frozen_encoder(saved)
    encoded = encode(words, ["The river.", "A mill stands by the water."], ["No", "It turns all day."], max_length=24)
    states = frozen.states_for(encoder, positions_of(encoded), [0, 2])
    for row, ids in enumerate(encoded.ids):
        given_ids = torch.from_numpy(ids)[None].long()
        segments = (torch.arange(len(ids)) >= int(encoded.first[row])).long()[None]
        hidden = encoder(given_ids, segments, torch.ones_like(given_ids) > 0, all_hidden=True).hidden
        ours = torch.from_numpy(states.values[states.ends[row] : states.ends[row + 1]])
        torch.testing.assert_close(ours[:, 0], hidden[0][0].detach(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours[:, 1], hidden[2][0].detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_it_learns_answers_and_comes_back(features_arguments: dict[str, Any], tmp_path: Path, way: Any) -> None:
    result = finetune(FAST.model_copy(update={"features": way}), SST2, out=tmp_path / "run", **features_arguments)
    assert result["mean"] == 1.0
    folder = tmp_path / "run"
    assert evaluate_task(SST2, model=str(folder), data=features_arguments["data"])["accuracy"] == 1.0
    (tmp_path / "in.tsv").write_text("sentence\nthe river is wide 99\nno 98\n")
    predict_file(str(folder), str(tmp_path / "in.tsv"), str(tmp_path / "out.tsv"))
    assert [line.split("\t")[1] for line in (tmp_path / "out.tsv").read_text().splitlines()] == [
        "label",
        "positive",
        "negative",
    ]
    assert not (folder / "features").exists()


def test_the_encoder_stays_and_its_states_are_computed_once(
    features_arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune(
        FAST.model_copy(update={"features": None, "epochs": 1}), SST2, out=tmp_path / "first", **features_arguments
    )
    calls = []
    really = frozen._fill

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return really(*arguments)

    monkeypatch.setattr(frozen, "_fill", counted)
    result = finetune(
        FAST.model_copy(update={"seeds": 3}),
        SST2,
        model=str(tmp_path / "first"),
        data=features_arguments["data"],
        out=tmp_path / "run",
    )
    assert len(calls) == 2  # train and dev, for all seeds
    assert len(set(map(json.dumps, result["seeds"]))) == 3
    before, after = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("first", "run"))
    for name, tensor in before.items():
        if name.startswith(("bert.embeddings", "bert.encoder")):
            assert torch.equal(after[name], tensor), name
    assert "classifier.weight" not in after


def test_the_same_seed_gives_the_same_bytes(features_arguments: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    finetune(FAST, SST2, out=tmp_path / "a", **features_arguments)
    torch.manual_seed(2)
    finetune(FAST, SST2, out=tmp_path / "b", **features_arguments)
    one, two = (tmp_path / name / "model" / "model.safetensors" for name in "ab")
    assert one.read_bytes() == two.read_bytes()


def test_pairs_and_numbers(features_arguments: dict[str, Any], tmp_path: Path) -> None:
    rows = [("one river", "two mills", n % 4 + 0.5) for n in range(16)]
    lines = "".join(f"{a} {n}\t{b} {y}\t{y}\n" for n, (a, b, y) in enumerate(rows))
    (tmp_path / "numbers.tsv").write_text(f"sentence1\tsentence2\tscore\n{lines}")
    result = finetune(FAST, STSB, **{**features_arguments, "data": tmp_path / "numbers.tsv", "out": tmp_path / "run"})
    assert np.isfinite(result["mean"])
    predict_file(str(tmp_path / "run"), str(tmp_path / "numbers.tsv"), str(tmp_path / "out.tsv"))
    assert (tmp_path / "out.tsv").read_text().startswith("sentence1\tsentence2\tscore\tpredicted_score\n")


def test_nobodys_auto_model_opens_it(features_arguments: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    finetune(FAST.model_copy(update={"epochs": 1}), SST2, out=tmp_path / "run", **features_arguments)
    with pytest.raises(ValueError, match="bertwright-features"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")


def test_what_does_not_go_together_is_refused(features_arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--features freezes every layer; leave --new-layers and --frozen-layers out"):
        finetune(FAST.model_copy(update={"frozen_layers": 1}), SST2, out=tmp_path / "run", **features_arguments)
    for ignored in ({"layer_decay": 0.5}, {"activation_checkpointing": True}):
        with pytest.raises(
            InputError, match="--features freezes every layer; leave --layer-decay and --activation-checkpointing out"
        ):
            finetune(FAST.model_copy(update=ignored), SST2, out=tmp_path / "run", **features_arguments)
    (tmp_path / "swag.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "label": 0}\n' * 4)
    with pytest.raises(InputError, match="--features: swag cannot be learned from features"):
        finetune(FAST, SWAG, **{**features_arguments, "data": tmp_path / "swag.jsonl", "out": tmp_path / "run"})
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="BiLSTM width 7: expected an even number"):
        Recurrent("last", states=1, hidden=4, width=7, dropout=0.0)
