"""Writes goldens/families.json: what templates as they were published make of tests.text.conversations.

`python -m tests.text.make_goldens`; needs the distributions trl, which has templates of models, and renderers, which
has in Python those of models whose format is code, or that are not there.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import jinja2
from renderers import configs, deepseek_v4, laguna_s21, laguna_xs2
from transformers.utils.chat_template_utils import render_jinja_template

from tests.text.conversations import BOS, CONVERSATIONS, EOS, GOLDENS, Conversation

TEMPLATES = (
    *("gemma", "gemma3", "gemma4_v5"),
    *("qwen2_5", "qwen2_5_vl", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_6"),
)
RENDERERS = {
    "deepseek-v4": (deepseek_v4.DeepSeekV4Renderer, configs.DeepSeekV4RendererConfig),
    "laguna-xs.2": (laguna_xs2.LagunaXS2Renderer, configs.LagunaXS2RendererConfig),
    "laguna-s-2.1": (laguna_s21.LagunaS21Renderer, configs.LagunaS21RendererConfig),
}


class Characters:
    """A tokenizer whose tokens are characters and names of special tokens."""

    name_or_path = ""
    unk_token_id = None
    eos_token_id = None

    def __init__(self) -> None:
        self._names: list[str] = []
        self._special = re.compile("〈[|]EOS[|]〉|</?assistant>|</?think>|</?tool_call>|<?｜[^｜]+｜>?|.", re.DOTALL)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        parts = self._special.findall(text)
        self._names += [part for part in parts if part not in self._names]
        return [self._names.index(part) for part in parts]

    def decode(self, tokens: list[int], *_: Any, **__: Any) -> str:
        return "".join(self._names[token] for token in tokens)

    def convert_tokens_to_ids(self, name: str) -> int:
        return self.encode(name)[0]


def by_template(source: str, conversation: Conversation) -> str | None:
    options = {} if conversation.thinking is None else {"enable_thinking": conversation.thinking}
    try:
        rendered = render_jinja_template(
            conversations=[conversation.messages],
            chat_template=source,
            add_generation_prompt=conversation.asks,
            bos_token=BOS,
            eos_token=EOS,
            **options,
        )
    except jinja2.TemplateError:
        return None
    text: str = rendered[0][0]
    return text


def by_renderer(name: str, conversation: Conversation) -> str:
    renderer, config = RENDERERS[name]
    options = {} if conversation.thinking is None else {"enable_thinking": conversation.thinking}
    tokenizer = Characters()
    tokens = renderer(tokenizer, config(**options)).render_ids(
        conversation.messages, add_generation_prompt=conversation.asks
    )
    text = tokenizer.decode(tokens)
    return text.replace("<｜begin▁of▁sentence｜>", BOS).replace("<｜end▁of▁sentence｜>", EOS)


def main() -> None:
    folder = resources.files("trl") / "chat_templates"
    sources = {name: (folder / f"{name}.jinja").read_text() for name in TEMPLATES}
    made = {
        name: {key: by_template(source, one) for key, one in CONVERSATIONS.items()} for name, source in sources.items()
    }
    for name in RENDERERS:
        kept = ("thinking", "called") if name.startswith("laguna") else tuple(CONVERSATIONS)
        made[name] = {key: by_renderer(name, CONVERSATIONS[key]) for key in kept}
    texts = {name: {key: text for key, text in of.items() if text is not None} for name, of in made.items()}
    GOLDENS.parent.mkdir(exist_ok=True)
    GOLDENS.write_text(json.dumps(texts, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
