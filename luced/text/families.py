"""What model families do that their files may not say."""

from __future__ import annotations

from dataclasses import dataclass

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
{%- endif %}
"""


@dataclass(frozen=True)
class Family:
    """The chat template of models that have the token `marker`, where the file brings none."""

    template: str
    marker: str


# Names of the tokens that fill-in-the-middle models were trained with: Qwen, StarCoder and Granite, SantaCoder,
# CodeLlama, DeepSeek, in this order. Keys are those of GGUF's tokenizer.ggml.fim_*_token_id.
FIM_NAMES = {
    "pre": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "▁<PRE>", "<｜fim▁begin｜>"),
    "suf": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "▁<SUF>", "<｜fim▁hole｜>"),
    "mid": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "▁<MID>", "<｜fim▁end｜>"),
    "rep": ("<|repo_name|>", "<reponame>", "<repo_name>"),
    "sep": ("<|file_sep|>", "<file_sep>"),
}

FAMILIES = {"gemma3": Family(_GEMMA, "<start_of_turn>"), "qwen3": Family(_CHATML, "<|im_start|>")}


def default_template(architecture: str, vocabulary: Vocabulary) -> str | None:
    """The template of the architecture's family; None if there is none, or the vocabulary is not the family's."""
    family = FAMILIES.get(architecture)
    return family.template if family is not None and family.marker in vocabulary.ids else None
