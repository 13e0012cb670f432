"""Build BERT encoders: from raw text to a pre-trained encoder, to a fine-tuned model, to an answer."""

__version__ = "0.1.0"
