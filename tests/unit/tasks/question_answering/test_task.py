"""Span models: the loss of a row, the logits of a window, learning, answering, and what comes back from the folder."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.squad_files import score_files
from bertwright.model.bert import open_architecture
from bertwright.model.config import EncoderConfig
from bertwright.model.families.elmo import LSTMConfig
from bertwright.model.folder import open_model
from bertwright.tasks import inference
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.question_answering import task as task_module
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.spec import SQUAD1, SQUAD2
from bertwright.tasks.question_answering.task import (
    SPAN,
    SpanModel,
    SpanRows,
    span_batch,
    span_logits,
)
from bertwright.tasks.question_answering.windows import Windows, encode_windows
from bertwright.tasks.spec import with_reading
from bertwright.text.wordpiece import Tokenizer, train_wordpiece

FACTS = (
    ("Who sells the bread?", "In the little town Marta sells the bread 🥖 every morning.", "Marta"),
    ("Where is the mill?", "The old mill is by the café Órbita, said the farmer.", "by the café Órbita"),
    ("When does it rain?", "It rains in late autumn, and the river rises then.", "in late autumn"),
    ("How many boats?", "There were seven boats in the harbour that night.", "seven"),
    ("What burned?", "After the storm the tall lighthouse burned for days.", "the tall lighthouse"),
    ("Who came back?", "Only the two sisters came back from the mountains.", "the two sisters"),
    ("What did he paint?", "He painted the doors of the church in green.", "the doors of the church"),
    ("Why did they leave?", "They left because the well had dried up.", "because the well had dried up"),
)
NONE = ("Who sells the bread?", "How many boats?", "Why did they leave?")
"""Questions of SQuAD 2.0 whose passages have no answer."""


def facts_as_squad(*, null: bool) -> dict[str, Any]:
    """The facts in SQuAD's layout; in 2.0 three more questions stand at the wrong passage."""
    articles = []
    for row, (question, context, answer) in enumerate(FACTS):
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        qas: list[dict[str, Any]] = [{"id": f"q{row}", "question": question, "answers": answers}]
        if null:
            qas[0]["is_impossible"] = False
        if null and row in (1, 4, 5):
            other = NONE[(1, 4, 5).index(row)]
            qas.append({"id": f"n{row}", "question": other, "answers": [], "is_impossible": True})
        articles.append({"title": f"t{row}", "paragraphs": [{"context": context, "qas": qas}]})
    return {"version": "v2.0" if null else "1.1", "data": articles}


@pytest.fixture(scope="module")
def facts_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words") / "tok"
    train_wordpiece([text for fact in FACTS for text in fact[:2]] * 3, vocab_size=420).save(folder)
    return folder


def saved_as(folder: Path, *, null: bool) -> Path:
    folder.mkdir(parents=True)
    for name in ("train-own.json", "dev-own.json"):
        (folder / name).write_text(json.dumps(facts_as_squad(null=null)), "utf-8")
    return folder


SETTINGS = FinetuneSettings(epochs=30, batch_size=8, learning_rate=2e-3, max_length=48, threads=1, precision="fp32")


@pytest.fixture(scope="module", params=["squad1", "squad2"])
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory, facts_tokenizer: Path) -> dict[str, Any]:
    """A run that was overfitted to the facts, and its result."""
    task = SQUAD2 if request.param == "squad2" else SQUAD1
    folder = tmp_path_factory.mktemp(task.name)
    data = saved_as(folder / "data", null=task.null)
    result = finetune(SETTINGS, task, model="random:tiny", data=data, out=folder / "run", tokenizer=facts_tokenizer)
    return {"task": task, "data": data, "run": folder / "run", "found": result, "folder": folder}


def test_a_tiny_model_learns_eight_questions_by_heart(trained: dict[str, Any]) -> None:
    assert trained["found"]["metric"] == "f1"
    assert trained["found"]["mean"] == 100.0
    assert trained["found"]["collapsed"] == []
    (seed,) = trained["found"]["seeds"]
    assert list(seed["scores"])[:2] == ["f1", "em"]
    assert seed["scores"]["em"] == 100.0
    has_parts = {"has_answer.f1", "no_answer.em", "null_threshold"} <= set(seed["scores"])
    assert has_parts is trained["task"].null


def test_what_was_learned_comes_back_from_the_folder(trained: dict[str, Any]) -> None:
    task, run = trained["task"], str(trained["run"])
    figures = evaluate_task(task, model=run, data=trained["data"])
    assert list(figures)[:2] == ["f1", "em"]
    assert (figures["f1"], figures["em"], figures["questions"]) == (100.0, 100.0, 11 if task.null else 8)
    if task.null:
        assert figures["has_answer"] == {"f1": 100.0, "em": 100.0, "questions": 8}
        assert figures["no_answer"] == {"f1": 100.0, "em": 100.0, "questions": 3}
        assert figures["null_threshold"] == trained["found"]["seeds"][0]["scores"]["null_threshold"]
    saved = open_model(run)
    assert saved.architecture == open_architecture(saved).architecture == "BertForQuestionAnswering"


def test_answers_are_written_in_three_files(trained: dict[str, Any]) -> None:
    task, gold, out = trained["task"], trained["data"] / "dev-own.json", trained["folder"] / "answers"
    assert predict_file(str(trained["run"]), str(gold), str(out))["questions"] == (11 if task.null else 8)
    assert sorted(path.name for path in out.iterdir()) == [
        "nbest.json",
        *(["null_odds.json"] if task.null else []),
        "predictions.json",
    ]
    texts = read_json(out / "predictions.json")
    assert {name: text for name, text in texts.items() if text} == {f"q{n}": fact[2] for n, fact in enumerate(FACTS)}
    contexts = {f"{kind}{row}": context for row, (_, context, _) in enumerate(FACTS) for kind in "qn"}
    for name, listed in read_json(out / "nbest.json").items():
        assert sum(entry["probability"] for entry in listed) == pytest.approx(1)
        for entry in listed:
            if entry["start"] is not None:
                assert contexts[name][entry["start"] : entry["end"]] == entry["text"]
        assert listed[0]["text"] == texts[name] or task.null
        assert len(listed) <= 20 + task.null
    odds = {"null_odds": out / "null_odds.json"} if task.null else {}
    metrics = score_files(gold, out / "predictions.json", **odds)
    assert (metrics["f1"], metrics["em"]) == (100.0, 100.0)
    if task.null:
        threshold = trained["found"]["seeds"][0]["scores"]["null_threshold"]
        assert metrics["best_f1"]["f1"] == 100.0
        by_odds = {name: "" if odd > threshold else "x" for name, odd in read_json(odds["null_odds"]).items()}
        assert {name for name, text in by_odds.items() if not text} == {
            name for name, text in texts.items() if not text
        }


def test_answers_are_written_line_by_line(
    trained: dict[str, Any], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = [
        {"id": f"x{n}", "question": question, "context": context} for n, (question, context, _) in enumerate(FACTS)
    ]
    source = tmp_path / "asked.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    assert main(["predict", "--model", str(trained["run"]), "--input", str(source)]) == 0
    printed = capfdbinary.readouterr().out
    assert (
        main(["predict", "--model", str(trained["run"]), "--input", str(source), "--output", f"{tmp_path}/o.jsonl"])
        == 0
    )
    assert (tmp_path / "o.jsonl").read_bytes() == printed
    packed = tmp_path / "asked.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    command = ["predict", "--model", str(trained["run"]), "--input", str(packed)]
    assert main([*command, "--output", f"{tmp_path}/o.jsonl.gz"]) == 0
    assert gzip.decompress((tmp_path / "o.jsonl.gz").read_bytes()) == printed
    for line, (_, context, answer) in zip(map(json.loads, printed.splitlines()), FACTS, strict=True):
        assert line["answer"] == answer == context[line["start"] : line["end"]]
        assert 0 < line["probability"] <= 1
        assert ("null_odds" in line) is trained["task"].null


def test_the_errors_of_questions_have_the_f1_of_the_evaluation(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of the gold answers are changed, so that the answers of the overfitted model are wrong there."""
    task = trained["task"]
    dev = facts_as_squad(null=task.null)
    dev["data"][3]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "boats", "answer_start": 17}]
    dev["data"][4]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "lighthouse", "answer_start": 25}]
    (tmp_path / "dev.json").write_text(json.dumps(dev), "utf-8")
    command = ["evaluate", task.name, "--model", str(trained["run"]), "--data", str(tmp_path / "dev.json"), "--json"]
    assert main([*command, "--precision", "fp32", "--errors", str(tmp_path / "errors.jsonl")]) == 0
    metrics = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == metrics["questions"]
    assert metrics["f1"] == pytest.approx(100 * sum(row["f1"] for row in rows) / len(rows), abs=1e-3)
    assert [row["f1"] for row in rows[:3]] == [0.0, pytest.approx(2 / 3, abs=1e-5), 1.0]
    first = {name: rows[0][name] for name in ("id", "question", "gold", "predicted")}
    assert first == {"id": "q3", "question": "How many boats?", "gold": ["boats"], "predicted": "seven"}
    # The probabilities are those that `predict` writes.
    predict_file(str(trained["run"]), str(tmp_path / "dev.json"), str(tmp_path / "answers.jsonl"), precision="fp32")
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()]
    probabilities = {line["id"]: line["probability"] for line in lines}
    assert all(row["probability"] == pytest.approx(probabilities[row["id"]], rel=1e-5) for row in rows)
    right = [row["probability"] for row in rows[2:]]
    assert right == sorted(right)
    # The report of the run has the worst rows too, and the baselines.
    (review,) = read_json(trained["run"] / "seed-0/validation.json").values()
    assert review["worst"]["columns"] == list(rows[0])
    assert len(review["worst"]["rows"]) == len(rows)


def test_questions_that_are_left_out_stand_beside_the_metrics(trained: dict[str, Any], tmp_path: Path) -> None:
    dev = facts_as_squad(null=trained["task"].null)
    dev["data"][0]["paragraphs"][0]["qas"][0]["question"] = ""
    (tmp_path / "dev.json").write_text(json.dumps(dev), "utf-8")
    task = with_reading(trained["task"], input_format="auto", on_error="skip")
    metrics = evaluate_task(task, model=str(trained["run"]), data=tmp_path / "dev.json")
    assert (metrics["left_out"], metrics["questions"], metrics["f1"]) == (1, 10 if task.null else 7, 100.0)


def test_a_run_has_the_baselines_of_questions(trained: dict[str, Any]) -> None:
    names = list(read_json(trained["run"] / "run.json")["baselines"]["metrics"])
    nearest = "sentence with most words of the question"
    assert names == ([nearest, "no answer"] if trained["task"].null else [nearest])
    assert f"baselines: {nearest} " in trained["found"]["text"]
    card = (trained["run"] / "model/README.md").read_text("utf-8")
    assert f", of the baseline {nearest}\n" in card
    if trained["task"].null:
        assert "- f1: 27.2727, of the baseline no answer\n" in card  # 3 of 11 questions have no answer


def test_a_folder_that_is_made_during_the_answers_stays(
    trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*given: Any) -> Any:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("mine")
        return span_logits(*given)

    monkeypatch.setattr(task_module, "span_logits", late)
    with pytest.raises(InputError, match=r"out: the folder has thesis\.txt"):
        predict_file(str(trained["run"]), str(trained["data"] / "dev-own.json"), str(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_what_stands_in_the_output_folder_is_not_lost(trained: dict[str, Any], tmp_path: Path) -> None:
    gold, model = str(trained["data"] / "dev-own.json"), str(trained["run"])
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    with pytest.raises(
        InputError,
        match=r"kept: the folder has notes\.txt; name a new folder, or one with earlier answers only",
    ):
        predict_file(model, gold, str(kept))
    assert (kept / "notes.txt").read_text() == "mine"
    with pytest.raises(InputError, match=r"notes\.txt: expected a folder, a new file"):
        predict_file(model, gold, str(kept / "notes.txt"))
    with pytest.raises(InputError, match=r"answers\.json: expected a folder, a file \*\.jsonl"):
        predict_file(model, gold, str(tmp_path / "answers.json"))
    with pytest.raises(InputError, match=r"answers\.json\.gz: expected a folder, a file"):
        predict_file(model, gold, str(tmp_path / "answers.json.gz"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InputError, match=r"folder\.jsonl: expected a file or - for JSON lines"):
        predict_file(model, gold, str(tmp_path / "folder.jsonl"))
    assert not list(tmp_path.glob("answers*"))
    questions_path = tmp_path / "asked.jsonl"
    questions_path.write_text(json.dumps({"question": "When?", "context": "At dawn."}) + "\n", "utf-8")
    (tmp_path / "link.jsonl").symlink_to(questions_path)
    before = questions_path.read_bytes()
    for name in ("asked.jsonl", "link.jsonl"):
        with pytest.raises(InputError, match=rf"{name}: expected another file than that of --input"):
            predict_file(model, str(questions_path), str(tmp_path / name))
    assert questions_path.read_bytes() == before
    out = tmp_path / "out"
    predict_file(model, gold, str(out))
    first = (out / "nbest.json").read_bytes()
    (out / "nbest.json").write_text("{}")
    predict_file(model, gold, str(out))  # an earlier answer may be replaced
    assert (out / "nbest.json").read_bytes() == first


def test_questions_that_are_cut_are_counted_by_every_command(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = facts_as_squad(null=trained["task"].null)
    long["data"][0]["paragraphs"][0]["qas"][0]["question"] = "When does the ferry leave? " * 9
    for name in ("train-long.json", "dev-long.json"):
        (tmp_path / name).write_text(json.dumps(long), "utf-8")
    model, number = str(trained["run"]), 11 if trained["task"].null else 8
    predict_file(model, str(tmp_path / "dev-long.json"), str(tmp_path / "out"))
    evaluate_task(trained["task"], model=model, data=tmp_path)
    said = capsys.readouterr().err
    # (48 - 3) // 2 is half of the room
    assert said.count(f"dev-long.json: 1 of {number} questions exceed 22 pieces and are cut") == 2
    once = SETTINGS.model_copy(update={"epochs": 1})
    finetune(once, trained["task"], model=model, data=tmp_path, out=tmp_path / "run")
    said = capsys.readouterr().err
    assert all(said.count(f"{name}-long.json: 1 of {number} questions exceed 22") == 1 for name in ("train", "dev"))


def test_versions_and_kinds_are_distinguished(trained: dict[str, Any], tmp_path: Path, facts_tokenizer: Path) -> None:
    task, model = trained["task"], str(trained["run"])
    other = SQUAD1 if task.null else SQUAD2
    data = saved_as(tmp_path / "other", null=other.null)
    if task.null:  # a model that may keep silent is asked for its best span
        assert evaluate_task(other, model=model, data=data)["em"] == 100.0
    else:
        with pytest.raises(InputError, match="model: expected a model for squad2, got one for squad1"):
            evaluate_task(other, model=model, data=data)
    with pytest.raises(InputError, match=r"other: expected dev\*\.json of SQuAD .*\); give the path of a file"):
        evaluate_task(task, model=model, data=data)
    with pytest.raises(InputError, match="another kind of task"):
        evaluate_task(get_task("sst2"), model=model, data=data)
    with pytest.raises(
        InputError, match="--text-column needs a table; questions have the fields id, question and context"
    ):
        predict_file(model, str(data / "dev-own.json"), "-", text=("question",))


def test_a_span_model_is_the_start_of_another(trained: dict[str, Any], tmp_path: Path) -> None:
    """The threshold belongs to the run that chose it."""
    task = SQUAD1 if trained["task"].null else SQUAD2
    data = saved_as(tmp_path / "data", null=task.null)
    settings = SETTINGS.model_copy(update={"epochs": 1})
    finetune(settings, task, model=str(trained["run"]), data=data, out=tmp_path / "run")
    assert ("null_threshold" in open_model(str(tmp_path / "run")).extra) is task.null


def long_rows(tokenizer: Path) -> tuple[Questions, Windows, SpanModel]:
    words = Tokenizer.load(tokenizer)
    items = [
        Question(f"q{row}", question, " ".join([context] * (row + 1)), ((answer, context.index(answer)),))
        for row, (question, context, answer) in enumerate(FACTS)
    ]
    questions = Questions(tuple(items), "1.1", "made up")
    task = SQUAD1.model_copy(update={"stride": 12})
    windows = encode_windows(words, questions, task, max_length=40, targets=True)
    config = EncoderConfig(vocab_size=words.vocab_size, hidden=32, layers=2, heads=4, intermediate=48, max_positions=64)
    torch.manual_seed(2)
    return questions, windows, SpanModel(config).double().eval()


def test_a_rows_loss_does_not_depend_on_its_batch(facts_tokenizer: Path) -> None:
    _, windows, model = long_rows(facts_tokenizer)
    trainable = SPAN.trainable(SQUAD1, model)
    rows = np.arange(len(windows))
    assert (windows.target[:, 0] == 0).any()
    assert (windows.target[:, 0] > 0).any()
    assert windows.lengths.min() < windows.lengths.max()

    def loss(chosen: Any) -> float:
        batch = span_batch(windows, chosen, pad_id=0)
        assert trainable.counts(batch) == {"rows": len(chosen)}
        return float(trainable.step(batch)["loss"][0].detach())

    each = [loss(rows[row : row + 1]) for row in rows]
    assert loss(rows) == pytest.approx(sum(each), abs=1e-4)
    assert loss(rows[::-1]) == pytest.approx(sum(each), abs=1e-4)
    for row in rows[:6]:
        alone = model(SpanRows(*(torch.from_numpy(part[None]) for part in _plain(windows, row)), torch.zeros(1, 2)))
        goal = torch.from_numpy(windows.target[row : row + 1].astype(np.int64))
        start = F.cross_entropy(alone[0], goal[:, 0])
        end = F.cross_entropy(alone[1], goal[:, 1])
        assert each[row] == pytest.approx(float((start + end).detach() / 2), abs=1e-5)


def test_logits_are_those_of_each_window_alone(facts_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, windows, model = long_rows(facts_tokenizer)
    monkeypatch.setattr(inference, "ANSWERED_TOKENS", 100)
    messages: list[str] = []
    monkeypatch.setattr(inference.Status, "update", lambda _, text: messages.append(text))
    model.train()
    together = span_logits(model, windows)
    assert model.training
    assert len(messages) > 3
    assert messages[-1] == f"100% of {len(windows)} windows answered · 0:00 left"
    model.eval()
    begin = 0
    for row in range(len(windows)):
        ids, segments, mask = _plain(windows, row)
        with torch.inference_mode():
            alone = model(
                SpanRows(*(torch.from_numpy(part[None]) for part in (ids, segments, mask)), torch.zeros(1, 2))
            )
        size = int(windows.span[row, 1] - windows.span[row, 0])
        num_question = len(ids) - size - 3
        for logits, flat in zip(alone, (together.start, together.end), strict=True):
            expected = logits[0, num_question + 2 : num_question + 2 + size].numpy()
            assert flat[begin : begin + size] == pytest.approx(expected, abs=1e-6)
        null = float(alone[0][0, 0] + alone[1][0, 0])
        assert together.null[row] == pytest.approx(null, abs=1e-6)
        begin += size
    assert begin == len(together.start) == len(together.end)


def _plain(windows: Windows, row: int) -> tuple[Any, Any, Any]:
    """A row by itself: ids, segments, mask."""
    ids = windows.row(row)
    first = ids.tolist().index(windows.between_ids[-1]) + 1
    return ids, (np.arange(len(ids)) >= first).astype(np.int32), np.ones(len(ids), dtype=np.bool_)


def test_without_a_dev_file_whole_passages_are_kept(tmp_path: Path) -> None:
    entries = [
        {
            "context": f"Room {number} is red.",
            "qas": [
                {
                    "id": f"{number}-{n}",
                    "question": "Which?",
                    "answers": [{"text": "red", "answer_start": 9 + len(str(number))}],
                }
                for n in range(3)
            ],
        }
        for number in range(20)
    ]
    path = tmp_path / "rooms.json"
    path.write_text(json.dumps({"data": [{"paragraphs": entries}]}))
    read = SPAN.read(SQUAD1, path)
    train, dev, digests = read.train, read.validation["dev"], read.digests
    assert (len(train), len(dev)) == (54, 6)
    assert not {item.context for item in train.items} & {item.context for item in dev.items}
    assert digests["dev"] == {}
    path.write_text(json.dumps({"data": [{"paragraphs": entries[:1]}]}))
    with pytest.raises(
        InputError, match=r"rooms\.json: expected at least two different texts, to split off validation rows"
    ):
        SPAN.read(SQUAD1, path)


def test_the_commands_go_end_to_end(tmp_path: Path, facts_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = saved_as(tmp_path / "data", null=True), tmp_path / "run"
    start = ["finetune", "squad2", "--model", "random:tiny", "--tokenizer", str(facts_tokenizer)]
    start += ["--epochs", "1", "--batch-size", "32"]
    assert main([*start, "--data", str(data), "--out", str(run), "--threads", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (printed["task"], printed["metric"]) == ("squad2", "f1")
    extra = open_model(str(run)).extra
    assert extra["max_length"] == 384  # the paper's, where nothing is said
    assert extra["null_threshold"] == printed["seeds"][0]["scores"]["null_threshold"]
    assert main(["evaluate", "squad2", "--model", str(run), "--data", str(data), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["f1"] == pytest.approx(printed["mean"])
    assert figures["null_threshold"] == extra["null_threshold"]
    answers = ["predict", "--model", str(run), "--input", str(data / "dev-own.json"), "--output", str(tmp_path / "a")]
    assert main([*answers, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == 11
    files = ["--gold", str(data / "dev-own.json"), "--predictions", str(tmp_path / "a" / "predictions.json")]
    assert main(["score", "squad", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] == pytest.approx(printed["mean"])
    assert main([*start, "--data", str(data), "--out", str(tmp_path / "r2"), "--text-column", "question"]) == 2
    assert "--text-column and --label-column: expected a task with a table, got squad2" in capsys.readouterr().err


def test_a_training_run_names_what_is_wrong(tmp_path: Path, facts_tokenizer: Path) -> None:
    data = saved_as(tmp_path / "data", null=False)
    broken = facts_as_squad(null=False)
    broken["data"][3]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 4
    (data / "train-own.json").write_text(json.dumps(broken))
    with pytest.raises(
        InputError,
        match=r"train-own\.json: question q3: expected the answer 'seven' at character 4",
    ):
        finetune(SETTINGS, SQUAD1, model="random:tiny", data=data, out=tmp_path / "run", tokenizer=facts_tokenizer)
    with pytest.raises(InputError, match=r"nowhere: there is no such file"):
        finetune(
            SETTINGS,
            SQUAD1,
            model="random:tiny",
            data=tmp_path / "nowhere",
            out=tmp_path / "run",
            tokenizer=facts_tokenizer,
        )
    assert not (tmp_path / "run").exists()


SHAPE: dict[str, Any] = {"vocab_size": 50, "hidden": 16, "layers": 2}
TRANSFORMER: dict[str, Any] = {**SHAPE, "heads": 2, "intermediate": 32}


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig(**TRANSFORMER),
        EncoderConfig(**TRANSFORMER, attends="left"),
        EncoderConfig(**TRANSFORMER, attends="right"),
        LSTMConfig(**SHAPE, cells=32),
    ],
    ids=["both", "left", "right", "lstm"],
)
def test_no_answer_is_read_where_the_whole_row_is_known(config: EncoderConfig | LSTMConfig) -> None:
    """Another token anywhere in a row changes its logit of "no answer"; the logits of the passage stay the same."""
    torch.manual_seed(0)
    model = SpanModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    ids = torch.randint(5, 50, (2, 9))
    lengths = (9, 7)
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    plain = torch.zeros_like(ids)
    rows = SpanRows(ids, plain, mask, plain[:, :2])
    with torch.no_grad():
        start = model(rows)[0]
        inside = model.span(model.encoder(ids, plain, mask).last)[..., 0]
        for row, length in enumerate(lengths):
            assert torch.equal(start[row, 1 : length - 1], inside[row, 1 : length - 1])
            for position in range(length):
                other = ids.clone()
                other[row, position] = 4
                assert model(SpanRows(other, plain, mask, plain[:, :2]))[0][row, 0] != start[row, 0], position
