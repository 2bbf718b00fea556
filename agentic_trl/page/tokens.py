"""From token ids to what a page shows for each: its text, or the bytes of a part of a character."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from agentic_trl.assets import embedded
from agentic_trl.command_line import sentence
from agentic_trl.page.runs import Run
from agentic_trl.run_folder import checkpoints

FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
"""One of these is in the folder of a tokenizer."""


def find_tokenizer(run: Run, given: str | None) -> tuple[Any, str]:
    """Return the tokenizer of a run.

    Args:
        run: The run.
        given: Name or path of one; ``None`` for that of the run's folder, its newest checkpoint or its model, as far as it is on
            this machine.

    Returns:
        The tokenizer or ``None``, and what the page says of it.

    Raises:
        OSError: If the one that was given cannot be loaded.
    """
    if given is not None:
        try:
            return _load(embedded(given), network=True), f"tokenizer of {given}"
        except Exception as error:  # whatever a broken file makes the library raise
            raise OSError(
                f"The tokenizer {given!r} cannot be loaded: {sentence(error)}. Give the name or path of one."
            ) from error
    for place in _places(run):
        try:
            return _load(place, network=False), f"tokenizer of {place}"
        except Exception:  # whatever a broken file makes the library raise
            continue
    return None, (
        "No tokenizer was found in the folder of the run, and that of its model is not on this machine: token ids are shown. "
        "Build the page with --tokenizer NAME."
    )


def _places(run: Run) -> Iterator[str]:
    if run.path.is_dir():
        for folder in (run.path, *checkpoints(run.path)):
            if any((folder / name).is_file() for name in FILES):
                yield str(folder)
    model = run.facts.get("model")
    if isinstance(model, str) and model:
        yield embedded(model)


def _load(place: str, *, network: bool) -> Any:
    """Load a tokenizer; its repository's code is never run."""
    local = not network or Path(place).exists()
    return AutoTokenizer.from_pretrained(place, local_files_only=local, trust_remote_code=False)


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token.

    Args:
        tokenizer: A tokenizer of Transformers.
        ids: Any integers.

    Returns:
        The text with the space that it begins with; ``⟨E4 BD⟩`` for bytes that are no whole character, ``⟨17⟩`` for an id
        that the tokenizer has no text for.
    """
    known = [one for one in ids if 0 <= one < len(tokenizer)]
    pieces = tokenizer.convert_ids_to_tokens(known)
    decoded = tokenizer.batch_decode(
        [[one] for one in known], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    texts = {
        one: _text(piece, text, one)
        for one, piece, text in zip(known, pieces, decoded, strict=True)
    }
    return [texts.get(one, f"⟨{one}⟩") for one in ids]


def _text(piece: str | None, text: str, number: int) -> str:
    if piece is not None and ("\ufffd" in text or not text) and (parts := _bytes(piece)):
        return f"⟨{parts.hex(' ').upper()}⟩"
    spaces = len(piece) - len(piece.lstrip("▁")) if piece is not None else 0
    if spaces and not text.startswith("▁"):  # one at the beginning is left out of a text
        return " " * spaces + text.lstrip(" ")
    return text or piece or f"⟨{number}⟩"


def _bytes(piece: str) -> bytes:
    """Return the bytes of a piece of a vocabulary of bytes; none of any other."""
    if found := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece):
        return bytes.fromhex(found[1])
    if all(char in _ALPHABET for char in piece):
        return bytes(_ALPHABET[char] for char in piece)
    return b""


def _alphabet() -> dict[str, int]:
    """Return the letters by which vocabularies of bytes write the 256 of them (GPT-2's)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [one for one in range(256) if one not in printable]
    written = {chr(one): one for one in printable}
    return written | {chr(256 + at): one for at, one in enumerate(others)}


_ALPHABET = _alphabet()
