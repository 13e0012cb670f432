"""GPT-2 from raw text: vocabulary, corpus, pre-training, scores and continuations, by the commands."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertwright as bw
from bertwright.cli import main
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.families.gpt2 import GPT2Config
from bertwright.model.folder import open_model
from bertwright.objectives.settings import ExampleSettings
from bertwright.pretraining.systems import example_rows, refuse_vocabulary
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.open_tokenizer import open_tokenizer_folder

FAST = [*("--precision", "fp32"), *("--threads", "1"), *("--batch-size", "8"), *("--log-every", "1")]


@pytest.fixture(scope="module")
def byte_corpus(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> Path:
    """A corpus of a learned byte-level vocabulary, by the commands."""
    folder = tmp_path_factory.mktemp("bytes")
    train = ["tokenizer", "train", str(own_text), "--kind", "byte-bpe", "--vocab-size", "400"]
    assert main([*train, "--out", str(folder / "tok")]) == 0
    build = ["corpus", "build", str(own_text), "--tokenizer", str(folder / "tok"), "--workers", "1"]
    assert main([*build, "--out", str(folder / "corpus")]) == 0
    return folder / "corpus"


def test_a_corpus_has_the_spaces_of_its_text(byte_corpus: Path, own_text: Path) -> None:
    corpus = Corpus.open(byte_corpus)
    texts = [" ".join(each.paragraphs).replace("。 ", "。") for each in read_documents(own_text, TextSettings())]
    expected = [id for ids in corpus.tokenizer.ids(texts) for id in ids]
    assert np.concatenate([tokens for _, tokens in corpus.blocks()]).tolist() == expected
    rows: Any = example_rows("gpt2", [(corpus, 1.0)], ExampleSettings(second_sentence="none"), length=16, seed=0)
    batch = rows.batch(0, np.arange(rows.num_rows(0)))
    real = [id for ids, length in zip(batch.ids, batch.lengths, strict=True) for id in ids[:length]]
    assert real.count(corpus.tokenizer.end_of_text_id) == len(texts)
    assert batch.ids.max() < corpus.tokenizer.vocab_size


def test_a_model_is_trained_scored_and_continues_texts(byte_corpus: Path, tmp_path: Path, capsys: Any) -> None:
    run = str(tmp_path / "run")
    shape = ["--system", "gpt2", "--size", "2x64x2", "--lengths", "32:1", "--held-out", "0.2", "--evaluations", "1"]
    steps = ["--steps", "12", "--learning-rate", "3e-3", "--warmup", "0.1", "--bias-correction"]
    assert main(["pretrain", "--corpus", str(byte_corpus), "--out", run, *shape, *FAST, *steps]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [line["lm"] for line in lines if "lm" in line]
    assert losses[-1] < losses[0] - 0.3
    held_out = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["result"]["held_out"]
    assert 1 < held_out["bits_per_character"] < 10
    described = json.loads((tmp_path / "run" / "model" / "config.json").read_text("utf-8"))
    assert described["architectures"] == ["GPT2LMHeadModel"]
    assert (described["eos_token_id"], described["pad_token_id"], described["activation_function"]) == (
        2,
        1,
        "gelu_new",
    )
    config = open_model(run).config
    assert isinstance(config, GPT2Config)
    assert config.end_id == 2
    model = bw.load(run, precision="fp32")
    scored = model.score("The old bridge.")
    assert scored.pieces == len(open_tokenizer_folder(Path(run)).ids(["The old bridge."])[0]) - 1  # not the first one
    capsys.readouterr()
    assert main(["generate", run, "--prompt", "The old", "--tokens", "4", "--precision", "fp32", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])["continuations"]
    assert printed == [vars(model.generate("The old", tokens=4))]
    (tmp_path / "lines.txt").write_text("The old bridge.\n", "utf-8")
    files = ["--input", str(tmp_path / "lines.txt"), "--output", str(tmp_path / "states.npz")]
    assert main(["features", "--model", run, *files]) == 0
    with np.load(tmp_path / "states.npz", allow_pickle=False) as archive:
        assert (
            "".join(archive["tokens_0"].tolist()).replace("▁", " ") == "<s>The old bridge.</s>"
        )  # not GPT-2's letters


def test_exact_gelu_is_trained_and_kept_by_a_run_from_it(byte_corpus: Path, tmp_path: Path, capsys: Any) -> None:
    """GPT-2 has another default, and a run that starts from such a model needs no option for it."""
    steps = ["--corpus", str(byte_corpus), "--steps", "1", "--lengths", "16:1", *FAST]
    shape = ["--system", "gpt2", "--size", "1x64", "--activation", "gelu"]
    runs = [str(tmp_path / name) for name in ("first", "second")]
    assert main(["pretrain", "--out", runs[0], *shape, *steps]) == 0
    assert main(["pretrain", "--out", runs[1], "--init-from", runs[0], *steps]) == 0
    for run in runs:
        described = json.loads((Path(run) / "model" / "config.json").read_text("utf-8"))
        assert described["activation_function"] == "gelu"
    typed = ["--init-from", runs[0], "--activation", "gelu_tanh", "--out", str(tmp_path / "third")]
    assert main(["pretrain", *typed, *steps]) == 2
    assert "expected the activation gelu_tanh (--activation), got gelu" in capsys.readouterr().err
    assert (
        main(["pretrain", "--init-from", runs[0], "--system", "lstm-left", "--out", str(tmp_path / "third"), *steps])
        == 2
    )
    assert "got a GPT-2 (--system gpt2)" in capsys.readouterr().err


def test_other_vocabularies_are_refused(byte_corpus: Path, own_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its vocabulary is no byte-level one, with which GPT-2 is defined"):
        refuse_vocabulary("gpt2", Corpus.open(own_corpus))
    with pytest.raises(InputError, match="its vocabulary is byte-level pairs, and GPT-1 is defined with byte pairs"):
        refuse_vocabulary("gpt", Corpus.open(byte_corpus))
    text = str(own_corpus)
    for options in (["--cased"], ["--merges", "5"]):
        train = ["tokenizer", "train", text, "--kind", "byte-bpe", "--out", str(tmp_path / "t"), *options]
        assert main(train) == 2
