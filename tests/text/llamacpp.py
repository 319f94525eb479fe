"""llama.cpp's tokenizer and chat templates as an oracle, through the C API that the xllamacpp extension exports."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

# llama.cpp logs every tensor that it loads.
_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


class _Params(ctypes.Structure):
    """llama_model_params, opaque: larger than the real one, which is passed and returned in memory."""

    _fields_ = (("_", ctypes.c_byte * 1024),)


class _Message(ctypes.Structure):
    _fields_ = (("role", ctypes.c_char_p), ("content", ctypes.c_char_p))


@cache
def _library() -> ctypes.CDLL:
    package = pytest.importorskip("xllamacpp", reason="xllamacpp, the oracle, is not installed")
    library = ctypes.CDLL(str(next(Path(package.__file__).parent.glob("xllamacpp*.so"))))
    pointer, text, int32, flag = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_bool
    for name, result, arguments in (
        ("llama_model_default_params", _Params, ()),
        ("llama_model_load_from_file", pointer, (text, _Params)),
        ("llama_model_get_vocab", pointer, (pointer,)),
        ("llama_model_free", None, (pointer,)),
        ("llama_tokenize", int32, (pointer, text, int32, ctypes.POINTER(int32), int32, flag, flag)),
        ("llama_token_to_piece", int32, (pointer, int32, text, int32, int32, flag)),
        ("llama_vocab_is_eog", flag, (pointer, int32)),
        ("llama_vocab_n_tokens", int32, (pointer,)),
        ("llama_chat_apply_template", int32, (text, ctypes.POINTER(_Message), ctypes.c_size_t, flag, text, int32)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_SILENT, None)
    return library


class Oracle:
    """The vocabulary of a GGUF file, which must be a whole model."""

    def __init__(self, path: Path) -> None:
        self._library = _library()
        self._model = self._library.llama_model_load_from_file(
            str(path).encode(), self._library.llama_model_default_params()
        )
        assert self._model, f"llama.cpp cannot load {path}"
        self._vocab = self._library.llama_model_get_vocab(self._model)
        self.n_vocab: int = self._library.llama_vocab_n_tokens(self._vocab)

    def close(self) -> None:
        self._library.llama_model_free(self._model)

    def encode(self, text: str, special: bool, bos: bool) -> list[int]:
        raw = text.encode()
        tokens = (ctypes.c_int32 * (2 * len(raw) + 8))()
        n = self._library.llama_tokenize(self._vocab, raw, len(raw), tokens, len(tokens), bos, special)
        assert n >= 0
        return tokens[:n]

    def token_bytes(self, token: int, special: bool) -> bytes:
        piece = ctypes.create_string_buffer(1024)
        n = self._library.llama_token_to_piece(self._vocab, token, piece, len(piece), 0, special)
        assert n >= 0
        return piece.raw[:n]

    def eog_ids(self) -> set[int]:
        return {i for i in range(self.n_vocab) if self._library.llama_vocab_is_eog(self._vocab, i)}


def apply_template(name: str, messages: Sequence[dict[str, str]]) -> str:
    """The prompt by llama.cpp's own template of that name, without BOS."""
    chat = (_Message * len(messages))(*(_Message(m["role"].encode(), m["content"].encode()) for m in messages))
    text = ctypes.create_string_buffer(1 << 16)
    n = _library().llama_chat_apply_template(name.encode(), chat, len(chat), True, text, len(text))
    assert 0 <= n <= len(text)
    return text.raw[:n].decode()
