"""Sampling with vLLM: token ids in, token ids and log-probabilities out.

Requests of a rank become prompts, and the outputs of a *backend*, vLLM in this process or on a server, become
samples. Each prompt has its own budget and seed. An output carries the rank and the episode of its prompt, so
that none can reach another episode, however many ranks ask and however unevenly.

- In this process, one GPU a model: each rank has its backend and asks alone.
- In this process, tensor parallel: the ranks of a group step the same engine together, so all of them ask the
  prompts of all of them, in the same order.
- On a server: the first rank asks for all and tells everyone the outputs.

A response ends as with the transformers engine: by one of the same ids, which is part of it, by a stop
string, or by the budget. vLLM draws by itself: instead of the uniform numbers a request has a seed made from
the first of them. Log-probabilities are those of the policy at the sampling temperature; see
``trainers/model/vllm.py`` for when vLLM can give them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import distributed
from transformers import StoppingCriteria

from agentic_trl.rollout.engines.base import Request, Sample, Sampling

SEED_BITS = 53
"""Bits of a uniform number in double precision, and so of a request's seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request on its way to vLLM."""

    rank: int
    """Rank that asks."""
    episode: int
    """Episode of that rank."""
    ids: tuple[int, ...]
    """The context."""
    limit: int
    """Most tokens of the response."""
    seed: int
    """Seed of the sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A response of vLLM."""

    rank: int
    """Rank that asked."""
    episode: int
    """Episode of that rank."""
    ids: tuple[int, ...]
    """The sampled ids."""
    logprobs: tuple[float, ...]
    """Log-probability of each, nats."""


@runtime_checkable
class Backend(Protocol):
    """Samples prompts with vLLM."""

    def ask(self, prompts: Sequence[Prompt]) -> None:
        """Take prompts in."""
        ...

    def outputs(self) -> list[Output]:
        """Return at least one output, unless no prompt is open."""
        ...

    def clear(self) -> None:
        """Drop open prompts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Ranks that ask a backend together; by default this process alone."""

    rank: int = 0
    """Number of this rank in the group."""
    together: bool = False
    """Whether a group asks together."""
    group: Any = None
    """Process group; ``None`` for all ranks."""
    first_asks: bool = False
    """Whether the group's first rank alone has a backend; otherwise each has one, all in step."""

    def gather(self, prompts: list[Prompt]) -> list[Prompt]:
        """Return the prompts for the backends of this group, in order of rank."""
        if not self.together:
            return prompts
        parts: list[Any] = [None] * distributed.get_world_size(self.group)
        distributed.all_gather_object(parts, prompts, group=self.group)
        return [prompt for part in parts for prompt in part]

    def share(self, outcome: list[Output] | str | None) -> list[Output]:
        """Return the outputs of the backend, wherever it is.

        Args:
            outcome: What this rank's backend gave, or how it failed; ``None`` without a backend.

        Raises:
            RuntimeError: On every rank, if the backend failed.
        """
        if self.first_asks:
            box = [outcome]
            distributed.broadcast_object_list(box, group=self.group, group_src=0)
            outcome = box[0]
        if not isinstance(outcome, list):
            raise RuntimeError(f"vLLM failed: {outcome}")
        return outcome


class VLLMEngine:
    """Samples responses with vLLM; see ``Engine``."""

    def __init__(
        self,
        backend: Backend | None,
        *,
        stop_ids: frozenset[int],
        stop_text: StoppingCriteria | None = None,
        ranks: Ranks | None = None,
        slots: int | None = None,
    ) -> None:
        """Put the engine in front of a backend.

        Args:
            backend: Samples; ``None`` on a rank whose group's first rank asks.
            stop_ids: Token ids that end a response.
            stop_text: Ends a response by its text, besides the ids.
            ranks: Ranks that ask together; ``None`` for this rank alone.
            slots: Episodes in flight at a time; ``None`` for any number.
        """
        self._backend = backend
        self._stop_ids = stop_ids
        self._stop_text = stop_text
        self._ranks = ranks or Ranks()
        self._waiting: list[Request] = []
        self._limits: dict[int, int] = {}
        self.slots = slots
        self.collective = self._ranks.together

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests in; see ``Engine.submit``."""
        self._waiting += requests

    def advance(self) -> list[tuple[int, Sample]]:
        """Ask the waiting requests, and wait for the next outputs of any rank; see ``Engine.advance``.

        Returns:
            Episode and response of the requests of this rank that are finished.
        """
        waiting, self._waiting = self._waiting, []
        self._limits.update({one.episode: one.max_new_tokens for one in waiting})
        prompts = self._ranks.gather([self._prompt(one) for one in waiting])
        outcome = None if self._backend is None else self._sample(self._backend, prompts)
        outputs = self._ranks.share(outcome)
        mine = [one for one in outputs if one.rank == self._ranks.rank]
        return [(one.episode, self._read(one)) for one in mine]

    def release(self, episode: int) -> None:
        """Do nothing: vLLM drops the cache of a prefix by itself."""

    def finish(self) -> None:
        """Drop all requests."""
        self._waiting, self._limits = [], {}
        if self._backend is not None:
            self._backend.clear()

    def _prompt(self, request: Request) -> Prompt:
        return Prompt(
            rank=self._ranks.rank,
            episode=request.episode,
            ids=request.context_ids,
            limit=request.max_new_tokens,
            seed=int(request.uniforms[0] * 2**SEED_BITS),
        )

    def _sample(self, backend: Backend, prompts: list[Prompt]) -> list[Output] | str:
        """Ask the backend; a failure that other ranks wait behind is returned, not raised."""
        try:
            backend.ask(prompts)
            return backend.outputs()
        except Exception as error:
            if not self._ranks.first_asks:
                raise
            return f"{type(error).__name__}: {error}"

    def _read(self, output: Output) -> Sample:
        """Return an output as a sample.

        Raises:
            FloatingPointError: If vLLM gave no finite log-probability.
        """
        if not all(math.isfinite(one) for one in output.logprobs):
            raise FloatingPointError(
                f"vLLM gave the log-probabilities {output.logprobs} for sampled tokens, expected finite numbers: "
                "its logits overflow. Use bfloat16 or float32 for the model, or check its weights."
            )
        limit = self._limits.pop(output.episode)
        ended = output.ids[-1] in self._stop_ids
        if not ended and self._stop_text is not None:
            ids = torch.tensor([output.ids])
            ended = len(output.ids) < limit or bool(self._stop_text(ids, torch.empty(0)).all())
        return Sample(ids=output.ids, logprobs=output.logprobs, truncated=not ended)


def sampling_arguments(
    sampling: Sampling, *, stop_ids: frozenset[int], stop_strings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return vLLM's sampling parameters, all but the budget and the seed of a request.

    Args:
        sampling: How tokens are drawn.
        stop_ids: Token ids that end a response; vLLM's own ones are switched off.
        stop_strings: Texts that end a response.
    """
    arguments = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "logprobs": 0,  # of the sampled token alone
        "ignore_eos": True,
        "stop_token_ids": sorted(stop_ids),
    }
    if stop_strings:
        arguments |= {"stop": list(stop_strings), "skip_special_tokens": False}
    return arguments
