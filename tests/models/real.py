"""Real models: where they are, and what they are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from luced.errors import RequestError
from luced.gguf.catalogue import Catalogue

N_TOKENS = 48

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Once upon a time, in a village by the sea, there lived",
    "Les trois couleurs du drapeau sont",
    "東京は日本の",
    "| name | age |\n|------|-----|\n| Ada  | 36  |\n",
    "Emoji: 😀 😃 😄\n\n\t  {\"key\": [true, null, 1e-9]}\n",
)  # fmt: skip


def find_smollm2() -> Path:
    """The package's file. Skips the test where it is not installed."""
    try:
        return Catalogue([]).find("smollm2").path
    except RequestError as error:
        pytest.skip(str(error))


def in_f32(model: Path, path: Path) -> Path:
    """Writes the same weights to `path`, every one in F32."""
    gguf = pytest.importorskip("gguf")
    from tests.tinygguf import with_tensors

    source = gguf.GGUFReader(model)
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in source.tensors}
    return with_tensors(source, path, values)
