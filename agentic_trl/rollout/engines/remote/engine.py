"""Sampling by another's server: texts out, and ids that are their bytes.

Contract:

- A sample has the bytes of the response as its ids (``bytes_tokenizer``), and NaN as their log-probabilities, which
  nobody says. The numbers that the server counted are noted apart.
- A response is asked for in a thread; there are as many as episodes in flight (``slots``).
- Texts that end a response (``stop_strings``) are cut here, behind them, as other engines do: a server would leave them out.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from math import nan
from threading import Thread
from typing import Any

from agentic_trl.rollout.engines.base import Refusal, Request, Sample, Sampling
from agentic_trl.rollout.engines.remote.model import RemoteModel, Response
from agentic_trl.user_values import clean_text

LOOK = 0.05
"""Seconds to wait for a response; other episodes may have something to ask meanwhile."""


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

    def submit(self, requests: Sequence[Request]) -> None:
        """Ask.

        Args:
            requests: At most one open request of each episode.
        """
        for one in requests:
            asked: Future[Response | Refusal] = Future()
            self._open[asked] = one.episode
            # A thread that waits for a server does not keep the process from its end.
            Thread(target=self._ask, args=(asked, one), name="remote", daemon=True).start()

    def advance(self) -> list[tuple[int, Sample | Refusal]]:
        """Wait for a response for a moment.

        Returns:
            Episode and response of the requests that are answered by now.

        Raises:
            ConnectionError: If the server cannot be reached.
            PermissionError: If it does not take the key.
            ValueError: If it does not know the model.
        """
        if not self._open:
            return []
        answered = wait(self._open, LOOK, return_when=FIRST_COMPLETED).done
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
        """Forget all requests."""
        self._open = {}

    def _ask(self, asked: "Future[Response | Refusal]", request: Request) -> None:
        try:
            asked.set_result(self._model.ask(request, self._sampling))
        except BaseException as error:
            asked.set_exception(error)

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
