"""RequestExamples of requests for the OpenAPI description, by name; /docs offers them in a list."""

from typing import Any, Final

RequestExamples = dict[str, Any]

PREDICT: Final[RequestExamples] = {
    "a text": {"value": {"inputs": ["a film to fall asleep in"]}},
    "a text, with the words that spoke for the label": {
        "value": {"inputs": ["a film to fall asleep in"], "explain": True}
    },
    "a pair of texts": {"value": {"inputs": [["A garden behind the library.", "There is a garden."]]}},
    "a question": {
        "value": {
            "inputs": [{"question": "When was the bridge opened?", "context": "The stone bridge was opened in 1894."}]
        }
    },
    "a choice": {
        "value": {"inputs": [{"context": "A man opens the fridge. He", "choices": ["takes milk.", "paints the moon."]}]}
    },
    "a text with [MASK], for a pre-trained model": {"value": {"inputs": ["The film won the [MASK] prize."]}},
}
ANSWER: Final[RequestExamples] = {
    "a question": {
        "value": {"question": "When was the bridge opened?", "context": "The stone bridge was opened in 1894."}
    },
}
FILL: Final[RequestExamples] = {
    "two masks": {"value": {"inputs": ["The film was [MASK] in 1984 and won the [MASK] prize."], "top_k": 3}},
}
NEXT_SENTENCE: Final[RequestExamples] = {
    "two sentences": {
        "value": {"first": "The ferry left the harbour at seven.", "second": "By noon it had reached the island."}
    },
}
SCORE: Final[RequestExamples] = {
    "two sentences": {"value": {"inputs": ["The ferry leaves the harbour.", "The ferry leave the harbour."]}},
    "one piece masked at a time": {"value": {"inputs": ["The ferry leaves the harbour."], "masking": "piece"}},
}
EMBEDDINGS: Final[RequestExamples] = {
    "two texts": {"value": {"input": ["The ferry left the harbour.", "A boat sailed early."]}},
    "as base64, from [CLS]": {
        "value": {"input": "The ferry left the harbour.", "encoding_format": "base64", "pool": "cls"}
    },
    "with a prompt": {"value": {"input": ["When did the ferry leave?"], "prompt": "query: "}},
}
RERANK: Final[RequestExamples] = {
    "three documents": {
        "value": {
            "query": "When was the bridge opened?",
            "documents": ["The stone bridge was opened in 1894.", {"text": "A ferry crossed the river."}, "Rain."],
            "top_n": 2,
            "return_documents": True,
        }
    },
}
TEI_EMBED: Final[RequestExamples] = {
    "two texts": {"value": {"inputs": ["The ferry left the harbour.", "A boat sailed early."]}},
    "a text, not normalised": {"value": {"inputs": "The ferry left the harbour.", "normalize": False}},
}
TEI_RERANK: Final[RequestExamples] = {
    "two texts": {
        "value": {
            "query": "When was the bridge opened?",
            "texts": ["Rain.", "The stone bridge was opened in 1894."],
            "return_text": True,
        }
    },
}
SEARCH: Final[RequestExamples] = {
    "the nearest rows": {"value": {"query": "When was the bridge opened?", "top_k": 3}},
    "reranked": {"value": {"query": "When was the bridge opened?", "rerank": "reranker", "candidates": 20}},
}
INSIDE: Final[RequestExamples] = {
    "a text": {"value": {"text": "my dog is cute"}},
    "two texts, layer 2": {"value": {"text": "my dog is cute", "second": "he likes playing", "layer": 2}},
}
