"""GGUF files: the checked header, the formats, and which files there are."""
