"""Any chat template, and any conversation: a prompt that keeps its promises, or an error that blames the right one."""

from __future__ import annotations

from functools import cache

from luced.text.chat import ChatTemplate
from luced.text.tokenizer import Tokenizer, load_tokenizer
from tests.fuzz.choices import Choices, typed
from tests.fuzz.vocabulary import byte_bpe

ROLES = ("user", "assistant", "system", "tool", "", "usr")


def fuzz_template(data: bytes) -> None:
    """The template up to a byte 0xff, which UTF-8 never has; then the messages."""
    source, _, rest = data.partition(b"\xff")
    choices = Choices(rest)
    messages = [{"role": choices.pick(ROLES), "content": choices.text()} for _ in range(choices.below(4))]
    with typed("bad_model_file"):
        template = ChatTemplate(source.decode(errors="replace"), "<|im_start|>", "<|im_end|>")
        with typed("bad_template", "bad_parameter"):
            prompt = template.encode(tokenizer(), messages)
            prompt.text.encode()
            assert all(0 <= token < tokenizer().n_vocab for token in prompt.tokens)
            # No message can name a control token: each comes from the template itself, or is put before all.
            control = [t for t in prompt.tokens if tokenizer().token_bytes(t) == b""]
            assert template.render(messages).count("<|") >= len(control) - 1


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(byte_bpe())
