"""luced: a daemon that owns one machine's GPU, weights and caches, and runs GGUF language models."""

__version__ = "0.1.0"
