"""Minimal pairs: a folder, one file, packed files and lists of ids give the same pairs; each fault names its line."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.scoring.pairs import pairs_digest, read_paradigms
from bertwright.scoring.paradigms import PHENOMENON_OF
from tests.support.blimp import UIDS, made_up_pairs, pair_line, write_blimp, write_lines


def content(data: Path, **options: Any) -> list[Any]:
    return [
        (paradigm.uid, paradigm.term, [(pair.id, pair.good, pair.bad) for pair in paradigm.pairs])
        for paradigm in read_paradigms(data, **options)
    ]


def test_a_folder_one_file_and_packed_files_hold_the_same(tmp_path: Path) -> None:
    folder = write_blimp(tmp_path / "blimp")
    expected = content(folder)
    assert [uid for uid, _, _ in expected] == sorted(UIDS)
    assert {uid: term for uid, term, _ in expected} == UIDS
    assert expected[-1][2][2] == ("2", "On transitive 2 the horse walks home.", "On transitive 2 the horse walk home.")
    lines = b"".join(path.read_bytes() for path in sorted(folder.iterdir(), reverse=True))
    for name, raw in (("all.jsonl", lines), ("a.jsonl.xz", lzma.compress(lines)), ("a.jsonl.gz", gzip.compress(lines))):
        (tmp_path / name).write_bytes(raw)
        assert content(tmp_path / name) == expected
    for path in [*folder.iterdir()]:
        path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    (folder / "README.md").write_text("five of 67")
    assert content(folder) == expected


def test_a_file_without_uid_is_a_paradigm_of_its_name(tmp_path: Path) -> None:
    lines = [{"sentence_good": "A b.", "sentence_bad": f"A c {number}."} for number in range(2)]
    write_lines(tmp_path / "supplement" / "turn_taking.jsonl", lines)
    assert content(tmp_path / "supplement") == [
        ("turn_taking", "turn_taking", [("", "A b.", "A c 0."), ("", "A b.", "A c 1.")])
    ]


def test_blank_lines_are_no_pairs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"sentence_good": "A b.", "sentence_bad": "A c."}])
    path.write_text(path.read_text() + "\n  \n")
    assert content(path) == [("a", "a", [("", "A b.", "A c.")])]


def test_a_list_of_ids_keeps_its_pairs_alone(tmp_path: Path) -> None:
    folder = write_blimp(tmp_path / "blimp")
    chosen = tmp_path / "ids.json"
    chosen.write_text(json.dumps({"transitive": [3, "1"], "anaphor_number_agreement": ["0"], "elsewhere": ["9"]}))
    kept = content(folder, pair_ids=chosen)
    assert [(uid, [id for id, _, _ in pairs]) for uid, _, pairs in kept] == [
        ("anaphor_number_agreement", ["0"]),
        ("transitive", ["1", "3"]),
    ]
    whole, part = (read_paradigms(folder, **options)[-1] for options in ({}, {"pair_ids": chosen}))
    assert pairs_digest(whole) != pairs_digest(part)
    for lists, words in (
        (
            {"transitive": ["7"]},
            "--pairs .*ids.json: expected pairIDs of transitive, got 7, which the data do not have",
        ),
        ({"transitive": []}, "ids.json: expected pairIDs of transitive, got none"),
        ({"transitive": "1"}, "ids.json: expected a list of pairIDs for transitive, got '1'"),
        ({"wh_island": ["1"]}, "ids.json: names none of the paradigms of the data, such as anaphor_number_agreement"),
    ):
        chosen.write_text(json.dumps(lists))
        with pytest.raises(InputError, match=words):
            read_paradigms(folder, pair_ids=chosen)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"sentence_good": "a", "UID": "u"}', "expected the field 'sentence_bad', got only sentence_good, UID"),
        (
            '{"sentence_good": "a", "sentence_bad": "b"}',
            "expected the field 'UID', got only sentence_good, sentence_bad",
        ),
        (json.dumps(pair_line("u", 1, "a", "")), "expected a text in 'sentence_bad', got ''"),
        (json.dumps(pair_line("u", 1, "a", "b", sentence_good=None)), "expected a text in 'sentence_good', got None"),
        (json.dumps(pair_line("../u", 1, "a", "b")), "expected a UID of letters, digits, '_', '-' and '.', got '../u'"),
        (json.dumps(pair_line("u", 1, "a", "b", pairID=1.5)), "expected a text or a whole number in 'pairID', got 1.5"),
        (
            json.dumps(pair_line("transitive", 0, "a", "b")),
            "expected each pairID of transitive once, got '0' again; .*:1",
        ),
        ('{"sentence_good": "a"', "not valid JSON: .* was the file cut short"),
        ("[]", "expected one object"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = write_lines(tmp_path / "b.jsonl", made_up_pairs("transitive", 2))
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InputError, match=rf"b.jsonl:3: {words}"):
        read_paradigms(path)


def test_a_paradigm_packed_and_unpacked_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "sup.jsonl", made_up_pairs("sup", 2))
    (tmp_path / "sup.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match=r"sup.jsonl and sup.jsonl.gz are one file, packed and not; remove one"):
        read_paradigms(tmp_path)


def test_lists_of_paradigms_that_the_data_lack_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_lines(tmp_path / "p.jsonl", made_up_pairs("transitive", 3))
    (tmp_path / "ids.json").write_text('{"transitive": ["0"], "misspelt": ["0"]}')
    (paradigm,) = read_paradigms(data, pair_ids=tmp_path / "ids.json")
    assert len(paradigm.pairs) == 1
    assert "ids.json: 1 of its paradigms are not in the data, such as misspelt" in capsys.readouterr().err


def test_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--data .*absent: there is no such file or folder"):
        read_paradigms(tmp_path / "absent")
    (tmp_path / "pairs.tsv").write_text("")
    with pytest.raises(InputError, match=r"--data .*: expected files \*.jsonl"):
        read_paradigms(tmp_path)
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(InputError, match=r"--data .*none.jsonl: holds no lines"):
        read_paradigms(tmp_path / "none.jsonl")


def test_the_real_data_have_the_67_paradigms(shared_data: Path) -> None:
    folder = shared_data / "blimp"
    paradigms = read_paradigms(folder, pair_ids=folder / "babylm-filtered-pairids.json")
    assert {paradigm.uid for paradigm in paradigms} == set(PHENOMENON_OF)
    assert sum(len(paradigm.pairs) for paradigm in paradigms) == 59_875
    for paradigm in paradigms:
        assert PHENOMENON_OF[paradigm.uid] == paradigm.term.replace("s-selection", "argument_structure")
