"""Checkpoints as transformers writes them: read with their own tokenizer, and pre-trained on in their own shape."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.folder import open_model
from bertwright.objectives.masked_lm import Inputs, PretrainingModel
from bertwright.pretraining.init_from import adopt_shape
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import build_model, encoder_config
from bertwright.text.extend_vocabulary import extend_tokenizer
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support.parity import padded_batch

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

KINDS = ("BertForPreTraining", "BertForMaskedLM", "BertModel")


def publish_bert(
    folder: Path, text: Path, kind: str = "BertForPreTraining", *, lower: bool = False, **config: Any
) -> Any:
    """A folder of random weights and a tokenizer, both written by transformers; returns its model."""
    lines = text.read_text("utf-8").splitlines()
    pieces = train_wordpiece(lines, vocab_size=500, cased=not lower, strip_accents=lower).pieces
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    words = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=lower)
    (folder / "vocab.txt").unlink()
    words.save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config_values = {
        "vocab_size": len(pieces),
        "max_position_embeddings": 40,
        "initializer_range": 0.1,
        **shape,
        **config,
    }
    torch.manual_seed(7)
    model = getattr(transformers, kind)(transformers.BertConfig(**config_values)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:  # what transformers starts at 0 or 1 would hide a mistake
                tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder)
    return model


def build_and_open(folder: Path, text: Path, tokenizer: Path) -> Corpus:
    build_corpus([text], tokenizer=tokenizer, out=folder, workers=1)
    return Corpus.open(folder)


def settings_for(source: Path, **changes: Any) -> PretrainSettings:
    settings = PretrainSettings(phases=(Phase(length=24, share=1.0),), batch_size=4, steps=2, **changes)
    return adopt_shape(settings, open_model(str(source)))


def start(source: Path, data: Corpus, **changes: Any) -> PretrainingModel:
    """The model with which a run would begin."""
    settings, saved = settings_for(source, **changes), open_model(str(source))
    return build_model(settings, encoder_config(settings, data.tokenizer.vocab_size, saved), saved, data).eval()


def whole(ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> Inputs:
    """Inputs that select every position but the padding."""
    rows, length = ids.shape
    at = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), torch.arange(length).expand(rows, -1)], dim=1)
    real = torch.cat([torch.zeros(rows, 1, dtype=torch.bool), mask], dim=1)
    picked = real.flatten().nonzero().squeeze(1)
    return Inputs(ids, segments, mask, at, picked, ids[mask], torch.zeros(rows, dtype=torch.int64))


@pytest.mark.parametrize("lower", [False, True])
def test_its_tokenizer_builds_a_corpus(tmp_path: Path, own_text: Path, lower: bool) -> None:
    publish_bert(tmp_path / "m", own_text, lower=lower)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "m"))
    lines = [line for line in own_text.read_text("utf-8").splitlines() if line]
    ours = Tokenizer.load(tmp_path / "m")
    assert ours.cased is not lower
    assert ours.ids(lines) == [theirs(line, add_special_tokens=False)["input_ids"] for line in lines]
    assert build_and_open(tmp_path / "corpus", own_text, tmp_path / "m").tokenizer_hash == ours.hash


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_begins_with_the_numbers_of_the_checkpoint(
    tmp_path: Path, own_text: Path, kind: str, activation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = publish_bert(tmp_path / "m", own_text, kind, hidden_act=activation)
    ours = start(tmp_path / "m", build_and_open(tmp_path / "corpus", own_text, tmp_path / "m"))
    config = ours.encoder.config
    assert (config.layers, config.hidden, config.heads, config.intermediate, config.max_positions) == (2, 32, 4, 48, 40)
    assert config.activation == {"gelu": "gelu", "gelu_new": "gelu_tanh"}[activation]
    ids, segments, mask = padded_batch(config.vocab_size)
    with torch.inference_mode():
        answer = theirs(input_ids=ids, attention_mask=mask.long(), token_type_ids=segments)
        logits, pair = ours.logits(whole(ids, mask, segments))
        states = ours.encoder(ids, segments, mask).last
        pooled = ours.pooler(states[:, 0])
    said = capsys.readouterr().err
    assert pair is not None
    if kind == "BertModel":
        torch.testing.assert_close(states[mask], answer.last_hidden_state[mask], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pooled, answer.pooler_output, atol=1e-5, rtol=1e-5)
        assert "no weights for masked_lm, next_sentence; they start with random weights" in said
    elif kind == "BertForMaskedLM":
        torch.testing.assert_close(logits, answer.logits[mask], atol=1e-5, rtol=1e-5)
        assert "no weights for pooler, next_sentence; they start with random weights" in said
    else:
        torch.testing.assert_close(logits, answer.prediction_logits[mask], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pair, answer.seq_relationship_logits, atol=1e-5, rtol=1e-5)
        assert "anew" not in said


def test_the_spelling_of_the_first_berts_and_padded_embeddings_are_read(tmp_path: Path, own_text: Path) -> None:
    theirs = publish_bert(tmp_path / "m", own_text, vocab_size=512)  # 500 pieces, rows up to a multiple of 64
    weights = load_file(tmp_path / "m" / "model.safetensors")
    spelled = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    spelled["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    spelled["cls.predictions.decoder.bias"] = spelled.pop("cls.predictions.bias")
    assert any(name.endswith(".gamma") for name in spelled)
    save_file(spelled, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    data = build_and_open(tmp_path / "corpus", own_text, tmp_path / "m")
    ours = start(tmp_path / "m", data)
    size = data.tokenizer.vocab_size
    assert ours.encoder.config.vocab_size == size < 512
    ids, segments, mask = padded_batch(size)
    with torch.inference_mode():
        answer = theirs(input_ids=ids, attention_mask=mask.long(), token_type_ids=segments)
        logits, _ = ours.logits(whole(ids, mask, segments))
    torch.testing.assert_close(logits, answer.prediction_logits[mask][:, :size], atol=1e-5, rtol=1e-5)


def test_new_pieces_begin_as_means_and_the_rest_stays(tmp_path: Path, own_text: Path) -> None:
    publish_bert(tmp_path / "m", own_text)
    old = Tokenizer.load(tmp_path / "m")
    extend_tokenizer(old, own_text.read_text("utf-8").splitlines(), add=20).tokenizer.save(tmp_path / "tok")
    data = build_and_open(tmp_path / "corpus", own_text, tmp_path / "tok")
    assert data.tokenizer.vocab_size == old.vocab_size + 20
    plain = start(tmp_path / "m", build_and_open(tmp_path / "plain", own_text, tmp_path / "m")).state_dict()
    grown = start(tmp_path / "m", data).state_dict()
    for name, tensor in plain.items():
        assert torch.equal(grown[name][: len(tensor)], tensor), name
    weights = load_file(tmp_path / "m" / "model.safetensors")
    words, bias = weights["bert.embeddings.word_embeddings.weight"], weights["cls.predictions.bias"]
    whole_words = [piece for piece in data.tokenizer.pieces[old.vocab_size :] if not piece.startswith("##")]
    assert len(whole_words) > 3
    for piece in whole_words:
        id, parts = data.tokenizer.id_of(piece), old.ids([piece])[0]
        assert len(parts) > 1
        mean = sum(words[part] for part in parts) / len(parts)
        torch.testing.assert_close(grown["encoder.embeddings.word.weight"][id], mean)
        torch.testing.assert_close(grown["masked_lm.bias"][id], sum(bias[part] for part in parts) / len(parts))


def test_a_run_from_a_checkpoint_is_opened_by_transformers(tmp_path: Path, own_text: Path) -> None:
    publish_bert(tmp_path / "m", own_text)
    old = Tokenizer.load(tmp_path / "m")
    extend_tokenizer(old, own_text.read_text("utf-8").splitlines(), add=20).tokenizer.save(tmp_path / "tok")
    build_and_open(tmp_path / "corpus", own_text, tmp_path / "tok")
    settings = PretrainSettings(phases=(Phase(length=24, share=1.0),), batch_size=4, steps=2, threads=1)
    where = {"corpus": tmp_path / "corpus", "out": tmp_path / "run", "init_from": str(tmp_path / "m")}
    pretrain(settings, **where)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["size"].startswith("2x32")
    assert pretrain(settings, **where, resume=True)["steps"] == 2  # type: ignore[arg-type]
    model = transformers.BertForPreTraining.from_pretrained(tmp_path / "run" / "model")
    assert model.config.num_attention_heads == 4
    assert model.config.vocab_size == old.vocab_size + 20
    assert Tokenizer.load(tmp_path / "run").base == Tokenizer.load(tmp_path / "tok").base
    with pytest.raises(InputError, match="its tokenizer is neither the one that"):  # this run's is the extended one
        start(tmp_path / "run", build_and_open(tmp_path / "plain", own_text, tmp_path / "m"))


def test_other_tokenizers_shapes_and_lengths_are_refused(tmp_path: Path, own_text: Path) -> None:
    publish_bert(tmp_path / "m", own_text)
    lines = own_text.read_text("utf-8").splitlines()
    other = train_wordpiece(lines, vocab_size=480)
    extend_tokenizer(other, lines, add=20).tokenizer.save(tmp_path / "tok")
    with pytest.raises(InputError, match="its tokenizer is neither the one that"):
        start(tmp_path / "m", build_and_open(tmp_path / "corpus", own_text, tmp_path / "tok"))
    data = build_and_open(tmp_path / "own", own_text, tmp_path / "m")
    with pytest.raises(InputError, match=r"expected the size tiny .*, got 2x32 of 4 heads, .* inside"):
        start(tmp_path / "m", data, size="tiny")
    with pytest.raises(InputError, match=r"expected the activation gelu_tanh .*, got gelu$"):
        start(tmp_path / "m", data, activation="gelu_tanh")
    settings = settings_for(tmp_path / "m").model_copy(update={"phases": (Phase(length=64, share=1.0),)})
    with pytest.raises(InputError, match="has 40 positions, and rows are 64 tokens long"):
        encoder_config(settings, 500, open_model(str(tmp_path / "m")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"model_type": "roberta"}, "46 of 46 tensors do not belong to a RoBERTa"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"num_attention_heads": 5}, "hidden 32 is not a multiple of heads 5"),
    ],
)
def test_what_is_no_bert_of_ours_is_refused(tmp_path: Path, own_text: Path, change: dict[str, Any], words: str) -> None:
    publish_bert(tmp_path / "m", own_text)
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=words):
        open_model(str(tmp_path / "m"))


def test_untied_decoders_and_older_formats_are_refused(tmp_path: Path, own_text: Path) -> None:
    publish_bert(tmp_path / "m", own_text)
    weights = load_file(tmp_path / "m" / "model.safetensors")
    untied = {"cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"] + 1}
    save_file({**weights, **untied}, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="only models that tie the two can be read"):
        open_model(str(tmp_path / "m"))
    for name in ("pytorch_model.bin", "model.safetensors.index.json", "tf_model.h5", "flax_model.msgpack"):
        shutil.copytree(tmp_path / "m", tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
        (tmp_path / name / name).write_bytes(b"\0")
        with pytest.raises(
            InputError, match=f"{name} is of another format: make a model folder of it: bertwright import"
        ):
            open_model(str(tmp_path / name))
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "bert_config.json").write_text("{}")
    (tmp_path / "google" / "bert_model.ckpt.index").write_bytes(b"\0")
    with pytest.raises(InputError, match=r"no config\.json\); bert_config\.json is of another format: make"):
        open_model(str(tmp_path / "google"))
