"""Training of vectors: the batches, what is masked in them, and a run that improves the vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bertwright.errors import InputError
from bertwright.finetuning.batches import steps_of
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import load_weights, open_model
from bertwright.model.vector_settings import VectorSettings, read_vector_settings
from bertwright.serving.encoder_pipelines import VectorPipeline
from bertwright.tasks.binding import BoundTask, open_tokenizer
from bertwright.tasks.classification.spec import CLASSIFY
from bertwright.tasks.embedding.model import VectorModel
from bertwright.tasks.embedding.read import read_measured
from bertwright.tasks.embedding.spec import EMBED, VectorTask
from bertwright.tasks.embedding.task import EMBEDDING, PairBatch, batch_loss, default_length
from bertwright.tasks.sentence_vectors import SentenceEncoder, open_sentence_encoder
from bertwright.tasks.spec import with_settings
from bertwright.training.hardware import Numerics, resolve_numerics
from tests.support.encoders import write_encoder
from tests.support.texts import PLACES
from tests.support.vectors import write_vector_model

SETTINGS = FinetuneSettings(epochs=4, batch_size=8, learning_rate=2e-3, max_length=32, threads=1, precision="fp32")
VERBS = ("painted", "sold", "found", "left")


@pytest.fixture(scope="module")
def one_thread() -> Numerics:
    return resolve_numerics("fp32", threads=1)


@pytest.fixture(autouse=True)
def resolved_once(one_thread: Numerics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the machine takes longer than these runs."""
    monkeypatch.setattr("bertwright.finetuning.run.resolve_numerics", lambda *_, **__: one_thread)


@pytest.fixture(scope="module")
def start_model(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "m", places_tokenizer, hidden_dropout=0.1)


@pytest.fixture
def pairs_folder(write: Callable[[str, Any], Path]) -> Path:
    """Pairs whose second text speaks of another place than the first, and hard negatives of a third one."""
    for stem, names in (("train", range(24)), ("dev", range(24, 40))):
        rows = ["anchor\tpositive\tnegative"]
        for number in names:
            verb = VERBS[number % 4]
            here, there, other = (PLACES[at % 8] for at in (number, number + 3, number + 4))
            rows.append(f"{number} {verb} the {here}\t{verb} at the {there} {number}\t{verb} at the {other} {number}")
        path = write(f"data/{stem}.tsv", "\n".join(rows) + "\n")
    return path.parent


def bound(task: VectorTask, data: Path, encoder: str) -> BoundTask:
    saved = open_model(encoder)
    return EMBEDDING.prepare(task, data, open_tokenizer(saved), saved.config, 32)


def test_a_training_raises_the_measure_above_the_untrained_vectors(
    pairs_folder: Path, start_model: str, tmp_path: Path
) -> None:
    result = finetune(SETTINGS, EMBED, model=start_model, data=pairs_folder, out=tmp_path / "run")
    before = result["baselines"]["metrics"]["cosine of the frozen model"]["mrr@10"]
    assert result["metric"] == "mrr@10"
    assert result["mean"] > before + 0.1
    settings = read_vector_settings(tmp_path / "run" / "model")
    assert settings == VectorSettings(normalize=True, max_length=32)


def test_settings_of_the_vectors_are_kept_in_the_folder(pairs_folder: Path, start_model: str, tmp_path: Path) -> None:
    wanted = ["pooling=cls", "normalize=false", "widths=16,48", "query_prompt=query: ", "document_prompt=passage: "]
    task = with_settings(EMBED, wanted)
    once = SETTINGS.model_copy(update={"epochs": 1})
    finetune(once, task, model=start_model, data=pairs_folder, out=tmp_path / "run")
    settings = read_vector_settings(tmp_path / "run" / "model")
    prompts = {"query": "query: ", "document": "passage: "}
    expected = VectorSettings(pooling=("cls",), widths=(48, 16), prompts=prompts, max_length=32)
    assert settings == expected
    # A run that starts from the folder has its settings.
    finetune(once, EMBED, model=str(tmp_path / "run"), data=pairs_folder, out=tmp_path / "next")
    assert read_vector_settings(tmp_path / "next" / "model") == expected


def test_sentence_transformers_computes_the_vectors_that_were_validated(
    pairs_folder: Path, start_model: str, tmp_path: Path
) -> None:
    task = with_settings(EMBED, ["query_prompt=who ", "document_prompt=the "])
    finetune(
        SETTINGS.model_copy(update={"epochs": 1}), task, model=start_model, data=pairs_folder, out=tmp_path / "run"
    )
    saved = open_model(str(tmp_path / "run"))
    theirs = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    task = EMBEDDING.for_model(EMBED, saved, 32)
    pairs = read_measured(task, pairs_folder)["dev.tsv"]
    model = VectorModel(saved.config, task.vectors)
    load_weights(model, saved)
    ours = EMBEDDING.logits(model, EMBEDDING.encode(task, open_tokenizer(saved), pairs, 32))
    for name, texts, vectors in (("query", pairs.firsts, ours[0]), ("document", pairs.seconds, ours[1])):
        np.testing.assert_allclose(theirs.encode(list(texts), prompt_name=name), vectors, atol=1e-5)


def test_a_width_that_the_vectors_lack_is_refused(pairs_folder: Path, start_model: str, tmp_path: Path) -> None:
    task = with_settings(EMBED, ["widths=64"])
    with pytest.raises(InputError, match="widths: 64: expected 1 to 48"):
        finetune(SETTINGS, task, model=start_model, data=pairs_folder, out=tmp_path / "run")


def test_the_default_prompt_is_that_of_texts_of_one_kind(pairs_folder: Path, start_model: str) -> None:
    saved = open_model(start_model)
    with pytest.raises(InputError, match=r"default_prompt=query: expected the name of a prompt \(there is none\)"):
        EMBEDDING.for_model(with_settings(EMBED, ["default_prompt=query"]), saved, 32)
    task = with_settings(EMBED, ["query_prompt=the garden ", "default_prompt=query"])
    task = EMBEDDING.for_model(task, saved, 32)
    (pairs_folder / "train.tsv").write_text(
        "sentence1\tsentence2\tscore\nharbour\tkitchen\t1\nstation\tmeadow\t2\n", "utf-8"
    )
    inputs = bound(task, pairs_folder, start_model).train[1]
    assert inputs[0].prompt == inputs[1].prompt == 1 + len(open_tokenizer(saved).ids(["the garden "])[0])


def test_a_prompt_that_leaves_no_room_for_a_text_is_refused(
    pairs_folder: Path, start_model: str, places_tokenizer: Path, tmp_path: Path
) -> None:
    task = with_settings(EMBED, [f"document_prompt={'the garden ' * 20}"])
    with pytest.raises(InputError, match=r"the prompt 'the .* has 82 tokens, .* no room for a text in 32"):
        finetune(SETTINGS, task, model=start_model, data=pairs_folder, out=tmp_path / "run")
    prompts = {"query": "the garden " * 2, "document": "the garden "}
    write_vector_model(tmp_path / "model", places_tokenizer, VectorSettings(prompts=prompts, max_length=8))
    saved = open_model(str(tmp_path / "model"))
    encoder = SentenceEncoder(saved, open_tokenizer(saved))
    assert len(encoder.vectors(["harbour"], "document")) == 1
    with pytest.raises(InputError, match=r"the prompt .* has 10 tokens, .* no room for a text in 8: shorten"):
        encoder.vectors(["harbour"], "query")


def test_widths_above_the_width_of_truncated_vectors_are_refused_or_left_out(
    pairs_folder: Path, places_tokenizer: Path, tmp_path: Path
) -> None:
    write_vector_model(tmp_path / "model", places_tokenizer, VectorSettings(width=16, widths=(32, 16, 8)))
    saved = open_model(str(tmp_path / "model"))
    assert EMBEDDING.for_model(EMBED, saved, 32).vectors.widths == (16, 8)
    with pytest.raises(InputError, match=r"widths: 32: expected 1 to 16, the truncate_dim of .*model"):
        EMBEDDING.for_model(with_settings(EMBED, ["widths=32,8"]), saved, 32)
    once, task = SETTINGS.model_copy(update={"epochs": 1}), with_settings(EMBED, ["widths=8"])
    finetune(once, task, model=str(tmp_path / "model"), data=pairs_folder, out=tmp_path / "run")
    settings = read_vector_settings(tmp_path / "run" / "model")
    assert settings is not None
    assert (settings.width, settings.widths) == (16, (8,))


@pytest.mark.parametrize(
    ("setting", "header", "message"),
    [
        ("scores=0,5", "anchor\tpositive\tx", r"scores=0,5: expected pairs with scores in .*train.tsv, found none"),
        ("pairs=5", "anchor\tpositive\tx", r"pairs=5: expected a folder of corpus build in --data"),
        ("symmetric=true", "sentence1\tsentence2\tscore", r"symmetric=true: expected pairs that match in .*train.tsv"),
    ],
)
def test_settings_that_the_pairs_cannot_have_are_refused(
    setting: str, header: str, message: str, start_model: str, write: Callable[[str, Any], Path]
) -> None:
    rows = [header, *(f"the harbour {number}\tthe bridge {number}\t{number % 5}" for number in range(12))]
    data = write("data/train.tsv", "\n".join(rows) + "\n").parent
    write("data/dev.tsv", "\n".join(rows[:8]) + "\n")
    with pytest.raises(InputError, match=message):
        bound(with_settings(EMBED, [setting]), data, start_model)


def test_a_batch_of_one_has_no_negatives(pairs_folder: Path, start_model: str, tmp_path: Path) -> None:
    alone = SETTINGS.model_copy(update={"batch_size": 1})
    with pytest.raises(InputError, match="expected at least two rows in a batch"):
        finetune(alone, EMBED, model=start_model, data=pairs_folder, out=tmp_path / "run")


def test_each_of_several_processes_needs_negatives(pairs_folder: Path, start_model: str) -> None:
    work = bound(EMBED, pairs_folder, start_model)
    assert len(steps_of(work, 8, seed=0, parts=4)(0)) == 4
    with pytest.raises(InputError, match="expected at least two rows for each process"):
        steps_of(work, 7, seed=0, parts=4)


def test_a_step_is_one_batch_of_parts(pairs_folder: Path, start_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = bound(EMBED, pairs_folder, start_model)
    monkeypatch.setattr("bertwright.finetuning.batches.MICRO_TOKENS", 64)
    (batch,) = steps_of(work, 16, seed=0)(0)
    assert len(batch.targets) == 16


def test_a_batch_of_many_parts_has_the_loss_and_gradients_of_two(
    pairs_folder: Path, start_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed by gradient caching, where their activations take much memory."""
    work = bound(EMBED, pairs_folder, start_model)
    model = work.build(open_model(start_model).config).eval()
    results = []
    for tokens, states, is_cached in ((4096, 1, False), (32, 10**6, False), (32, 1, True)):
        monkeypatch.setattr("bertwright.tasks.embedding.model.PART_TOKENS", tokens)
        monkeypatch.setattr("bertwright.tasks.embedding.model.KEPT_STATES", states)
        batch = work.batch(np.arange(16))
        assert batch.cached == is_cached
        loss = work.kind.loss(work.task, model, batch)
        results.append((loss.detach(), torch.autograd.grad(loss, list(model.encoder.layers.parameters()))))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(results[0], results[2], atol=1e-5, rtol=1e-4)


def texts_of(batch: PairBatch) -> int:
    return sum(len(part.ids) for part in batch.parts)


def test_no_text_is_the_negative_of_a_text_that_it_matches(write: Callable[[str, Any], Path], start_model: str) -> None:
    rows = ["a\tone", "a\ttwo", "b\tone", "c\tthree", "c\tA", "d\tfour"]
    path = write("data/train.tsv", "anchor\tpositive\n" + "\n".join(rows) + "\n")
    write("data/dev.tsv", "anchor\tpositive\nx\ty\nz\tw\n")
    work = bound(EMBED, path.parent, start_model)
    batch = work.batch(np.arange(6))
    assert texts_of(batch) == 4 + 5  # each text once
    pairs = work.targets
    matching = {(pairs.firsts[anchor], pairs.seconds[text]) for anchor, text in torch.nonzero(batch.matching).tolist()}
    assert matching == {tuple(row.split("\t")) for row in rows} | {("a", "A")}
    # A score of a masked text has no effect; all others have one.
    task = EMBED.model_copy(update={"symmetric": True})
    scores = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    batch_loss(task, scores, batch).backward()
    assert scores.grad is not None
    is_masked = batch.matching.clone()
    is_masked[batch.anchors, batch.targets] = False
    assert not scores.grad[is_masked].any()
    assert scores.grad[~is_masked].all()


def test_prompts_are_put_before_the_texts(pairs_folder: Path, start_model: str) -> None:
    prompts = {"query": "the garden ", "document": "the tower "}
    task = EMBED.model_copy(update={"vectors": VectorSettings(prompts=prompts)})
    tokenizer = open_tokenizer(open_model(start_model))
    firsts, seconds = bound(task, pairs_folder, start_model).train[1]
    for texts, prompt in ((firsts, "the garden "), (seconds, "the tower ")):
        ids = [tokenizer.begin_id, *tokenizer.ids([prompt])[0]]
        assert texts.prompt == len(ids)
        assert all(text[: len(ids)].tolist() == ids for text in texts.ids)


def test_first_texts_have_their_own_maximum(
    pairs_folder: Path, start_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = open_model(start_model)
    (pairs_folder / "train.tsv").write_text(
        f"anchor\tpositive\n{'the harbour ' * 30}\t{'the garden ' * 30}\nthe mill\tthe old lane\n", "utf-8"
    )
    task = EMBEDDING.for_model(with_settings(EMBED, ["query_length=12"]), saved, 32)
    firsts, seconds = bound(task, pairs_folder, start_model).train[1]
    assert (max(map(len, firsts.ids)), max(map(len, seconds.ids))) == (12, 32)
    said = capsys.readouterr().err
    assert "1 of 2 texts exceed 12 tokens" in said
    assert "1 of 2 texts exceed 32 tokens" in said
    with pytest.raises(InputError, match="query_length=40: expected at most --max-length 32"):
        EMBEDDING.for_model(with_settings(EMBED, ["query_length=40"]), saved, 32)
    (pairs_folder / "train.tsv").write_text(
        "sentence1\tsentence2\tscore\nharbour\tkitchen\t1\nstation\tmeadow\t2\n", "utf-8"
    )
    with pytest.raises(
        InputError, match=r"query_length=12: expected queries and documents in .*, got texts of one kind"
    ):
        bound(task, pairs_folder, start_model)


def test_a_prompt_that_no_text_gets_is_told(
    pairs_folder: Path, start_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (pairs_folder / "train.tsv").write_text(
        "sentence1\tsentence2\tscore\nharbour\tkitchen\t1\nstation\tmeadow\t2\n", "utf-8"
    )
    saved = open_model(start_model)
    prompt = "document_prompt=the garden"
    alone = EMBEDDING.for_model(with_settings(EMBED, [prompt]), saved, 32)
    bound(alone, pairs_folder, start_model)
    message = "document_prompt=the garden: no text of this training gets it"
    assert message in capsys.readouterr().err
    task = EMBEDDING.for_model(with_settings(EMBED, [prompt, "default_prompt=document"]), saved, 32)
    tokenizer = open_tokenizer(saved)
    begin = [tokenizer.begin_id, *tokenizer.ids(["the garden"])[0]]
    for texts in bound(task, pairs_folder, start_model).train[1]:
        assert all(ids[: len(begin)].tolist() == begin for ids in texts.ids)
    assert message not in capsys.readouterr().err


def test_the_maximum_of_texts_is_that_of_the_folder(
    places_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (max_length, length) in enumerate([(48, 48), (4_096, 64), (None, 64)]):
        folder = tmp_path / str(number)
        write_vector_model(folder, places_tokenizer, VectorSettings(normalize=True, max_length=max_length))
        assert default_length(EMBED, str(folder)) == length
        assert default_length(CLASSIFY, str(folder)) == CLASSIFY.max_length
    assert default_length(EMBED, write_encoder(tmp_path / "plain", places_tokenizer)) == EMBED.max_length
    monkeypatch.setattr("bertwright.tasks.embedding.task._LONGEST", 40)
    assert default_length(EMBED, str(tmp_path / "0")) == 40
    assert "0: reads 48 tokens, and is trained and read with 40 from now on" in capsys.readouterr().err
    assert default_length(EMBED, "random:tiny") == EMBED.max_length


def test_the_maximum_of_queries_is_that_of_the_folder(places_tokenizer: Path, tmp_path: Path) -> None:
    settings = VectorSettings(max_length=32, query_length=10)
    write_vector_model(tmp_path / "model", places_tokenizer, settings)
    assert read_vector_settings(tmp_path / "model") == settings
    encoder = open_sentence_encoder(str(tmp_path / "model"), None, "cpu")
    text = "the harbour " * 30
    for role, length in (("query", 10), ("document", 32), ("text", 32)):
        rows, cut = encoder.rows([text], role)
        assert (len(rows[0]), cut) == (length, [True])
    saved = open_model(str(tmp_path / "model"))
    assert EMBEDDING.for_model(EMBED, saved, 24).vectors == settings.model_copy(update={"max_length": 24})
    assert EMBEDDING.for_model(EMBED, saved, 9).vectors.query_length == 9
    pipeline = VectorPipeline(saved, open_tokenizer(saved)).for_queries("model")
    assert len(pipeline.encode([text]).rows[0].ids) == 10
    assert pipeline.limit == "the 10 tokens"


def test_a_run_chooses_its_epoch_and_seed_by_the_metric(pairs_folder: Path, start_model: str, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"best": "accuracy", "epochs": 3})
    result = finetune(settings, EMBED, model=start_model, data=pairs_folder, out=tmp_path / "run")
    [seed] = result["seeds"]
    assert (result["metric"], list(seed["scores"])) == ("accuracy", ["accuracy", "mrr@10"])
    by_epoch = [epoch["accuracy"] for epoch in seed["epochs"]]
    assert result["mean"] == max(by_epoch)
    assert seed["epoch"] == 1 + by_epoch.index(max(by_epoch))


def test_a_metric_that_the_task_lacks_is_refused_before_the_first_step(
    pairs_folder: Path, start_model: str, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"best": "spearman"})
    with pytest.raises(InputError, match=r"--best spearman: expected a metric of this task: mrr@10, accuracy"):
        finetune(settings, EMBED, model=start_model, data=pairs_folder, out=tmp_path / "run")
    assert not (tmp_path / "run" / "seed-0").exists()
