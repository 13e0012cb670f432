"""Distillation: a smaller student learns from a teacher, for a task or in pre-training."""
