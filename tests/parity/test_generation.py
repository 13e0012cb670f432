"""Greedy continuations of GPT-1 and GPT-2 of random weights, token by token, beside transformers and a plain loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bertwright.scoring.generation import TextGenerator, open_generator
from bertwright.scoring.settings import GenerateSettings
from tests.support.gpt2_files import publish_gpt2, write_gpt2_tokenizer
from tests.support.gpt_files import published, transformers_model

PROMPT = [3, 14, 15, 9, 2, 6]


def _gpt1(folder: Path) -> Any:
    return transformers_model(published(folder))


def _gpt2(folder: Path) -> Any:
    size = write_gpt2_tokenizer(folder)
    return publish_gpt2(folder, vocab_size=size, eos_token_id=size - 1, pad_token_id=0)


def _without_cache(generator: TextGenerator, ids: list[int], count: int) -> list[int]:
    """Return the most probable tokens, each from the whole text."""
    encoder, ids = generator.model.encoder, list(ids)
    begin = len(ids)
    while len(ids) < begin + count:
        rows = torch.tensor([ids])
        last = encoder(rows, torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)).last
        ids.append(int(F.linear(last[0, -1], *generator.model.projection).argmax()))
    return ids[begin:]


@pytest.mark.parametrize("publish", [_gpt1, _gpt2])
def test_greedy_tokens_are_those_of_transformers_and_of_a_loop_without_cache(tmp_path: Path, publish: Any) -> None:
    theirs = publish(tmp_path / "m").eval()
    generator = open_generator(str(tmp_path / "m"))
    room = generator.model.config.max_positions - len(PROMPT)
    count = min(12, room)
    more, stopped = generator.continue_ids(PROMPT, GenerateSettings(tokens=count))
    row = torch.tensor([PROMPT])
    with torch.inference_mode():
        expected = theirs.generate(
            row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=count, pad_token_id=0
        )[0, len(PROMPT) :].tolist()
        assert more == expected[: len(more)]
        assert stopped == ("end" if expected[-1] in generator.ends else "tokens")
        assert _without_cache(generator, PROMPT, len(more)) == more
    # the same text, however often it is asked for, and to the last position of the model
    longest, stopped = generator.continue_ids(PROMPT, GenerateSettings(tokens=10_000))
    assert longest[: len(more)] == more
    assert stopped == "end" or len(longest) == room + 1


def test_a_text_stops_at_its_end_and_draws_are_those_of_the_seed(tmp_path: Path) -> None:
    """The end is made the only likely token, then one of two likely ones."""
    model = _gpt2(tmp_path / "m")
    end = model.config.eos_token_id
    generator = open_generator(str(tmp_path / "m"))
    plain = generator.continue_ids(PROMPT, GenerateSettings(tokens=8))[0]
    generator.ends = {plain[3]}
    stop = plain.index(plain[3])
    assert generator.continue_ids(PROMPT, GenerateSettings(tokens=8)) == (plain[:stop], "end")
    generator.ends = {end}
    # one candidate is the most probable token, whatever the temperature
    for settings in (GenerateSettings(8, top_k=1, temperature=5.0), GenerateSettings(8, top_p=1e-9)):
        assert generator.continue_ids(PROMPT, settings)[0] == plain
    drawn = [generator.continue_ids(PROMPT, GenerateSettings(8, 3.0, seed=seed))[0] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
