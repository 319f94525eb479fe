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
# A name of a turn, and the text. Where a family thinks (`thinks`), thoughts are told of answers to the last question
# alone; Qwen3.5 (`always`) tells of none as of empty ones.
_CHATML = """\
{%- if default_system is defined and messages[0].role != 'system' %}
    {{- '<|im_start|>system\\n' + default_system + '<|im_end|>\\n' }}
{%- endif %}
{%- set asked = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set asked.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content | trim if always is defined else message.content %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.role == 'assistant' and thinks is defined %}
            {%- set parts = content.split('</think>') %}
            {%- set thoughts = parts[0].split('<think>')[-1].strip('\\n') if parts | length > 1 else '' %}
            {%- if loop.index0 > asked.last and (thoughts or always is defined) %}
                {{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}
            {%- endif %}
            {%- set content = parts[-1].lstrip('\\n') if parts | length > 1 else content %}
        {%- endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
"""
_DEFAULT_SYSTEM = "{%- set default_system = '"
_QWEN2 = f"{_DEFAULT_SYSTEM}You are a helpful assistant.' %}}{_CHATML}{{%- endif %}}"
_QWEN25 = (
    f"{_DEFAULT_SYSTEM}You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' %}}{_CHATML}{{%- endif %}}"
)
_QWEN3_NEXT = f"{{%- set thinks = true %}}{_CHATML}{{%- endif %}}"
# Qwen3 begins its thoughts itself, Qwen3.5 finds them begun; who shall not think finds them at an end.
_QWEN3 = f"""{{%- set thinks = true %}}{_CHATML}\
    {{%- if enable_thinking is defined and not enable_thinking %}}
        {{{{- '<think>\\n\\n</think>\\n\\n' }}}}
    {{%- endif %}}
{{%- endif %}}
"""
_QWEN35 = f"""{{%- set thinks = true %}}{{%- set always = true %}}{_CHATML}\
    {{{{- '<think>\\n' }}}}
    {{%- if enable_thinking is defined and not enable_thinking %}}
        {{{{- '\\n</think>\\n\\n' }}}}
    {{%- endif %}}
{{%- endif %}}
"""
# Thoughts are not told again. An answer of a tool would need the name of the call, which messages do not have.
_GEMMA4 = """\
{{- bos_token }}
{%- set thinks = enable_thinking is defined and enable_thinking %}
{%- if thinks or messages[0].role == 'system' %}
    {{- '<|turn>system\\n' }}
    {{- '<|think|>\\n' if thinks }}
    {{- messages[0].content | trim if messages[0].role == 'system' }}
    {{- '<turn|>\\n' }}
{%- endif %}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) %}
    {%- if message.role == 'tool' %}
        {{- raise_exception('this template has no tool messages') }}
    {%- endif %}
    {{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {%- set said = namespace(text='') %}
    {%- for part in message.content.split('<channel|>') if message.role == 'assistant' %}
        {%- set said.text = said.text + part.split('<|channel>')[0] %}
    {%- else %}
        {%- set said.text = message.content %}
    {%- endfor %}
    {{- (said.text | trim) + '<turn|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn>model\\n' }}
{%- endif %}
"""
# What tools answer is told by the user. Thoughts are not told again.
_DEEPSEEK4 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<｜Assistant｜></think>' + message.content.split('</think>')[-1] + eos_token }}
    {%- else %}
        {{- '\\n\\n' if not loop.first and loop.previtem.role in ('user', 'tool') else '<｜User｜>' }}
        {{- '<tool_result>' + message.content + '</tool_result>' if message.role == 'tool' else message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' + ('<think>' if enable_thinking is defined and enable_thinking else '</think>') }}
{%- endif %}
"""


class Reasoning(NamedTuple):
    """What stands around what a model thinks before it answers; newlines next to it are no part of the thoughts, nor
    of the answer. `is_begun`: where it shall think, the family's template ends the prompt with `begin`. Templates of
    files may do otherwise: the prompt tells."""

    begin: str
    end: str
    is_begun: bool = False


class ToolCalls(NamedTuple):
    """What stands around each call of a tool in an answer (dsml: around all of them), and how a call is written in
    between. Spaces and newlines between calls, and between the markers and what they enclose, mean nothing.

    json: {"name": NAME, "arguments": {...}}
    tags: <function=NAME>, for each argument <parameter=KEY>, VALUE and </parameter>, then </function>; a line each, so
          that the newlines next to VALUE are not its own.
    args: NAME, then for each argument <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>; newlines may come before,
          between and after these.
    call: call:NAME{KEY:VALUE,...}. No key has quotes. A string stands between two <|"|>, and nothing in it is escaped;
          objects are written like the arguments; all else is JSON, but null may be None.
    dsml: for each call <｜DSML｜invoke name="NAME">, for each argument
          <｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>, then </｜DSML｜invoke>; a line each.
          string="false": VALUE is JSON.

    VALUE of tags and args is a string as it is, or JSON for any other type: the tool's schema tells which. In tags a
    truth value or null may be Python's. Models of one architecture may write json or tags (as Qwen3 and Qwen3-Coder):
    the first character tells.
    """

    begin: str
    end: str
    syntax: Literal["json", "tags", "args", "call", "dsml"]


@dataclass(frozen=True)
class Family:
    """Models that were trained on one format of conversations; the vocabulary of each has all tokens of `markers`.

    `template`: where the file brings none; None: the models of one architecture have several, and nothing else in a
    file tells which. `pre`: how BPE splits their texts, where the file does not name its tokenizer.ggml.pre.
    """

    template: str | None
    markers: tuple[str, ...]
    pre: str | None = None
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

_THINK = Reasoning("<think>", "</think>")
_THINK_BEGUN = Reasoning("<think>", "</think>", is_begun=True)
_JSON_CALLS = ToolCalls("<tool_call>", "</tool_call>", "json")
_GEMMA_FAMILY = Family(_GEMMA, ("<start_of_turn>",))
_QWEN2_FAMILY = Family(_QWEN2, ("<|im_start|>",), "qwen2")
_QWEN25_FAMILY = Family(_QWEN25, ("<|im_start|>", "<tool_call>"), "qwen2", None, _JSON_CALLS)
_QWEN3_FAMILY = Family(_QWEN3, ("<|im_start|>",), "qwen2", _THINK, _JSON_CALLS)
_QWEN35_FAMILY = Family(
    _QWEN35, ("<|im_start|>",), "qwen35", _THINK_BEGUN, ToolCalls("<tool_call>", "</tool_call>", "tags")
)
# By architecture: of several the first whose markers are there.
FAMILIES: dict[str, tuple[Family, ...]] = {
    "gemma2": (_GEMMA_FAMILY,),
    "gemma3": (_GEMMA_FAMILY,),
    "gemma4": (
        Family(
            _GEMMA4,
            ("<|turn>",),
            reasoning=Reasoning("<|channel>thought\n", "<channel|>"),
            tool_calls=ToolCalls("<|tool_call>", "<tool_call|>", "call"),
        ),
    ),
    "qwen2": (_QWEN25_FAMILY, _QWEN2_FAMILY),
    "qwen3": (_QWEN3_FAMILY,),
    "qwen3moe": (_QWEN3_FAMILY,),
    # Instruct never thinks, Thinking always: neither has a way to be told.
    "qwen3next": (Family(_QWEN3_NEXT, ("<|im_start|>",), "qwen2", _THINK_BEGUN, _JSON_CALLS),),
    "qwen35": (_QWEN35_FAMILY,),
    "qwen35moe": (_QWEN35_FAMILY,),
    # XS.2, M.1, XS-2.1 and S-2.1 differ in newlines, default system texts, and whether they think unasked.
    "laguna": (
        Family(None, ("<assistant>",), "laguna", _THINK_BEGUN, ToolCalls("<tool_call>", "</tool_call>", "args")),
    ),
    "deepseek4": (
        Family(
            _DEEPSEEK4,
            ("<｜User｜>",),
            "joyai-llm",
            _THINK_BEGUN,
            ToolCalls("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "dsml"),
        ),
    ),
}


def family_of(architecture: str | None, vocabulary: Vocabulary) -> Family | None:
    """None: the architecture has none, or the vocabulary is not a family's."""
    families = FAMILIES.get(architecture or "", ())
    return next((f for f in families if all(marker in vocabulary.ids for marker in f.markers)), None)
