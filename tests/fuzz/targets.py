"""All that is fuzzed, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzz.answer import fuzz_answer
from tests.fuzz.digests import fuzz_digests
from tests.fuzz.gguf import fuzz_gguf, fuzz_gguf_layout
from tests.fuzz.log import fuzz_log
from tests.fuzz.model import fuzz_model
from tests.fuzz.names import fuzz_names
from tests.fuzz.params import fuzz_params
from tests.fuzz.replies import fuzz_replies
from tests.fuzz.settings import fuzz_settings
from tests.fuzz.template import fuzz_template
from tests.fuzz.vocabulary import fuzz_vocabulary
from tests.fuzz.wire import fuzz_wire

CORPUS = Path(__file__).with_name("corpus")

TARGETS: dict[str, Callable[[bytes], None]] = {
    "answer": fuzz_answer,
    "digests": fuzz_digests,
    "gguf": fuzz_gguf,
    "gguf_layout": fuzz_gguf_layout,
    "log": fuzz_log,
    "model": fuzz_model,
    "names": fuzz_names,
    "params": fuzz_params,
    "replies": fuzz_replies,
    "settings": fuzz_settings,
    "template": fuzz_template,
    "vocabulary": fuzz_vocabulary,
    "wire": fuzz_wire,
}


def corpus(target: str) -> list[Path]:
    """Inputs that are kept: examples to start from, and what once went wrong."""
    return sorted((CORPUS / target).iterdir())
