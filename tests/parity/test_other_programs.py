"""Model folders opened by transformers 4.57 and 5 and by sentence-transformers: the same outputs, labels and casing."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.model.bert import Bert, open_architecture
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.folder import open_model, save_model
from bertwright.serving.embeddings import write_features
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support.parity import BERT_CLASSES

TEXTS = ["The heron waits.", "Größe and Ärger, 한국어!", "A longer line of text that has a few more words in it."]
LABELS = ("no", "perhaps", "yes")
NAMED = ("BertForSequenceClassification", "BertForTokenClassification")
OLDER = Path(sys.prefix) / "transformers4"

SCRIPT = """
import json, sys
import torch, transformers
texts, home = json.loads(sys.argv[1]), sys.argv[2]
for kind in sys.argv[3:]:
    model = getattr(transformers, kind).from_pretrained(f"{home}/{kind}").eval()
    words = transformers.AutoTokenizer.from_pretrained(f"{home}/{kind}")
    given = words(texts, padding=True, return_tensors="pt")
    if kind == "BertForMultipleChoice":
        given = {name: tensor[None] for name, tensor in given.items()}
    with torch.inference_mode():
        answer = model(**given)
    found = {name: tensor.tolist() for name, tensor in answer.items()}
    ids, kept = given["input_ids"].tolist(), given["attention_mask"].tolist()
    print(json.dumps([transformers.__version__, ids, kept, found, model.config.id2label]))
"""


def own_folder(home: Path, own_text: Path, kind: str, *, cased: bool) -> Bert:
    """A model of random weights as `bertwright` writes it into the folder of its class's name."""
    text = own_text.read_text("utf-8").splitlines()
    tokenizer = home / f"tokenizer-{cased}"
    if not tokenizer.exists():
        train_wordpiece(text, vocab_size=420, cased=cased).save(tokenizer)
    size = Tokenizer.load(tokenizer).vocab_size
    config = EncoderConfig(vocab_size=size, hidden=32, layers=2, heads=4, intermediate=48, max_positions=40)
    model = Bert(config, kind, num_labels=3)
    init_weights(model, 0.3, torch.Generator().manual_seed(1))
    labels = LABELS if kind in NAMED else ()
    save_model(home / kind, model, config=config, tokenizer=tokenizer, architecture=kind, labels=labels)
    return open_architecture(open_model(str(home / kind)))


def answers_alike(home: Path, own_text: Path, kinds: Sequence[str], *, path: str = "") -> str:
    """Compare each class; returns the version of transformers that answered."""
    ours = {kind: own_folder(home, own_text, kind, cased=bool(position % 2)) for position, kind in enumerate(kinds)}
    command = [sys.executable, "-W", "error::FutureWarning", "-c", SCRIPT, json.dumps(TEXTS), str(home), *kinds]
    answered = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert answered.returncode == 0, answered.stderr
    for kind, line in zip(kinds, answered.stdout.splitlines(), strict=True):
        version, ids, kept, theirs, labels = json.loads(line)
        own_ids = Tokenizer.load(home / kind).ids(TEXTS)
        flat = ids[0] if kind == "BertForMultipleChoice" else ids
        assert [[id for id in row if id != 0][1:-1] for row in flat] == own_ids
        input_ids, mask = torch.tensor(ids), torch.tensor(kept) > 0
        with torch.inference_mode():
            output = ours[kind](input_ids, torch.zeros_like(input_ids), mask)
        assert set(output) == set(theirs)
        for name, tensor in output.items():
            per_token = tensor.ndim > mask.ndim or kind == "BertForQuestionAnswering"
            real = mask if per_token else torch.ones(len(mask)) > 0
            torch.testing.assert_close(tensor[real], torch.tensor(theirs[name])[real], atol=1e-5, rtol=1e-5)
        if kind in NAMED:
            assert labels == {str(index): label for index, label in enumerate(LABELS)}
    return str(version)


def test_the_installed_transformers_answers_alike(tmp_path: Path, own_text: Path) -> None:
    version = answers_alike(tmp_path, own_text, ["BertForTokenClassification", "BertForPreTraining"])
    assert version.startswith("5.")


@pytest.mark.slow
def test_transformers_4_answers_alike(tmp_path: Path, own_text: Path) -> None:
    assert OLDER.is_dir(), f"{OLDER} is missing: `make slow` installs it"
    version = answers_alike(tmp_path, own_text, list(BERT_CLASSES), path=str(OLDER))
    assert version.startswith("4.57.")


@pytest.mark.slow
def test_sentence_transformers_gives_the_mean_of_our_states(tmp_path: Path, own_text: Path) -> None:
    own_folder(tmp_path, own_text, "BertForPreTraining", cased=False)
    script = (
        "import json, sys; from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(sys.argv[1], device='cpu')\n"
        "print(json.dumps(model.encode(json.loads(sys.argv[2])).tolist()))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "BertForPreTraining"), json.dumps(TEXTS)]
    answered = subprocess.run(command, check=True, capture_output=True, text=True)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    model, out = str(tmp_path / "BertForPreTraining"), tmp_path / "o.npz"
    write_features(model, str(tmp_path / "texts.txt"), out, layers="last", pool="mean")
    with np.load(out) as archive:
        ours = archive["vectors"][:, 0]
    np.testing.assert_allclose(ours, json.loads(answered.stdout.splitlines()[-1]), atol=1e-5, rtol=1e-5)
