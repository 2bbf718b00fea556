"""Full-text search over a catalogue that fits in memory: BM25 with an inverted index."""

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_ENGLISH = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there "
    "these they this to was will with"
)
STOP_WORDS = frozenset(_ENGLISH.split())
"""Words that are not indexed: the English ones of Lucene, which the original shop searches with."""

_WORD = re.compile(r"\w+")


class Bm25:
    """Ranks texts by Okapi BM25.

    The original shop asks Lucene, which also takes words back to their stems (Porter); here only the
    plural's ``s`` is cut off.
    """

    def __init__(self, texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        """Index texts.

        Args:
            texts: What is searched; a result is the position of a text.
            k1: How slowly more occurrences of a word stop to matter, 0 or more. The defaults are
                those of Pyserini, which the original shop uses.
            b: How much long texts are marked down, 0 to 1.
        """
        counts = [Counter(words(text)) for text in texts]
        sizes = [count.total() for count in counts]
        mean = max(1.0, sum(sizes) / max(1, len(sizes)))
        frequency = Counter(word for count in counts for word in count)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for position, (count, size) in enumerate(zip(counts, sizes, strict=True)):
            for word, number in count.items():
                rarity = math.log1p((len(texts) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                share = number / (number + k1 * (1 - b + b * size / mean))
                self._postings[word].append((position, rarity * share))

    def top(self, query: str, count: int) -> list[int]:
        """Return the positions of the best texts, best first.

        Args:
            query: Words; those that no text holds do not matter.
            count: Most results, 0 or more.

        Returns:
            Positions of texts that share a word with the query; the earlier text wins a tie.
        """
        scores: dict[int, float] = defaultdict(float)
        for word in words(query):
            for position, weight in self._postings.get(word, ()):
                scores[position] += weight
        best = heapq.nsmallest(count, ((-score, position) for position, score in scores.items()))
        return [position for _, position in best]


def words(text: str) -> list[str]:
    """Return the words of a text as they are indexed: lower case, no stop words, singular."""
    found = (word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS)
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found]
