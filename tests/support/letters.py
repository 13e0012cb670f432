"""Tokenizers whose tokens are characters, so that every id can be read."""

from collections.abc import Sequence


class Letters:
    """A tokenizer with one token for each character."""

    begin_id, between_ids, end_id, unk_id = 1, (2,), 2, 3
    row_frame = ((1,), (2,), (2,))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]


class LettersWithOffsets:
    """A tokenizer with one token for each character that is no blank."""

    begin_id, between_ids, end_id, unk_id, hash = 1, (2,), 2, 3, "letters"
    row_frame = ((1,), (2,), (2,))

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        return [
            ([ord(letter) for letter in text if letter != " "], [(n, n + 1) for n, x in enumerate(text) if x != " "])
            for text in texts
        ]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids for ids, _ in self.offsets(texts)]
