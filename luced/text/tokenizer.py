"""Text to token ids and back, as the metadata of a GGUF file says."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from luced.errors import ModelError, RequestError
from luced.text import bpe
from luced.text.bpe import Bpe
from luced.text.charbpe import CharBpe
from luced.text.pieces import Pieces, no_text, pack
from luced.text.special import SpecialTokens
from luced.text.spm import Spm
from luced.text.vocabulary import Kind, Vocabulary, bad_key, read_vocabulary, scalar

MAX_VOCAB = 1 << 22


class Tokenizer:
    """The tokenizer of one model. `add_bos` and `add_eos` say how its prompts begin and end; with `add_space_prefix`
    each text between special tokens is tokenised as if it began with a space."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        model: Bpe | CharBpe | Spm | NoModel,
        add_bos: bool,
        add_eos: bool,
        add_space_prefix: bool,
    ) -> None:
        self.vocabulary = vocabulary
        self.add_bos = add_bos and vocabulary.bos_id is not None
        self.add_eos = add_eos and vocabulary.eos_id is not None
        self.add_space_prefix = add_space_prefix
        self.specials = SpecialTokens(vocabulary)
        self._model = model
        self._bytes: dict[int, bytes] = {}

    @property
    def n_vocab(self) -> int:
        return len(self.vocabulary)

    @property
    def bos_id(self) -> int | None:
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        return self.vocabulary.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self.vocabulary.eog_ids

    @property
    def has_text(self) -> bool:
        """False: only token ids can be used."""
        return not isinstance(self._model, NoModel)

    def kind(self, token: int) -> Kind:
        return Kind(self.vocabulary.kinds[token])

    def name(self, token: int) -> str:
        """The token as the vocabulary writes it."""
        return self.vocabulary.texts[token]

    def encode(self, text: str, special: bool, bos: bool, literal: bytearray | None = None) -> list[int]:
        """The ids of `text`. special: names of control tokens are those tokens, except where `literal` (one byte for
        each character) is 1. bos: begin and end as the model wants prompts to. RequestError: a lone surrogate, or a
        file without tokenizer."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            what = f"the text has a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}"
            raise RequestError("bad_parameter", what, "send text that is valid UTF-8") from None
        vocabulary = self.vocabulary
        ids: list[int] = []
        if bos and self.add_bos:
            assert vocabulary.bos_id is not None
            ids.append(vocabulary.bos_id)
        for part in self.specials.split(text, special, literal):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._model.encode(" " + part if self.add_space_prefix else part)
        if bos and self.add_eos:
            assert vocabulary.eos_id is not None
            ids.append(vocabulary.eos_id)
        return ids

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """What the token contributes to the text; control tokens nothing, or with `special` their name."""
        kind = self.vocabulary.kinds[token]
        if kind in (Kind.CONTROL, Kind.UNKNOWN):
            return self.vocabulary.texts[token].encode() if special else b""
        piece = self._bytes.get(token)
        if piece is None:
            piece = self._bytes[token] = self._piece(token, kind)
        return piece

    def pieces(self) -> Pieces:
        """The same for all tokens."""
        kinds = self.vocabulary.kinds
        hidden = bytes(kind in (Kind.CONTROL, Kind.UNKNOWN) for kind in kinds)
        pieces = [
            self.vocabulary.texts[token].encode() if hidden[token] else self._piece(token, kind)
            for token, kind in enumerate(kinds)
        ]
        ends = pack(accumulate(map(len, pieces)))
        return Pieces(b"".join(pieces), ends, hidden, self.has_text, self.add_space_prefix)

    def _piece(self, token: int, kind: int) -> bytes:
        if kind == Kind.NORMAL:
            return self._model.piece(token)
        if kind == Kind.BYTE:
            return bytes([int(self.vocabulary.texts[token][3:5], 16)])
        return self.vocabulary.texts[token].encode() if kind == Kind.USER_DEFINED else b""


class NoModel:
    """Of a file without a tokenizer: its tokens have no text."""

    def encode(self, text: str) -> list[int]:
        raise no_text()

    def piece(self, token: int) -> bytes:
        return b""


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of the file that has this metadata. If it has none, ids can be named but texts raise RequestError.
    ModelError: one that we do not know, or that is broken."""
    model = scalar(metadata, "tokenizer.ggml.model", str, None)
    if model in (None, "none", "no_vocab"):
        n_vocab = _n_vocab(metadata)
        nameless = Vocabulary([f"<{i}>" for i in range(n_vocab)], [Kind.UNUSED] * n_vocab)
        return Tokenizer(nameless, NoModel(), add_bos=False, add_eos=False, add_space_prefix=False)
    maker: type[Bpe] | type[CharBpe] | type[Spm]
    if model == "gpt2":
        vocabulary, maker = read_vocabulary(metadata, None, None), Bpe
        add_bos = scalar(metadata, "tokenizer.ggml.pre", str, None) in bpe.ADD_BOS
    elif model == "llama":
        vocabulary, maker = read_vocabulary(metadata, 1, 2), Spm
        add_bos = True
    elif model == "gemma4":
        vocabulary, maker = read_vocabulary(metadata, None, None), CharBpe
        add_bos = True
    else:
        raise ModelError("unsupported_model", f"the model has the unknown tokenizer.ggml.model {model!r}", model=model)

    def flag(name: str, default: bool) -> bool:
        return bool(scalar(metadata, f"tokenizer.ggml.{name}", bool, default))

    return Tokenizer(
        vocabulary,
        maker(vocabulary, metadata),
        # Files of Gemma 4 say false that are of the same model as those that say true.
        add_bos=flag("add_bos_token", add_bos) or model == "gemma4",
        add_eos=flag("add_eos_token", False),
        add_space_prefix=model == "llama" and flag("add_space_prefix", True),
    )


def _n_vocab(metadata: Mapping[str, Any]) -> int:
    """The size of a vocabulary that has no tokens."""
    architecture = scalar(metadata, "general.architecture", str, None)
    key = f"{architecture}.vocab_size"
    n_vocab = scalar(metadata, key, int, None)
    if n_vocab is None:
        raise bad_key(key, "is missing, and the file has no tokens")
    if not 0 < n_vocab <= MAX_VOCAB:
        raise bad_key(key, f"must be 1 to {MAX_VOCAB}, not {n_vocab}")
    return n_vocab
