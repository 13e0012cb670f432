"""Import of BERT's successors: sister families, tokenizers, and folders that are refused with what is expected."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.interop.import_model import import_model
from bertwright.model.folder import open_model
from bertwright.tasks.binding import open_tokenizer
from bertwright.text.published_tokenizer import PublishedTokenizer
from tests.support.gpt2_files import publish_gpt2, write_gpt2_tokenizer
from tests.support.published_families import FAMILIES, publish
from tests.support.published_tokenizers import write_unigram

BY_NAME = {published.family: published for published in FAMILIES}


def change(folder: Path, **entries: Any) -> None:
    """Change entries of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | entries), "utf-8")


def leave_out(folder: Path, entry: str) -> None:
    """Leave an entry out of config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    del config[entry]
    path.write_text(json.dumps(config), "utf-8")


def test_an_xlm_r_is_a_roberta_with_its_own_tokenizer(tmp_path: Path, own_tokenizer: Path) -> None:
    publish(tmp_path / "m", BY_NAME["roberta"], "BertForMaskedLM", own_tokenizer)
    change(tmp_path / "m", model_type="xlm-roberta", architectures=["XLMRobertaForMaskedLM"])
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "m" / name).unlink()
    write_unigram(tmp_path / "m")
    described = import_model(str(tmp_path / "m"), tmp_path / "out")
    assert described["architecture"] == "BertForMaskedLM"
    saved = open_model(str(tmp_path / "out"))
    assert type(saved.config).__name__ == "RobertaConfig"
    assert isinstance(open_tokenizer(saved), PublishedTokenizer)
    with pytest.raises(InputError, match="say what becomes of upper case; leave --casing out"):
        import_model(str(tmp_path / "m"), tmp_path / "other", cased=True)


@pytest.mark.parametrize(
    ("family", "entries", "message"),
    [
        (
            "roberta",
            {"model_type": "deberta-v2"},
            "model_type is 'deberta-v2', which no family here has; families have",
        ),
        ("roberta", {"num_attention_heads": 5}, "hidden 32 is not a multiple of heads 5"),
        (
            "roberta",
            {"pad_token_id": 2},
            r"config\.json: pad_token_id is 2, but 0 in the tokenizer, where 2",
        ),
        ("roberta", {"pad_token_id": 39}, "max_position_embeddings is 0: .*greater than 0"),
        ("distilbert", {"n_heads": 5}, "hidden 32 is not a multiple of heads 5"),
        ("distilbert", {"activation": "relu"}, "activation is 'relu'; allowed are gelu, gelu_new"),
        ("albert", {"num_hidden_groups": 3}, "layers 4 is not a multiple of groups 3"),
        ("albert", {"inner_group_num": 2}, "inner_group_num is 2; only 1 can be read"),
        ("albert", {"embedding_size": 8}, "word_embeddings.weight is .*, 16., not .*, 8."),
        ("albert", {"model_type": "roberta"}, "do not belong to a RoBERTa: albert.embeddings"),
    ],
)
def test_a_folder_that_contradicts_itself_is_refused(
    family: str, entries: dict[str, Any], message: str, tmp_path: Path, own_tokenizer: Path
) -> None:
    publish(tmp_path / "m", BY_NAME[family], "BertForMaskedLM", own_tokenizer)
    change(tmp_path / "m", **entries)
    with pytest.raises(InputError, match=message):
        import_model(str(tmp_path / "m"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_class_is_named_as_its_family_has_it(tmp_path: Path) -> None:
    size = write_gpt2_tokenizer(tmp_path / "m")
    publish_gpt2(tmp_path / "m", "GPT2ForSequenceClassification", vocab_size=size, pad_token_id=size - 1)
    leave_out(tmp_path / "m", "architectures")
    with pytest.raises(InputError, match=r"architectures is missing, .* fit GPT2ForSequenceClassification: set"):
        import_model(str(tmp_path / "m"), tmp_path / "out")


def test_a_class_of_another_family_without_a_model_type_is_no_bert(tmp_path: Path, own_tokenizer: Path) -> None:
    publish(tmp_path / "m", BY_NAME["roberta"], "BertForMaskedLM", own_tokenizer)
    leave_out(tmp_path / "m", "model_type")
    with pytest.raises(InputError, match=r"has no model_type, and architectures is \['RobertaForMaskedLM'\]; expected"):
        import_model(str(tmp_path / "m"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_family_is_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    publish(tmp_path / "m", BY_NAME["distilbert"], "BertForMaskedLM", own_tokenizer)
    (tmp_path / "m" / "vocab.txt").unlink()
    write_unigram(tmp_path / "m")
    with pytest.raises(InputError, match="model is 'Unigram'; a BERT tokenizer has 'WordPiece'"):
        import_model(str(tmp_path / "m"), tmp_path / "out")
