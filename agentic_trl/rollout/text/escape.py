"""The added tokens of a tokenizer as text: finding them and breaking them.

A tokenizer matches its added tokens, such as ``<|im_end|>``, in any text before its model runs. A text that
brings one into a prompt can end a turn and begin another.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentic_trl.user_values import clean_text

SPACE = "▁"
"""SentencePiece's character for a space."""


class AddedTokens:
    """The added tokens of a tokenizer but for those of white space alone."""

    def __init__(self, vocabulary: Mapping[str, int], *, unknown: int | None) -> None:
        """Build the pattern that finds them.

        Args:
            vocabulary: Id of each added token.
            unknown: Id of the token for what the tokenizer does not know, which is in no text.
        """
        # Tokens of white space alone, as Gemma has them, are spelled by ordinary text.
        blank = {text for text in vocabulary if not text.replace(SPACE, "").strip()}
        named = {text.strip(): i for text, i in vocabulary.items() if text not in blank}
        self.ids = frozenset(named.values()) - {unknown}
        """Their ids, without ``unknown``."""
        self._pattern = re.compile(_longest_of(named) if named else r"(?!)")

    def split(self, text: str) -> str:
        """Return a text with a space behind the first character of each added token in it.

        Returns:
            A text without added tokens; those of one character are question marks.
        """
        before = None
        while text != before:
            before, text = text, self._pattern.sub(_split, text)
        return text

    def escape(
        self,
        text: str,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> str:
        """Return a clean text without added tokens, also none that the tokenizer's normalizer would make.

        Args:
            text: Any text.
            encode: Returns the ids of a text.
            decode: Returns the text of ids.
        """
        text = self.split(clean_text(text))
        while not self.ids.isdisjoint(ids := encode(text)):
            text = self.split(decode([i for i in ids if i not in self.ids]))
        return text

    def found(self, text: str) -> set[str]:
        """Return the added tokens that stand in a text.

        Args:
            text: Any text.
        """
        return set(self._pattern.findall(text))

    def across(self, text: str, at: int) -> bool:
        """Return whether an added token stands across a position of a text.

        Args:
            text: Any text.
            at: Position between two characters.
        """
        return any(match.start() < at < match.end() for match in self._pattern.finditer(text))


def _split(match: re.Match[str]) -> str:
    token = match[0]
    return f"{token[0]} {token[1:]}" if len(token) > 1 else "?"


def _longest_of(words: Iterable[str]) -> str:
    """Return a pattern for the longest of some words: a tree, so that thousands cost no more than one."""
    tails: dict[str, list[str]] = {}
    for word in words:
        tails.setdefault(word[:1], []).append(word[1:])
    ends = tails.pop("", None) is not None
    branches = [re.escape(first) + _longest_of(rest) for first, rest in tails.items()]
    if len(branches) == 1 and not ends:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + "?" * ends if branches else ""
