"""The table of families: what it says fits its own templates and the tokenizers that are there."""

from __future__ import annotations

import pytest

from luced.models import ARCHITECTURES
from luced.text.bpe import PRE_TOKENIZERS
from luced.text.chat import ChatTemplate
from luced.text.families import FAMILIES

ASKED = [{"role": "user", "content": "Why?"}]
THINKING = [name for name, family in FAMILIES.items() if family.reasoning]


def test_each_is_of_an_architecture() -> None:
    assert set(FAMILIES) <= set(ARCHITECTURES)


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_are_split_as_a_tokenizer_here_does(name: str) -> None:
    assert FAMILIES[name].pre in ("", *PRE_TOKENIZERS)


@pytest.mark.parametrize("name", THINKING)
def test_the_template_begins_thoughts_where_the_table_says_so(name: str) -> None:
    family = FAMILIES[name]
    assert family.reasoning is not None
    begin, end, is_begun = family.reasoning
    template = ChatTemplate(family.template, "", "")
    prompt = template.render(ASKED)
    assert prompt.endswith(f"{begin}\n") == is_begun
    assert (begin in prompt) == is_begun
    assert end not in prompt
    assert template.render(ASKED, enable_thinking=True) == prompt
    unthinking = template.render(ASKED, enable_thinking=False)
    assert unthinking == prompt.removesuffix(f"{begin}\n") + f"{begin}\n\n{end}\n\n"
    assert template.render(ASKED, add_generation_prompt=False) == f"{family.marker}user\nWhy?<|im_end|>\n"
