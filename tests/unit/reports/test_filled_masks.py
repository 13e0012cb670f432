"""Masks that a report fills: which pieces are words."""

from bertwright.reports.filled_masks import _is_word
from bertwright.text.byte_pairs import train_byte_pairs


def test_words_of_byte_level_pieces_are_words_of_letters() -> None:
    tokenizer = train_byte_pairs(["\ubc14\ub2e4 \ud558\ub298 \u2014 \ubc14\ub2e4 \ud558\ub298"] * 9, vocab_size=320)
    (ids,) = tokenizer.ids([" \ubc14\ub2e4 \u2014 \ud558\ub298 \ubc14\ub2e4"])
    texts = {tokenizer.decode([id]).strip(): _is_word(tokenizer, ids, at) for at, id in enumerate(ids[:-1])}
    assert texts["\ubc14\ub2e4"]
    assert not texts.get("\u2014", False)
