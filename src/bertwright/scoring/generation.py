"""prompt → continuation: a left-to-right language model predicts a token, which is read to predict the next one.

The keys and values of the tokens that were read are kept, so that each token is computed once.

Shapes: N tokens that are read at a time, T tokens so far, D hidden, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.errors import InputError, shown
from bertwright.model.attention import KeyValues
from bertwright.model.config import BackboneConfig, EncoderConfig, predicts_ahead, predicts_next
from bertwright.model.encoder import Encoder, EncoderLayer
from bertwright.model.families import family_of
from bertwright.model.families.gpt2 import GPT2Config
from bertwright.model.folder import SavedModel
from bertwright.model.heads import for_loss
from bertwright.objectives.language_model import open_language_model
from bertwright.objectives.masked_next_token import as_language_model
from bertwright.scoring.settings import GenerateSettings
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.finite import check_finite
from bertwright.tasks.inference import open_answering, ready
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.hardware import module_device
from bertwright.training.settings import Device

EndReason = Literal["end", "tokens", "positions"]
"""Reason for the end of a continuation: the end of a text, the number of tokens, or the positions of the model."""


@dataclass(frozen=True)
class Continuation:
    """Continuation of a prompt, without it. tokens: number of its tokens, the end of a text not counted."""

    prompt: str
    text: str
    tokens: int
    stopped: EndReason


class ReadTokens:
    """The tokens that an encoder has read, as the keys and values of each layer."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.length = encoder, 0
        self._layers = [KeyValues() for _ in range(encoder.config.layers)]

    def read(self, ids: Tensor) -> Tensor:
        """Read further tokens [1, N]; return the last state of the last one [1, D]."""
        encoder, total = self.encoder, self.length + ids.shape[1]
        hidden: Tensor = encoder.embeddings(ids, torch.zeros_like(ids), begin=self.length)
        reach = torch.ones(ids.shape[1], total, dtype=torch.bool, device=ids.device).tril(self.length)
        for index, past in enumerate(self._layers):
            layer = cast(EncoderLayer, encoder.layer_at(index))
            hidden = layer(hidden, reach[None, None], past=past)
        self.length = total
        last = hidden[:, -1]
        return last if encoder.final_norm is None else encoder.final_norm(last)


class TextGenerator:
    """A GPT-1, GPT-2 or GPT-BERT that continues texts, ready for inference."""

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        """Raise InputError for another model."""
        if not can_generate(saved.config):
            title = family_of(saved.config).title(saved.config)
            raise InputError(
                f"{saved.source}: expected a GPT-1, GPT-2 or GPT-BERT, which continues a text token by token, got "
                f"another model ({title})"
            )
        if "task" in saved.extra:
            raise InputError(
                f"{saved.source}: was fine-tuned for {saved.extra['task']['name']} and continues no texts; name the "
                "pre-trained model that it was made from"
            )
        self.source, self.tokenizer = saved.source, tokenizer
        self.first = (tokenizer.begin_id,) if predicts_ahead(saved.config) else ()
        """Ids before each text, as in training."""
        saved = as_language_model(saved)
        self.model = ready(open_language_model(saved), saved)
        named = self.model.config.end_id if isinstance(self.model.config, GPT2Config) else None
        last = tokenizer.end_id if self.first else None
        self.ends = {end for end in (named, last, tokenizer.end_of_text_id) if end is not None}

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the ids of prompts; InputError for an empty one, and for one with more tokens than positions."""
        for number, prompt in enumerate(prompts):
            refuse_halves([prompt], f"prompt {number}: ")
        all_ids, most = self.tokenizer.ids(prompts), self.model.config.max_positions
        for number, ids in enumerate(all_ids):
            if not ids:
                raise InputError(f"prompt {number}: expected a text, got '{shown(prompts[number])}', without a piece")
            if (count := len(self.first) + len(ids)) > most:
                raise InputError(
                    f"prompt {number}: has {count:,} tokens; expected at most {most:,}, the positions of "
                    f"{self.source}; shorten it"
                )
        return all_ids

    def generate(self, prompts: Sequence[str], settings: GenerateSettings) -> list[Continuation]:
        """Return a continuation of each prompt; it depends on the prompt, its number and the settings alone."""
        outputs = []
        for number, (prompt, ids) in enumerate(zip(prompts, self.encode(prompts), strict=True)):
            more, stopped = self.continue_ids(ids, settings, number=number)
            outputs.append(Continuation(prompt, self.tokenizer.decode(more), len(more), stopped))
        return outputs

    @torch.inference_mode()
    def continue_ids(
        self, ids: Sequence[int], settings: GenerateSettings, *, number: int = 0
    ) -> tuple[list[int], EndReason]:
        """Return the ids that follow `ids`, without the end of a text, and the reason why they end.

        number: number of the prompt, which decides its random numbers together with the seed.
        """
        encoder = cast(Encoder, self.model.encoder)
        device, most = module_device(self.model), self.model.config.max_positions
        words, bias = (for_loss(part[: self.tokenizer.vocab_size]) for part in self.model.projection)
        choose = chooser(settings, number)
        text, unread, more = ReadTokens(encoder), [*self.first, *ids], list[int]()
        while len(more) < settings.tokens:
            if text.length + len(unread) > most:
                return more, "positions"
            state = text.read(torch.tensor([unread], device=device))
            logits = F.linear(self.model.output.states(state).to(words.dtype), words, bias)[0]  # [V]
            check_finite([logits.float().cpu().numpy()], "prompt {}".format, first=number)
            chosen = choose(logits.cpu())
            if chosen in self.ends:
                return more, "end"
            more.append(chosen)
            unread = [chosen]
        return more, "tokens"


def chooser(settings: GenerateSettings, number: int) -> Callable[[Tensor], int]:
    """Return the function from logits [V] to the next token: the most probable one, or one that is drawn."""
    if settings.is_greedy:
        return lambda logits: int(logits.argmax())
    return partial(
        drawn_token, settings=settings, generator=torch.Generator().manual_seed(settings.seed * 1_000_003 + number)
    )


def drawn_token(logits: Tensor, *, settings: GenerateSettings, generator: torch.Generator) -> int:
    """Return a token that is drawn from logits [V]: divided by the temperature, then cut to top-k, then to top-p."""
    temperature = max(settings.temperature or 1.0, 1e-30)  # below, the most probable token is taken for certain
    ordered, tokens = ((logits - logits.max()) / temperature).sort(descending=True, stable=True)
    ordered, tokens = ordered[: settings.top_k], tokens[: settings.top_k]
    probabilities = ordered.softmax(0)
    if settings.top_p is not None:  # the fewest tokens whose probabilities reach top-p
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities[before < settings.top_p]
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])


def can_generate(config: BackboneConfig) -> bool:
    """Return True for a left-to-right Transformer whose output layer is its word embeddings, and for a GPT-BERT."""
    if predicts_ahead(config):
        return True
    return predicts_next(config) and isinstance(config, EncoderConfig) and not config.output_has_transform


def open_generator(model: str, precision: str | None = None, device: Device = "cpu") -> TextGenerator:
    """Open a model that continues texts; precision None computes as in training. InputError as `TextGenerator`."""
    saved = open_answering(model, precision, device)
    return TextGenerator(saved, open_tokenizer(saved))
