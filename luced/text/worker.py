"""Texts and tokens of all models, in a process of its own: a template or a text that costs too much ends it, and
nothing else.

One job at a time, as [0, id, job, [params]] on the link; every job names its model's file. The notification `stage`
(file, template, text) tells what is being done where that changes. The kernel keeps the limits: what computes for too
long dies of SIGXCPU.
"""

from __future__ import annotations

import math
import os
import resource
import socket
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from luce import wire
from luce.errors import LuceError
from luced.errors import RequestError
from luced.gguf.reader import open_gguf
from luced.text.chat import ChatTemplate, load_template
from luced.text.detokenizer import detokenize
from luced.text.infill import Context, chat_messages, fim_prompt, read_fim
from luced.text.pieces import pack, unpack
from luced.text.prompt import Prompt
from luced.text.tokenizer import load_tokenizer

STAGES = ("file", "template", "text")
MAX_MODELS = 8  # whose tokenizers are kept
READ_BYTES = 1 << 20
NO_MEMORY = 3  # exit status

Result = dict[str, Any]


class Model:
    """Tokenizer and chat template of one file; instead of the template the reason why there is none. ModelError."""

    def __init__(self, path: Path) -> None:
        with open_gguf(path) as file:
            self.tokenizer = load_tokenizer(file.metadata)
            self.fim = read_fim(file.metadata, self.tokenizer.vocabulary)
            self._template: ChatTemplate | RequestError
            try:
                self._template = load_template(file.metadata, self.tokenizer)
            except RequestError as error:
                self._template = error

    @property
    def template(self) -> ChatTemplate:
        if isinstance(self._template, RequestError):
            raise self._template
        return self._template


class Worker:
    def __init__(self, link: socket.socket, cpu_s: dict[str, int]) -> None:
        self._link = link
        self._cpu_s = cpu_s  # of each stage
        self._models: OrderedDict[tuple[str, int], Model] = OrderedDict()

    def run(self) -> None:
        """Until the end of the link."""
        connection = wire.TrustedConnection()
        while data := self._link.recv(READ_BYTES):
            connection.feed(data)
            for request in connection:
                assert isinstance(request, wire.Request), request
                self._link.sendall(self._answer(request))

    def _answer(self, request: wire.Request) -> bytes:
        first = "template" if request.method in ("chat", "infill") else "text"
        self._limit(first)
        params = request.params
        try:
            model = self._model(params.pop("path"), params.pop("version"), first)
            return wire.response(request.id, None, JOBS[request.method](self, model, **params))
        except LuceError as error:
            return wire.response(request.id, error.to_wire(), None)
        except MemoryError:
            raise
        except Exception as bug:  # its type and place: what it says may quote a prompt
            place = traceback.extract_tb(bug.__traceback__)[-1]
            what = f"{request.method} failed with {type(bug).__name__} in {place.name}, line {place.lineno}"
            return wire.response(request.id, LuceError("internal", what).to_wire(), None)

    def _model(self, path: str, version: int, next_stage: str) -> Model:
        key = path, version
        if key not in self._models:
            self._enter("file")
            self._models[key] = Model(Path(path))
            self._enter(next_stage)
            if len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key]

    def _enter(self, stage: str) -> None:
        self._limit(stage)
        self._link.sendall(wire.notification("stage", {"name": stage}))

    def _limit(self, stage: str) -> None:
        _set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + self._cpu_s[stage])

    def _rendered(self) -> None:
        self._enter("text")

    # ---- jobs ----

    def open(self, model: Model) -> Result:
        """What makes text of tokens, and what the front has to know besides."""
        tokenizer = model.tokenizer
        return {
            "pieces": tokenizer.pieces().to_wire(),
            "bos_id": tokenizer.bos_id,
            "eog_ids": sorted(tokenizer.eog_ids),
            "has_fim": model.fim is not None,
        }

    def chat(self, model: Model, messages: list[dict[str, Any]], with_text: bool) -> Result:
        return _result(model.template.encode(model.tokenizer, messages, self._rendered), with_text)

    def infill(self, model: Model, prefix: str, suffix: str, extra: list[dict[str, str]], filename: str) -> Result:
        """With the model's own tokens where it has them, else through its template, without thinking."""
        files = [Context(**file) for file in extra]
        if model.fim is not None:
            self._rendered()
            return _result(fim_prompt(model.tokenizer, model.fim, prefix, suffix, files, filename))
        messages = chat_messages(prefix, suffix, files, filename)
        return _result(model.template.encode(model.tokenizer, messages, self._rendered, enable_thinking=False))

    def encode(self, model: Model, texts: list[str], special: bool, bos: bool) -> Result:
        return {"tokens": [pack(model.tokenizer.encode(text, special, bos)) for text in texts]}

    def decode(self, model: Model, tokens: bytes, special: bool) -> Result:
        return {"text": detokenize(model.tokenizer, unpack(tokens), special)}


JOBS: dict[str, Callable[..., Result]] = {
    "open": Worker.open,
    "chat": Worker.chat,
    "infill": Worker.infill,
    "encode": Worker.encode,
    "decode": Worker.decode,
}


def _result(prompt: Prompt, with_text: bool = False) -> Result:
    tokens, boundaries = pack(prompt.tokens), pack(prompt.boundaries)
    return {"text": prompt.text if with_text else "", "tokens": tokens, "boundaries": boundaries}


def _set_limit(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def main(arguments: Sequence[str]) -> None:
    """LINK_FD DATA_BYTES, and the CPU seconds of each stage."""
    link_fd, data_bytes, *cpu_s = map(int, arguments)
    # Not the address space: model files are mapped, and may be larger than the memory.
    _set_limit(resource.RLIMIT_DATA, data_bytes)
    with socket.socket(fileno=link_fd) as link:
        # From here on a crash may have words of a prompt to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        try:
            Worker(link, dict(zip(STAGES, cpu_s, strict=True))).run()
        except MemoryError:
            os._exit(NO_MEMORY)
        except ConnectionError:
            pass  # the front is gone


if __name__ == "__main__":
    main(sys.argv[1:])
