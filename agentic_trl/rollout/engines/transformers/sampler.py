"""The sampler: the next token of each response, with the library's own logits processors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from agentic_trl.rollout.engines.base import Sampling


class Sampler:
    """Draws tokens by inverting the distribution function at given uniform numbers."""

    def __init__(self, sampling: Sampling) -> None:
        """Set up the processors."""
        self._temperature = sampling.temperature
        self._warpers = _warpers(sampling)

    def draw(
        self,
        logits: Float[Tensor, "response vocab"],
        uniforms: np.ndarray,
        contexts: Sequence[Sequence[int]],
    ) -> tuple[Int[Tensor, " response"], Float[Tensor, " response"]]:
        """Draw a token for each response.

        Args:
            logits: Of the next token.
            uniforms: A number in [0, 1) for each response.
            contexts: All ids before the token, which a repetition penalty looks at.

        Returns:
            The tokens, and their log-probabilities before any truncation, nats.
        """
        scores = logits / (self._temperature or 1.0)
        logprob = torch.log_softmax(scores, dim=-1)
        if self._warpers:
            scores = self._warpers(_padded(contexts, logits.device), scores)
        if self._temperature == 0:
            tokens = scores.argmax(-1)
        else:
            cdf = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
            target = torch.from_numpy(uniforms).to(cdf)[:, None] * cdf[:, -1:]
            tokens = torch.searchsorted(cdf, target, right=True)[:, 0]
            tokens = tokens.clamp(max=cdf.shape[-1] - 1)
        return tokens, logprob.gather(1, tokens[:, None])[:, 0]


def _padded(contexts: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "row id"]:
    """Return contexts of one width; their own first id fills the front, which penalises nothing new."""
    width = max(len(row) for row in contexts)
    rows = [[row[0]] * (width - len(row)) + list(row) for row in contexts]
    return torch.tensor(rows, device=device)


def _warpers(sampling: Sampling) -> LogitsProcessorList:
    """The library's processors for what the sampling settings truncate, in its own order."""
    chosen: list[Any] = []
    if sampling.repetition_penalty != 1.0:
        chosen.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.top_k:
        chosen.append(TopKLogitsWarper(int(sampling.top_k)))
    if sampling.top_p < 1.0:
        chosen.append(TopPLogitsWarper(float(sampling.top_p)))
    if sampling.min_p:
        chosen.append(MinPLogitsWarper(float(sampling.min_p)))
    return LogitsProcessorList(chosen)
