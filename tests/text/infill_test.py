"""Fill-in-the-middle prompts: token by token, from keys and from known names; and the question for models without."""

from __future__ import annotations

from typing import Any

import pytest

from luced.errors import ModelError
from luced.text.infill import Context, chat_messages, fim_prompt, read_fim
from luced.text.tokenizer import Tokenizer, load_tokenizer

BYTES = [chr(b) for b in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
EXTRA = [Context("b.py", "b=1"), Context("c.py", "c=2")]


def model(*specials: str, **keys: Any) -> tuple[dict[str, Any], Tokenizer]:
    tokens = [*specials, *BYTES]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(specials) + [1] * len(BYTES),
        "tokenizer.ggml.merges": ["! !"],
        **{f"tokenizer.ggml.{name}": value for name, value in keys.items()},
    }
    metadata["tokenizer.ggml.tokens"].append("!!")
    metadata["tokenizer.ggml.token_type"].append(1)
    return metadata, load_tokenizer(metadata)


def spelled(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(token, special=True) for token in tokens).decode()


QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")


@pytest.mark.parametrize(
    ("specials", "expected"),
    [
        (
            QWEN,
            """<|repo_name|>repository
<|file_sep|>b.py
b=1
<|file_sep|>c.py
c=2
<|file_sep|>a.py
<|fim_prefix|>x=<|fim_suffix|>;y<|fim_middle|>""",
        ),
        (QWEN[:3], "<|fim_prefix|>b.py\nb=1\nc.py\nc=2\nx=<|fim_suffix|>;y<|fim_middle|>"),
        (
            ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
            "<｜fim▁begin｜>b.py\nb=1\nc.py\nc=2\nx=<｜fim▁hole｜>;y<｜fim▁end｜>",
        ),
    ],
)
def test_known_names(specials: tuple[str, ...], expected: str) -> None:
    metadata, tokenizer = model(*specials)
    fim = read_fim(metadata, tokenizer.vocabulary)
    assert fim is not None
    assert spelled(tokenizer, fim_prompt(tokenizer, fim, "x=", ";y", EXTRA, "a.py").tokens) == expected


def test_keys_come_before_names_and_bos_before_all() -> None:
    metadata, tokenizer = model(
        "<s>", "<A>", "<B>", "<C>", *QWEN,
        fim_pre_token_id=1, fim_suf_token_id=2, fim_mid_token_id=3, bos_token_id=0, add_bos_token=True,
    )  # fmt: skip
    fim = read_fim(metadata, tokenizer.vocabulary)
    assert fim is not None
    assert spelled(tokenizer, fim_prompt(tokenizer, fim, "x", "y", [], "").tokens) == "<s><A>x<B>y<C>"


def test_names_of_control_tokens_in_the_texts_stay_text() -> None:
    metadata, tokenizer = model(*QWEN)
    fim = read_fim(metadata, tokenizer.vocabulary)
    assert fim is not None
    tokens = fim_prompt(tokenizer, fim, "<|fim_middle|>", "", [], "").tokens
    assert tokens.count(fim.middle) == 1
    assert tokens[-1] == fim.middle


def test_two_of_three_are_not_enough_and_a_wrong_id_is_an_error() -> None:
    metadata, tokenizer = model(*QWEN[:2])
    assert read_fim(metadata, tokenizer.vocabulary) is None
    with pytest.raises(ModelError, match="fim_mid_token_id"):
        read_fim(metadata | {"tokenizer.ggml.fim_mid_token_id": 1 << 20}, tokenizer.vocabulary)


def test_a_question_grows_at_its_end_while_the_user_types() -> None:
    before, after = (chat_messages(prefix, "return x", EXTRA, "a.py") for prefix in ("x = 1", "x = 12"))
    assert before[0] == after[0]
    assert after[1]["content"] == before[1]["content"] + "2"
    assert all(part in after[1]["content"] for part in ("b=1", "c=2", "return x", "a.py"))
