"""The model that comes with the program: opened by its name everywhere, small, and worth opening."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

import bertwright as bw
from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.model.folder import open_model
from bertwright.shipped import folder_of, shipped
from bertwright.text.wordpiece import Tokenizer

NAME = "small-wiki"
TEXTS = ["London is the capital of [MASK] .", "He was born in [MASK] , and died in 1921 ."]


def test_it_is_there_and_small() -> None:
    assert shipped() == (NAME,)
    folder = folder_of(NAME)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 12_000_000
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    card = (folder / "README.md").read_text("utf-8")
    assert "license: cc-by-sa-3.0" in card
    assert "Wikipedia" in card


def test_a_folder_of_its_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_of(NAME).is_dir()
    (tmp_path / NAME).mkdir()
    assert folder_of(NAME) == Path(NAME)
    with pytest.raises(InputError, match=r"not a model folder.*hides the model of that name"):
        open_model(NAME)
    assert folder_of("elsewhere/small-wiki") == Path("elsewhere/small-wiki")
    with pytest.raises(InputError, match="small-wiki comes with the program"):
        open_model("small-viki")


def test_it_fills_common_english_words() -> None:
    model = bw.load(NAME, precision="fp32")
    for text, word in (
        ("the film was directed [MASK] john smith .", "by"),
        ("the album was [MASK] in 1999 .", "released"),
        ("the second world [MASK] began in 1939 .", "war"),
    ):
        assert model.fill(text, top_k=1).masks[0][0].piece == word
    follows = model.next_sentence(
        ["The river rises in the Alps.", "The river rises in the Alps."],
        ["It flows north through Basel into the North Sea.", "He scored twice in the second half of the final."],
    )
    assert follows[0] > follows[1]


def test_transformers_reads_it_alike() -> None:
    folder = str(folder_of(NAME))
    theirs = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    words = AutoTokenizer.from_pretrained(folder)
    ours = bw.load(NAME, precision="fp32")
    for text in TEXTS:
        inputs = words(text, return_tensors="pt")
        assert inputs["input_ids"][0].tolist()[1:-1] == ours.tokenizer.ids([text], special=True)[0]
        position = inputs["input_ids"][0].tolist().index(words.mask_token_id)
        with torch.inference_mode():
            wanted = theirs(**inputs).logits[0, position].softmax(-1)
        best = ours.fill(text, top_k=1).masks[0][0]
        assert words.convert_tokens_to_ids(best.piece) == int(wanted.argmax())
        np.testing.assert_allclose(best.probability, float(wanted.max()), atol=1e-5)


def learn_words(folder: Path, *model: str) -> None:
    """Fine-tune a model on two words into `tuned` in the folder."""
    data = folder / "data"
    data.mkdir()
    rows = "text\tlabel\n" + "".join(f"{word} day\t{word}\n" for word in ["good", "bad"] * 8)
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text(rows, "utf-8")
    classify = "finetune classify --text-column text --label-column label --epochs 1 --batch-size 32".split()
    classify += "--threads 1 --precision fp32".split()
    assert main([*classify, *model, "--data", str(data), "--out", str(folder / "tuned")]) == 0


def test_its_tokenizer_and_weights_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A corpus of its pieces, pre-training from its weights, and a fine-tuned model of it."""
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(
            f"The {word} of the town is old.\nIt was built in 18{i}."
            for i, word in enumerate(
                ["church", "bridge", "castle", "school", "market", "harbour", "library", "tower"], start=10
            )
        ),
        "utf-8",
    )
    assert main(["corpus", "build", str(text), "--tokenizer", NAME, "--out", str(tmp_path / "c")]) == 0
    pretrain = "pretrain --steps 2 --batch-size 4 --lengths 32:1 --precision fp32 --second-sentence next".split()
    assert main([*pretrain, "--corpus", str(tmp_path / "c"), "--init-from", NAME, "--out", str(tmp_path / "r")]) == 0
    assert Tokenizer.load(tmp_path / "r").hash == Tokenizer.load(Path(NAME)).hash
    assert any(name.startswith("next_sentence.") for name in load_file(tmp_path / "r" / "model" / "model.safetensors"))
    learn_words(tmp_path, "--model", NAME)
    capsys.readouterr()
    assert bw.load(tmp_path / "tuned")("good day").label in {"good", "bad"}


def test_random_weights_keep_its_tokenizer(tmp_path: Path) -> None:
    learn_words(tmp_path, "--model", "random:tiny", "--tokenizer", NAME)
    assert Tokenizer.load(tmp_path / "tuned").hash == Tokenizer.load(Path(NAME)).hash
    assert bw.load(tmp_path / "tuned")("good day").label in {"good", "bad"}
