"""The architectures that luced runs: one row here and one flat file beside it.

`load` imports the file of an architecture, which has `spec(metadata, weights) -> Spec` and
`build(tape, spec, weights, batch) -> x`: the last layer's output [E, n], before the output norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """`name` is GGUF's general.architecture and the name of the module here; `models` are some that people run.

    `capabilities`: what it can do beside answering; to ask for another is an error.
    """

    name: str
    models: str
    capabilities: frozenset[str] = frozenset({"embed"})


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("llama", "Llama 2 and 3, SmolLM2, TinyLlama"),
        Architecture("qwen2", "Qwen2 and Qwen2.5 dense, 0.5B to 72B"),
        Architecture("qwen3", "Qwen3 dense, 0.6B to 32B"),
        Architecture("qwen3moe", "Qwen3 with experts, 30B-A3B and 235B-A22B"),
        Architecture("qwen35", "Qwen3.5 and 3.6 dense, 0.8B to 27B", frozenset({"embed", "mtp"})),
        Architecture("qwen35moe", "Qwen3.5 and 3.6 with experts, 35B-A3B to 397B-A17B", frozenset({"embed", "mtp"})),
        Architecture("qwen3next", "Qwen3-Next, 80B-A3B", frozenset({"embed", "mtp"})),
        Architecture("gemma2", "Gemma 2, 2B to 27B"),
        Architecture("gemma3", "Gemma 3 text, 270M to 27B"),
        Architecture("gemma4", "Gemma 4 text, E2B, E4B, 12B, 26B-A4B and 31B"),
        Architecture("deepseek4", "DeepSeek-V4-Flash and -Pro"),
        Architecture("laguna", "Laguna XS.2, XS-2.1, S-2.1 and M.1"),
    )
}


def load(name: str) -> Any:
    """The module of an architecture of this table."""
    return import_module(f"{__name__}.{ARCHITECTURES[name].name}")
