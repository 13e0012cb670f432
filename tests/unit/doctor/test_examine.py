"""The command doctor, and its findings about described machines."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.doctor import machine as doctor_machine
from bertwright.doctor.examine import Examination, Request
from bertwright.doctor.findings import Finding, command_result
from bertwright.interop.import_model import import_model
from tests.support.doctor_patients import CASED, LOWER, WORDS, levels, random_sentences, write_corpus, write_model
from tests.support.gpt2_files import publish_gpt2, write_gpt2_tokenizer

GIB = 1 << 30
XEON = frozenset({"avx2", "avx512f", "avx512_vnni", "avx512_bf16"})


def judged(finding: Finding) -> tuple[str, str]:
    return finding.name, finding.level


@pytest.mark.parametrize(
    ("quota", "level", "says"), [(None, "ok", "8 cores"), (8.0, "ok", ""), (2.5, "warning", "--threads 2 ")]
)
def test_a_quota_below_the_cores_is_reported(quota: float | None, level: str, says: str) -> None:
    finding = doctor_machine.cores(8, quota)
    assert judged(finding) == ("cores", level)
    assert says in finding.text + finding.advice
    assert finding.value == {"cores": 8, "quota": quota}


@pytest.mark.parametrize(
    ("flags", "level", "says"),
    [
        (XEON, "ok", "AVX-512 bf16"),
        (XEON | {"amx_bf16"}, "ok", "AMX"),
        (frozenset({"asimd", "bf16"}), "ok", "ARM bf16"),
        (XEON - {"avx512_bf16"}, "ok", "a processor: AVX2, AVX-512, VNNI; torch"),
        (frozenset({"avx2"}), "ok", "a processor: AVX2; torch"),
        (frozenset({"sse4_2"}), "warning", "without AVX2"),
    ],
)
def test_missing_instructions_are_reported(flags: frozenset[str], level: str, says: str) -> None:
    finding = doctor_machine.processor("a processor", flags)
    assert judged(finding) == ("processor", level)
    assert says in finding.text


def test_memory_is_reported_as_the_largest_size_that_can_be_trained() -> None:
    plenty = doctor_machine.memory(512 * GIB, 512 * GIB, limit=None)
    some = doctor_machine.memory(64 * GIB, 12 * GIB, limit=12 * GIB)
    little = doctor_machine.memory(64 * GIB, GIB // 4, limit=GIB // 4)
    assert [finding.level for finding in (plenty, some, little)] == ["ok", "ok", "warning"]
    assert plenty.value["largest_size"] == "large"
    assert some.value["largest_size"] in ("tiny", "mini", "small", "medium")
    assert "limit is 12.0 GiB" in some.text
    assert little.value["largest_size"] is None
    assert doctor_machine.memory(None, None, limit=None).level == "note"


def test_slow_matrix_products_are_told() -> None:
    fast = {"fp32": {"square": 150e9}, "bf16": {"square": 900e9}}
    slow = {"fp32": {"square": 3e9}}
    assert judged(doctor_machine.speed(fast, 2)) == ("matrix rates", "ok")
    assert "fp32 150 (square); bf16 900 (square)" in doctor_machine.speed(fast, 2).text
    assert judged(doctor_machine.speed(slow, 2)) == ("matrix rates", "warning")


def test_gpus_and_disks(tmp_path: Path) -> None:
    assert doctor_machine.gpu([("Some GPU", 80 * GIB)]).text == "Some GPU with 80.0 GiB"
    assert doctor_machine.disk("disk", tmp_path, free=50 * GIB).level == "ok"
    assert doctor_machine.disk("disk", tmp_path, free=GIB).level == "warning"


def test_this_machine_is_measured() -> None:
    findings = {each.name: each for each in doctor_machine.machine_findings(quick=False)}
    assert findings["matrix rates"].value["fp32"]["square"] > 1e8
    assert findings["cores"].value["cores"] >= 1
    assert findings["disk, here"].value > 0
    assert not {each.level for each in findings.values()} & {"error"}


def test_extras_that_are_installed_and_missing() -> None:
    lines = ["torch>=2", 'numpy>=2; extra == "have"', 'no-such-thing>=1; extra == "lack"', 'absent; extra == "dev"']
    lines += ['absent; extra == "bench"']  # no command needs it
    some = doctor_machine.extras(lines)
    assert some.value == {"installed": ["have"], "missing": ["lack"]}
    assert "pip install 'bertwright[lack]'" in some.advice
    assert doctor_machine.extras(lines[:2]).level == "ok"
    assert doctor_machine.extras(None).level == "note"


def test_the_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    missing = doctor_machine.compiler(doctor_machine.compiler_name())
    assert judged(missing) == ("compiler", "warning")
    assert "no-such-compiler" in missing.text
    assert doctor_machine.compiler(sys.executable).level == "ok"


@pytest.mark.slow
def test_compiling_is_tried_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    works = doctor_machine.compiling()
    assert works.level == "ok"
    assert works.value > 0
    monkeypatch.setenv("CXX", "no-such-compiler")
    fails = doctor_machine.compiling()
    assert fails.level == "warning"
    assert "no-such-compiler" in fails.text


def test_findings_are_grouped_counted_and_marked() -> None:
    findings = [
        Finding("model", "a", "ok", 1, "fine"),
        Finding("corpus", "b", "warning", 2, "so so", "do this"),
        Finding("model", "long name", "error", None, "broken", "do that"),
    ]
    made = command_result(findings)
    assert [each["name"] for each in made["findings"]] == ["a", "long name", "b"]
    assert (made["errors"], made["warnings"], made["exit_code"]) == (1, 1, 1)
    assert made["text"].splitlines() == [
        "model",
        "  ok       a          fine",
        "  ERROR    long name  broken",
        "                      → do that",
        "corpus",
        "  WARNING  b          so so",
        "                      → do this",
        "",
        "1 error, 1 warning, 0 notes",
    ]
    assert command_result(findings[:2])["exit_code"] == 0


@pytest.mark.parametrize(("level", "advice"), [("ok", "do"), ("error", ""), ("note", "")])
def test_no_finding_is_without_advice_but_where_all_is_well(level: Any, advice: str) -> None:
    with pytest.raises(ValueError, match="advice"):
        Finding("model", "a", level, 1, "text", advice)


def run_doctor(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--quick", "--json", *map(str, arguments)])
    out = capsys.readouterr().out
    return code, json.loads(out.splitlines()[-1]) if out else {}


def test_the_command_looks_at_all_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model")
    write_corpus(tmp_path / "corpus", [random_sentences(3, seed=seed) for seed in range(20)])
    table = tmp_path / "train.tsv"
    rows = [f"{text}\t{'good' if 'river' in text else 'bad'}" for text in random_sentences(30)]
    table.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    code, result = run_doctor(capsys, "--model", model, "--corpus", tmp_path / "corpus", "--data", table)
    assert code == 0, result
    assert set(result) == {"findings", "errors", "warnings"}
    assert list(dict.fromkeys(each["part"] for each in result["findings"])) == [
        "machine",
        "software",
        "model",
        "corpus",
        "data",
        "training",
    ]
    assert {tuple(each) for each in result["findings"]} == {("part", "name", "level", "value", "text", "advice")}
    assert result["errors"] == 0
    assert result["findings"][-1]["value"] == [
        "matrix rates",
        "compiling",
        "masked LM",
        "baselines",
        "most of the corpus",
        "one batch",
    ]


def test_data_alone_are_checked_without_compiling_and_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be measured or compiled")

    monkeypatch.setattr(doctor_machine, "compiling", refused)
    monkeypatch.setattr(doctor_machine, "measure_peak_flops", refused)
    rows = [f"{text}\t{'good' if 'river' in text else 'bad'}" for text in random_sentences(60)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows[:40]]) + "\n")
    (tmp_path / "dev.tsv").write_text("\n".join(["text\tlabel", *rows[40:]]) + "\n")
    code = main(["doctor", "--data", str(tmp_path), "--json"])
    findings = {each["name"]: each for each in json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]}
    assert code == any(each["level"] == "error" for each in findings.values())
    assert findings["left out"]["value"] == ["matrix rates", "compiling"]
    labels = [row.split("\t")[1] for row in rows]
    common = max(set(labels[:40]), key=labels[:40].count)
    accuracy = findings["baselines"]["value"]["commonest answer"]["accuracy"]
    assert accuracy == labels[40:].count(common) / 20
    assert findings["baselines"]["text"].startswith(f"accuracy on dev: commonest answer {accuracy:.4f}, bag of words ")


def test_an_error_is_exit_code_one_and_a_warning_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = run_doctor(capsys, "--model", tmp_path / "absent")
    assert (code, result["errors"]) == (1, 1)
    write_corpus(tmp_path / "lower", [[" ".join(WORDS)] * 3, [" ".join(WORDS[::-1])]], tokenizer=CASED)
    code, result = run_doctor(capsys, "--corpus", tmp_path / "lower")
    assert (code, result["errors"]) == (0, 0)
    assert result["warnings"] >= 1


def test_a_tokenizer_that_does_not_open_is_one_finding_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.tsv").write_text("text\tlabel\na b\tx\nc d\ty\n")
    code, result = run_doctor(capsys, "--quick", "--data", tmp_path / "one.tsv", "--tokenizer", tmp_path / "nope")
    assert code == 1
    (error,) = (each for each in result["findings"] if each["name"] == "tokenizer")
    assert "nope/tokenizer.json: there is no such file" in error["text"]
    assert {each["part"] for each in result["findings"]} > {"machine", "data"}


def test_a_corpus_of_another_tokenizer_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path / "corpus", [random_sentences(3), random_sentences(3, seed=1)], tokenizer=CASED)
    code, result = run_doctor(capsys, "--model", write_model(tmp_path / "model"), "--corpus", tmp_path / "corpus")
    assert code == 1
    (error,) = (each for each in result["findings"] if each["level"] == "error")
    assert (error["part"], error["name"]) == ("corpus", "tokenizer")
    assert re.search("ids would stand for other pieces", error["text"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--task", "nosuch"],
        ["--task", "squad2", "--data", "x.json", "--label-column", "a"],
        ["--task", "squad2", "--data", "x.json", "--input-format", "csv"],
        ["--text-column", "text"],
        ["--tokenizer", "nope"],
        ["--model", "small-wiki", "--tokenizer", "nope"],
        ["--model", "small-wiki", "--tokenizer", "nope", "--data", "x.tsv"],
        ["--data", "x.tsv", "--max-length", "3"],
        ["--max-length", "0"],
        ["--label-column", "a"],
    ],
)
def test_a_request_without_sense_is_exit_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(capsys, *arguments) == (2, {})


def test_the_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The exit code is 1 where there is an error, else 0" in shown


@pytest.mark.parametrize("as_model", [True, False])
def test_a_language_model_gets_the_tokens_of_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_model: bool
) -> None:
    """Fine-tuning adds them too."""
    size = write_gpt2_tokenizer(tmp_path / "gpt2")
    publish_gpt2(tmp_path / "gpt2", vocab_size=size)
    import_model(str(tmp_path / "gpt2"), tmp_path / "model")
    table = tmp_path / "train.tsv"
    rows = [f"{text}\t{'good' if 'river' in text else 'bad'}" for text in random_sentences(30)]
    table.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    named = ["--model", tmp_path / "model"] if as_model else ["--tokenizer", tmp_path / "model"]
    code = main(["doctor", "--json", *map(str, named), "--max-length", "40", "--data", str(table)])
    findings = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    assert code == 0, [each for each in findings if each["level"] == "error"]
    assert "length" in {each["name"] for each in findings if each["part"] == "data"}


@pytest.mark.parametrize("system", ["bert-left", "lstm-left"])
def test_a_language_model_is_not_tried_as_a_masked_one(tmp_path: Path, system: str) -> None:
    write_corpus(tmp_path / "corpus", [random_sentences(3), random_sentences(3, seed=1)])
    looked = Examination(Request(model=f"random:{system}:tiny", corpus=tmp_path / "corpus"))
    looked.model()
    looked.read_corpus()
    assert [(finding.name, finding.level) for finding in looked.training()] == [("begins", "note")]


def test_more_tokens_than_positions_are_an_error(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", max_positions=64)
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "one\tgood\ntwo\tbad\n" * 20)
    for length, is_error in ((64, False), (65, True)):
        looked = Examination(Request(model=str(model), data=tmp_path / "rows.tsv", max_length=length))
        looked.model()
        assert ("positions" in [finding.name for finding in looked.read_data() if finding.level == "error"]) == is_error


def test_random_weights_take_the_vocabulary_of_the_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path / "corpus", [random_sentences(3), random_sentences(3, seed=1)])
    code, result = run_doctor(capsys, "--model", "random:tiny", "--corpus", tmp_path / "corpus")
    assert code == 0
    assert levels([Finding(**each) for each in result["findings"] if each["part"] == "model"]) == {}
    tokenizer = next(each for each in result["findings"] if each["name"] == "tokenizer")
    assert tokenizer["value"]["model"] == LOWER.hash
    code, result = run_doctor(capsys, "--model", "random:tiny")
    assert (code, result["errors"]) == (1, 1)
