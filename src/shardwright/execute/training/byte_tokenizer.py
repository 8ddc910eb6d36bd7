"""Tokenizer without files, which encodes a text's bytes; and the shipped example text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from shardwright.errors import DataError
from shardwright.execute.training.write_and_open_token_files import write_tokens

BEGIN, END = 256, 257
VOCABULARY = 258
"""256 bytes, and the tokens at the beginning and end of a document."""
NAME = "bytes"


def encode(text: str | bytes) -> np.ndarray:
    """Encode a document as uint16 tokens: `BEGIN` (256), its bytes in UTF-8, `END` (257)."""
    content = text.encode() if isinstance(text, str) else text
    return np.concatenate([[BEGIN], np.frombuffer(content, dtype=np.uint8), [END]]).astype(
        np.uint16
    )


def tokenise(texts: Path | Sequence[Path], tokens: Path) -> int:
    """Write a token file of some text files, each a document; returns the number of tokens.

    Raises:
        DataError: a file cannot be read, or is empty; the result cannot be written.
    """
    documents = []
    for path in [texts] if isinstance(texts, Path) else texts:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}", hint="give a file of text") from None
        if not content:
            raise DataError(f"{path} is empty", hint="give a file of text")
        documents.append(encode(content))
    if not documents:
        raise DataError(
            f"{tokens}: no text to make tokens of", hint="give at least one file of text"
        )
    row = np.concatenate(documents)
    write_tokens(tokens, row, vocabulary=VOCABULARY, tokenizer=NAME)
    return len(row)


def tokenise_shipped(tokens: Path) -> int:
    """Write a token file of the shipped example text; returns the number of tokens."""
    with as_file(files("shardwright.execute") / "harbour.txt") as path:
        return tokenise(path, tokens)
