"""Messages to the prompt that the model was trained on, by the chat template of its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from luced.errors import ModelError, RequestError
from luced.text.families import family_of
from luced.text.pieces import no_text
from luced.text.prompt import Prompt
from luced.text.special import SpecialTokens
from luced.text.tokenizer import Tokenizer
from luced.text.vocabulary import scalar

ROLES = ("system", "user", "assistant", "tool")
MAX_CHARS = 16 << 20  # of a prompt: as much as a frame of the protocol may hold
MAX_SAID = 1000  # characters of what a template says of an error
_MARK = 0xF0000  # added to a character of the Basic Multilingual Plane: where a message has a control token's name

Message = dict[str, str]


class ChatTemplate:
    """A template in the dialect of Hugging Face's tokenizers, run in a sandbox. ModelError: it is no valid Jinja."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # jinja2.TemplateError, or that it is nested too deeply for Python
            raise ModelError("bad_model_file", f"the model's chat template is not valid: {_said(error)}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text. RequestError: a message is not as it must be, or the template refuses it."""
        variables |= {"add_generation_prompt": add_generation_prompt, "tools": tools}
        checked = check_messages(messages)
        try:
            text = self._template.render(self._tokens, messages=checked, **variables)
        except MemoryError:
            raise
        except Exception as error:  # a template is a program: it may raise anything
            raise RequestError("bad_template", f"the model's chat template: {_said(error)}") from error
        if len(text) > MAX_CHARS:
            what = f"the model's chat template makes {len(text)} characters of this, more than {MAX_CHARS}"
            raise RequestError("bad_template", what, "send less, or use another model file")
        return text

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        on_rendered: Callable[[], None] = lambda: None,
        **variables: Any,
    ) -> Prompt:
        """The prompt that asks for the next message. Names of control tokens in the messages stay text. on_rendered:
        called when the template has done its work."""
        checked = check_messages(messages)
        text = self.render(checked, **variables)
        literal = self._literal(tokenizer.specials, checked, text, variables)
        on_rendered()
        tokens = tokenizer.encode(text, special=True, bos=False, literal=literal)
        if tokenizer.add_bos and tokenizer.bos_id is not None and tokens[:1] != [tokenizer.bos_id]:
            tokens.insert(0, tokenizer.bos_id)
        return Prompt(text, tokens, [i for i, token in enumerate(tokens, 1) if token in tokenizer.eog_ids])

    def _literal(
        self, specials: SpecialTokens, messages: list[Message], text: str, variables: dict[str, Any]
    ) -> bytearray | None:
        """For each character of `text`: 1 if it is part of a control token's name that a message brought.

        Rendered once more with these characters replaced, one for one, the text tells where they have gone: it must
        not differ in anything else, or the template acts on them.
        """
        found: set[str] = set()
        marked = [message | {"content": _mark(message["content"], specials, found)} for message in messages]
        if not found:
            return None
        again = self.render(marked, **variables)
        literal = bytearray(a != b for a, b in zip(text, again, strict=False))
        if len(again) != len(text) or any(
            ord(text[i]) + _MARK != ord(again[i]) for i, one in enumerate(literal) if one
        ):
            names = ", ".join(map(repr, sorted(found)))
            what = f"a message has the text of a control token ({names}), and the chat template acts on it"
            raise RequestError("bad_template", what, "write it otherwise")
        return literal


def _mark(content: str, specials: SpecialTokens, found: set[str]) -> str:
    spans = specials.control_spans(content)
    chars = list(content) if spans else []
    for begin, end in spans:
        found.add(content[begin:end])
        chars[begin:end] = [chr(ord(c) + _MARK) if ord(c) < 0x10000 else c for c in content[begin:end]]
    return "".join(chars) if spans else content


def load_template(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of a model. RequestError: it has none; ModelError: it is broken."""
    if not tokenizer.has_text:
        raise no_text()
    source = scalar(metadata, "tokenizer.chat_template", str, None)
    if source is None:
        family = family_of(scalar(metadata, "general.architecture", str, None), tokenizer.vocabulary)
        source = family.template if family is not None else None
    if source is None:
        raise RequestError("not_supported", "the model's file has no chat template", "use complete")
    bos, eos = (tokenizer.name(i) if i is not None else "" for i in (tokenizer.bos_id, tokenizer.eos_id))
    return ChatTemplate(source, bos, eos)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with plain text as content; parts of type text are joined by newlines. RequestError: which one is
    wrong, and how."""
    if not messages:
        raise RequestError("bad_parameter", "messages is empty", parameter="messages")
    return [_check(i, message) for i, message in enumerate(messages)]


def _check(i: int, message: Mapping[str, Any]) -> Message:
    def bad(why: str) -> RequestError:
        return RequestError("bad_parameter", f"messages[{i}] {why}", parameter="messages")

    for key in message:
        if key not in ("role", "content"):
            raise bad(f"has the unknown key {key!r}; there are role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise bad(f"has the role {role!r}; it must be one of {', '.join(ROLES)}")
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {} for part in content]
        if not all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
            raise bad("has a content part that is not of type text")
        content = "\n".join(str(part["text"]) for part in parts)
    if not isinstance(content, str):
        raise bad(f"needs a content that is text, not {type(content).__name__}")
    return {"role": role, "content": content}


def _said(error: Exception) -> str:
    """What an error says; the text of a template's own may be anything."""
    return (str(error) or type(error).__name__)[:MAX_SAID].encode(errors="replace").decode()


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}, which marks what to train on: its body as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 (templates may name it)
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own it escapes nothing for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()
