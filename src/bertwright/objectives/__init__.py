"""What pre-training asks of the model: example making and losses."""
