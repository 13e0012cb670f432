"""The gain of an extended vocabulary before any training: pieces per word, and masked-LM loss per word of the start.

python -m benchmarks.studies.extension --model RUN --text text.txt --out FOLDER [--add 1000] [--rows 512] [--json]

Every tenth document is kept from the learning of the pieces, and measured. Whole words are masked, so that a word in
several pieces is not given away by its own rest; nats per word are nats per piece times pieces per word. The two
starts stay as model folders, OUT/model-means and OUT/model-random, which can be trained on.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import SavedModel, load_weights, open_model, save_model
from bertwright.objectives.dataset import Examples
from bertwright.objectives.masked_lm import PretrainingModel, to_inputs
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from bertwright.pretraining.init_from import load_adapted
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_all
from bertwright.text.extend_vocabulary import extend_tokenizer
from bertwright.text.wordpiece import Tokenizer

_WORDS, _BIAS = "encoder.embeddings.word.weight", "masked_lm.bias"


def split_text(options: argparse.Namespace) -> tuple[Path, Path]:
    """Write the documents to learn from and those to measure on, a blank line after each."""
    options.out.mkdir(parents=True, exist_ok=True)
    parts = options.out / "learn.txt", options.out / "measure.txt"
    documents = list(read_all(find_inputs([options.text]), TextSettings()))
    for path, tenth in zip(parts, (False, True), strict=True):
        chosen = [document for number, document in enumerate(documents) if (number % 10 == 0) == tenth]
        path.write_text("\n\n".join("\n".join(document.paragraphs) for document in chosen) + "\n", "utf-8")
    return parts


def random_start(model: PretrainingModel, saved: SavedModel) -> None:
    """The saved weights; rows of new pieces drawn as any weight is at first, with no bias."""
    assert saved.weights is not None
    num_new = model.encoder.config.vocab_size - len(saved.weights[_WORDS])
    drawn = torch.empty(num_new, model.encoder.config.hidden)
    torch.nn.init.trunc_normal_(drawn, std=saved.config.initializer_range, generator=torch.Generator().manual_seed(0))
    rows = {
        _WORDS: torch.cat([saved.weights[_WORDS], drawn]),
        _BIAS: torch.cat([saved.weights[_BIAS], torch.zeros(num_new)]),
    }
    load_weights(model, replace(saved, weights={**saved.weights, **rows}))


def measure(model: PretrainingModel, data: Corpus, num_old: int, num_words: int, rows: int) -> dict[str, float]:
    """Nats of a start per piece, per old and per new one among them, and per word."""
    settings = ExampleSettings(masking=MaskingSettings(units="word"))
    losses, labels = [], []
    model.eval()
    with torch.inference_mode():
        for batch in Examples(data, settings, length=128, seed=0).first(rows):
            inputs = to_inputs(batch)
            losses.append(F.cross_entropy(model.logits(inputs)[0], inputs.labels, reduction="none"))
            labels.append(inputs.labels)
    loss, is_new = torch.cat(losses), torch.cat(labels) >= num_old
    per_word = data.num_tokens / num_words
    figures = {"pieces_per_word": per_word, "nats_per_piece": float(loss.mean())}
    if is_new.any():
        figures |= {"of_old": float(loss[~is_new].mean()), "of_new": float(loss[is_new].mean())}
        figures |= {"new_share": float(is_new.float().mean())}
    return {**figures, "nats_per_word": float(loss.mean()) * per_word}


def main() -> None:
    """Measure the old vocabulary, and the extended one with both starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--add", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    saved = open_model(options.model)
    old = Tokenizer.load(saved.tokenizer)
    learn, measured = split_text(options)
    lines = [line for document in read_all([learn], TextSettings()) for line in document.paragraphs]
    extend_tokenizer(old, lines, add=options.add).tokenizer.save(options.out / "tokenizer")
    num_words = len(measured.read_text("utf-8").split())
    rows: list[dict[str, Any]] = []
    for name, tokenizer in (("old", saved.tokenizer), ("extended", options.out / "tokenizer")):
        build_corpus([measured], tokenizer=tokenizer, out=options.out / f"corpus-{name}", workers=1)
        data = Corpus.open(options.out / f"corpus-{name}")
        assert isinstance(saved.config, EncoderConfig)
        config = saved.config.model_copy(update={"vocab_size": data.tokenizer.vocab_size})
        for start in ("means",) if name == "old" else ("means", "random"):
            model = PretrainingModel(config)
            if start == "means":
                load_adapted(model, saved, data)
            else:
                random_start(model, saved)
            shown = "-" if name == "old" else start
            if name == "extended":  # to be trained on: pretrain --init-from
                where = options.out / f"model-{start}"
                save_model(where, model, config=config, tokenizer=tokenizer, architecture="BertForPreTraining")
            rows.append(
                {"vocabulary": name, "start": shown, **measure(model, data, old.vocab_size, num_words, options.rows)}
            )
            print(rows[-1], file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
