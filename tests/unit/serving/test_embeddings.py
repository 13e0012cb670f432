"""The states of a frozen encoder, as transformers computes them one text at a time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertwright
from bertwright.errors import InputError
from bertwright.model.encoder import init_weights
from bertwright.model.folder import save_model
from bertwright.model.system import System, system_config
from bertwright.objectives.language_model import LanguageModel
from bertwright.serving import embeddings as features
from bertwright.serving.embeddings import parse_layers, write_features
from bertwright.sklearn.estimators import BertVectorizer
from bertwright.text.wordpiece import train_wordpiece

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

TEXTS = [
    "The heron waits.",
    "",
    "A much longer line, with Ünïcode and 한국어 in it, which is cut nowhere.",
    "end " * 60,
]


@pytest.fixture(scope="module")
def published_bert(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> tuple[Path, Any]:
    """Random weights and a tokenizer, saved by transformers."""
    folder = tmp_path_factory.mktemp("published") / "m"
    pieces = train_wordpiece(own_text.read_text("utf-8").splitlines(), vocab_size=400).pieces
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    words = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True)
    words.save_pretrained(folder)
    torch.manual_seed(5)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    settings = transformers.BertConfig(
        vocab_size=len(pieces), max_position_embeddings=50, initializer_range=0.2, **shape
    )
    model = transformers.BertModel(settings).eval()
    model.save_pretrained(folder)
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    return folder, model


def hidden_states_of(folder: Path, model: Any, text: str) -> tuple[np.ndarray[Any, Any], list[str], list[list[int]]]:
    words = transformers.AutoTokenizer.from_pretrained(str(folder))
    encoded = words(text, return_tensors="pt", return_offsets_mapping=True, truncation=True, max_length=50)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        states = model(**encoded, output_hidden_states=True).hidden_states
    return torch.cat(states).numpy(), words.convert_ids_to_tokens(encoded["input_ids"][0]), offsets


def test_the_command_gives_the_hidden_states_of_transformers(published_bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = published_bert
    command = [sys.executable, "-m", "bertwright", "features", "--model", str(folder), "--json"]
    command += ["--input", str(folder / "texts.txt"), "--layers", "all", "--pool", "none"]
    done = subprocess.run([*command, "--output", str(tmp_path / "out.npz")], check=True, capture_output=True, text=True)
    printed = json.loads(done.stdout)
    assert (printed["texts"], printed["truncated"], printed["layers"]) == (4, 1, [0, 1, 2, 3])
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert set(archive) == {
            "layers",
            *(f"{kind}_{n}" for kind in ("hidden", "tokens", "offsets") for n in range(4)),
        }
        assert printed["tokens"] == sum(len(archive[f"tokens_{number}"]) for number in range(4))
        for number, text in enumerate(TEXTS):
            states, tokens, offsets = hidden_states_of(folder, model, text)
            assert archive[f"tokens_{number}"].tolist() == tokens
            assert archive[f"offsets_{number}"].tolist() == offsets
            assert archive[f"hidden_{number}"].shape == states.shape
            np.testing.assert_allclose(archive[f"hidden_{number}"], states, atol=1e-5, rtol=1e-5)


def test_layers_and_pools(published_bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = published_bert
    for pool, reduce in (
        ("cls", lambda states: states[:, 0]),
        ("mean", lambda states: states.mean(1)),
        ("max", lambda states: states.max(1)),
    ):
        write_features(str(folder), str(folder / "texts.txt"), tmp_path / pool, layers="-1,0", pool=pool)  # type: ignore[arg-type]
        with np.load(tmp_path / pool) as archive:
            assert set(archive) == {"layers", "vectors"}
            assert archive["layers"].tolist() == [3, 0]
            assert archive["vectors"].shape == (4, 2, 32)
            for number, text in enumerate(TEXTS):
                states = hidden_states_of(folder, model, text)[0][[3, 0]]
                np.testing.assert_allclose(archive["vectors"][number], reduce(states), atol=1e-5, rtol=1e-5)


def test_the_first_token_of_a_model_that_looks_to_the_left_is_refused(own_text: Path, tmp_path: Path) -> None:
    words = train_wordpiece(own_text.read_text("utf-8").splitlines(), vocab_size=400)
    words.save(tmp_path / "tok")
    (tmp_path / "texts.txt").write_text("rain\nsun\n", "utf-8")
    systems: tuple[System, ...] = ("bert-left", "bert-right")
    for system in systems:
        config = system_config(system, "tiny", words.vocab_size)
        model = LanguageModel(config)
        init_weights(model, 0.2, torch.Generator().manual_seed(0))
        save_model(
            tmp_path / system,
            model,
            config=config,
            tokenizer=tmp_path / "tok",
            architecture=model.architecture,
        )
    texts, left = str(tmp_path / "texts.txt"), str(tmp_path / "bert-left")
    with pytest.raises(
        InputError, match="pool cls: the first token of this model attends only to itself; use mean or max"
    ):
        write_features(left, texts, tmp_path / "out", layers="last", pool="cls")
    assert not (tmp_path / "out").exists()
    with pytest.raises(
        ValueError, match="pool cls: the first token of this model attends only to itself; use mean or max"
    ):
        BertVectorizer(left, pool="cls").fit(["rain"])
    with pytest.raises(
        InputError, match="pool cls: the first token of this model attends only to itself; use mean or max"
    ):
        bertwright.load(left).vectors("rain", pool="cls")
    write_features(left, texts, tmp_path / "mean", layers="last", pool="mean")
    write_features(str(tmp_path / "bert-right"), texts, tmp_path / "cls", layers="last", pool="cls")
    with np.load(tmp_path / "cls") as archive:  # there the first token has seen the whole text
        assert not np.allclose(archive["vectors"][0], archive["vectors"][1], atol=1e-3)


def test_the_same_bytes_whatever_is_computed_together(
    published_bert: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertwright.serving import embeddings as prediction
    from bertwright.tasks import inference

    folder, _ = published_bert
    source = tmp_path / "many.txt"
    source.write_text("".join(f"{text[:n]}\n" for n in range(1, 40) for text in TEXTS[::2]))
    write_features(str(folder), str(source), tmp_path / "a.npz", layers="last")
    write_features(str(folder), str(source), tmp_path / "b.npz", layers="last")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    held = []

    def counted(encoder: Any, wanted: Any, layers: Any) -> Any:
        held.append([len(ids) for ids, _, _ in wanted.rows])
        return really(encoder, wanted, layers)

    really = prediction.states_for
    monkeypatch.setattr(prediction, "states_for", counted)
    monkeypatch.setattr(prediction, "_TEXTS", 7)
    monkeypatch.setattr(prediction, "_TOKENS", 45)
    monkeypatch.setattr(inference, "ANSWERED_TOKENS", 90)
    write_features(str(folder), str(source), tmp_path / "c.npz", layers="last")
    assert max(map(len, held)) > 1  # several texts at a time, but no more than are to be held
    assert all(sum(lengths) <= 45 or len(lengths) == 1 for lengths in held)
    with np.load(tmp_path / "a.npz") as whole, np.load(tmp_path / "c.npz") as parts:
        assert set(whole) == set(parts)
        for name in whole:
            if name.startswith("hidden"):
                np.testing.assert_allclose(whole[name], parts[name], atol=1e-5, rtol=1e-5)
            else:
                assert np.array_equal(whole[name], parts[name])


def test_bad_input_is_named_and_nothing_written(published_bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = published_bert
    empty, latin = tmp_path / "empty.txt", tmp_path / "latin.txt"
    empty.touch()
    latin.write_bytes(b"fine\nM\xfcnchen\n")
    out = tmp_path / "out.npz"
    with pytest.raises(InputError, match=r"latin\.txt: expected another file than that of --input"):
        write_features(str(folder), str(latin), latin)
    assert latin.read_bytes().startswith(b"fine")
    for source, arguments, words in (
        (str(tmp_path / "absent"), {}, "absent: no such file; expected a file with one text per line"),
        (str(empty), {}, r"empty\.txt: expected lines of text, found none"),
        (str(latin), {}, r"latin.txt:2: not UTF-8 text \(byte 2 of the line\)"),
        (
            str(folder / "texts.txt"),
            {"layers": "4"},
            r"--layers 4: expected all, last, or numbers from 0 \(the embeddings\) to 3, separated by",
        ),
        (str(folder / "texts.txt"), {"max_length": 51}, "max_length 51: expected 3 to 50, the positions of this model"),
        (str(folder / "texts.txt"), {"max_length": 0}, "max_length 0: expected 3 to 50"),
    ):
        with pytest.raises(InputError, match=words):
            write_features(str(folder), source, out, **arguments)
        assert list(tmp_path.glob("*.npz*")) == []
    with pytest.raises(InputError, match="expected a model folder or a run"):
        write_features("random:tiny", str(latin), out)


@pytest.mark.parametrize(("layers", "wanted"), [("all", [0, 1, 2]), ("last", [2]), ("0", [0]), ("-1,-3", [2, 0])])
def test_layers_are_numbered_from_the_embeddings(layers: str, wanted: list[int]) -> None:
    assert parse_layers(layers, 2) == wanted
    for wrong in ("3", "-4", "first", "", "1,"):
        with pytest.raises(InputError, match="--layers"):
            parse_layers(wrong, 2)


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes("\ufeffone\r\n\n\u2028two\x0cthree".encode())
    assert list(features.lines(str(tmp_path / "t"))) == ["one", "", "\u2028two\x0cthree"]
