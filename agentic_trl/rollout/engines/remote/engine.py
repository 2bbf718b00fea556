"""Sampling by another's server: texts out, and ids that are their bytes.

Contract:

- A sample has the bytes of the response as its ids (``bytes_tokenizer``), and NaN as their log-probabilities, which
  nobody says. The numbers that the server counted are noted apart.
- Responses are asked for in threads, each episode in its turn; with a fixed ``slots`` as many as episodes.
- Texts that end a response (``stop_strings``) are cut here, behind them, as other engines do: a server would leave them out.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from math import nan
from typing import Any

from agentic_trl.rollout.engines.base import Refusal, Request, Sample, Sampling
from agentic_trl.rollout.engines.remote.model import RemoteModel, Response
from agentic_trl.user_values import clean_text

OPEN = 64
"""Requests that are open at a time, unless ``slots`` are fewer or more."""


class RemoteEngine:
    """Samples responses of a model behind a URL."""

    collective = False

    def __init__(
        self,
        model: RemoteModel,
        sampling: Sampling,
        *,
        tokenizer: Any,
        tokens: dict[int, int | None],
        stop_strings: Sequence[str] = (),
        slots: int | None = None,
    ) -> None:
        """Bind a model.

        Args:
            model: What is asked.
            sampling: How it samples.
            tokenizer: That of ``bytes_tokenizer``.
            tokens: Gets the tokens of the last attempt at each episode; ``None`` where the server did not count.
            stop_strings: Texts that end a response.
            slots: Episodes that may be in flight at a time; ``None`` for any number.
        """
        self.slots = slots
        self._model, self._sampling, self._tokens = model, sampling, tokens
        self._tokenizer, self._stops = tokenizer, tuple(stop_strings)
        self._counts: dict[int, list[int | None]] = {}
        self._open: dict[Future[Response | Refusal], int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        """Ask.

        Args:
            requests: At most one open request of each episode.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.slots or OPEN, thread_name_prefix="remote")
        for one in requests:
            asked = self._pool.submit(self._model.ask, one, self._sampling)
            self._open[asked] = one.episode

    def advance(self) -> list[tuple[int, Sample | Refusal]]:
        """Wait for at least one response, if any is asked for.

        Returns:
            Episode and response of the requests that are answered.

        Raises:
            ConnectionError: If the server cannot be reached.
            PermissionError: If it does not take the key.
            ValueError: If it does not know the model.
        """
        if not self._open:
            return []
        answered = wait(self._open, return_when=FIRST_COMPLETED).done
        ready = [
            one for one in self._open if one in answered
        ]  # in the order in which they were asked
        episodes = [self._open.pop(one) for one in ready]
        return [
            (episode, self._sample(episode, one.result()))
            for episode, one in zip(episodes, ready, strict=True)
        ]

    def release(self, episode: int) -> None:
        """Note the end of an attempt.

        Args:
            episode: Number of the episode, known or not.
        """
        counts = self._counts.pop(episode, [])
        known = [one for one in counts if one is not None]
        self._tokens[episode] = sum(known) if len(known) == len(counts) else None

    def finish(self) -> None:
        """Ask no more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self._open = None, {}

    def _sample(self, episode: int, answer: Response | Refusal) -> Sample | Refusal:
        if isinstance(answer, Refusal):
            return answer
        self._counts.setdefault(episode, []).append(answer.tokens)
        text, cut = clean_text(answer.text), answer.cut
        ends = [at + len(one) for one in self._stops if (at := text.find(one)) >= 0]
        if ends:
            text, cut = text[: min(ends)], True
        marks = self._tokenizer.all_special_ids
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = [i for i in encoded if i not in marks]
        if not cut:
            ids.append(self._tokenizer.eos_token_id)
        return Sample(ids=tuple(ids), logprobs=(nan,) * len(ids), truncated=answer.cut and not ends)
