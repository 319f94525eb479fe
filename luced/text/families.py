"""What model families do that their files may not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from luced.text.vocabulary import Vocabulary

# One turn for each message; what the system says stands at the beginning of the user's first turn.
_GEMMA = """\
{{- bos_token }}
{%- set told = namespace(text='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set told.text = told.text + (message.content | trim) + '\\n\\n' %}
    {%- elif message.role == 'tool' %}
        {{- raise_exception('this model has no tool messages') }}
    {%- else %}
        {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}
        {%- if message.role == 'user' %}
            {{- told.text }}
            {%- set told.text = '' %}
        {%- endif %}
        {{- (message.content | trim) + '<end_of_turn>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}
"""
_CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
"""
# Qwen3 begins its thoughts itself, Qwen3.5 finds them begun; who shall not think finds them at an end.
_QWEN3 = f"""{_CHATML}\
    {{%- if enable_thinking is defined and not enable_thinking %}}
        {{{{- '<think>\\n\\n</think>\\n\\n' }}}}
    {{%- endif %}}
{{%- endif %}}
"""
_QWEN35 = f"""{_CHATML}\
    {{{{- '<think>\\n' }}}}
    {{%- if enable_thinking is defined and not enable_thinking %}}
        {{{{- '\\n</think>\\n\\n' }}}}
    {{%- endif %}}
{{%- endif %}}
"""


class Reasoning(NamedTuple):
    """Tokens around what a model thinks before it answers; `is_begun`: the prompt ends with the first of them."""

    begin: str
    end: str
    is_begun: bool = False


class ToolCalls(NamedTuple):
    """Tokens around each call of a tool in an answer, and what stands between them.

    json: {"name": NAME, "arguments": {...}}
    tags: <function=NAME>, then for each argument <parameter=NAME> VALUE </parameter>, </function>; a line each.
          Strings are written as they are, other values as JSON.
    """

    begin: str
    end: str
    syntax: Literal["json", "tags"]


@dataclass(frozen=True)
class Family:
    """Models that were trained on one format of conversations; the vocabulary of each has the token `marker`.

    `template`: where the file brings none. `pre`: how BPE splits their texts, as tokenizer.ggml.pre names it.
    """

    template: str
    marker: str
    pre: str = ""
    reasoning: Reasoning | None = None
    tool_calls: ToolCalls | None = None


# Names of the tokens that fill-in-the-middle models were trained with: Qwen, StarCoder and Granite, SantaCoder,
# CodeLlama, DeepSeek, in this order. Keys are those of GGUF's tokenizer.ggml.fim_*_token_id.
FIM_NAMES = {
    "pre": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "▁<PRE>", "<｜fim▁begin｜>"),
    "suf": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "▁<SUF>", "<｜fim▁hole｜>"),
    "mid": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "▁<MID>", "<｜fim▁end｜>"),
    "rep": ("<|repo_name|>", "<reponame>", "<repo_name>"),
    "sep": ("<|file_sep|>", "<file_sep>"),
}

_QWEN3_FAMILY = Family(
    _QWEN3,
    "<|im_start|>",
    "qwen2",
    Reasoning("<think>", "</think>"),
    ToolCalls("<tool_call>", "</tool_call>", "json"),
)
_QWEN35_FAMILY = Family(
    _QWEN35,
    "<|im_start|>",
    "qwen35",
    Reasoning("<think>", "</think>", is_begun=True),
    ToolCalls("<tool_call>", "</tool_call>", "tags"),
)
# By architecture.
FAMILIES = {
    "gemma3": Family(_GEMMA, "<start_of_turn>"),
    "qwen3": _QWEN3_FAMILY,
    "qwen3moe": _QWEN3_FAMILY,
    "qwen3next": _QWEN3_FAMILY,
    "qwen35": _QWEN35_FAMILY,
    "qwen35moe": _QWEN35_FAMILY,
}


def default_template(architecture: str, vocabulary: Vocabulary) -> str | None:
    """The template of the architecture's family; None if there is none, or the vocabulary is not the family's."""
    family = FAMILIES.get(architecture)
    return family.template if family is not None and family.marker in vocabulary.ids else None
