"""SORL in a trainer (SO-GRPO, SO-PPO): the norm of the clipping bias over an optimizer step scales its gradient.

Per micro-batch with clipped tokens a second gradient is taken (mode "exact") or a closed form of the
log-probabilities is summed (mode "proxy"); over the micro-batches and ranks of an optimizer step they add
up, and the policy's gradient is scaled once, before gradient-norm clipping. Nothing clipped anywhere:
nothing is computed and the gradient is untouched.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float
from torch import Tensor, nn

from agentic_trl.algorithms.sorl import (
    Mode,
    clipping_bias_surrogate,
    gradient_scale,
    is_clipped,
)
from agentic_trl.ops.ratio import Level, log_ratio
from agentic_trl.trainers.config.arguments import loss_arguments
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.types import LossInputs

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ClippingNormalizer:
    """Collects the clipping bias of an optimizer step and scales its gradient."""

    parameters: Sequence[nn.Parameter]
    """The policy's trained parameters."""
    level: Level
    """Level of the importance ratio."""
    clip_low: float
    """Distance of the lower clip bound from 1."""
    clip_high: float
    """Distance of the upper clip bound from 1."""
    mode: Mode
    """The rule by which the norm becomes a scale."""
    proxy: bool
    """Whether norms are those of the closed-form gradient with respect to the logits."""
    ever_clipped: bool = field(init=False, default=False)
    """Whether any token of any optimizer step so far was clipped, on any rank."""
    _bias: list[Tensor | None] = field(init=False)
    _squares: Float[Tensor, " norm"] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._bias = [None] * len(self.parameters)

    def add(self, inputs: LossInputs) -> None:
        """Add a micro-batch, between its forward and its backward.

        Args:
            inputs: What the policy loss was computed from, with its graph.
        """
        ignored = inputs.turn_of_token < 0
        ratio = log_ratio(
            inputs.logprob, inputs.old_logprob, inputs.turn_of_token, level=self.level
        ).exp()
        advantage = (inputs.token_advantage * inputs.token_share).masked_fill(ignored, 0.0)
        for factor in (inputs.token_weight, inputs.correction):
            if factor is not None:
                advantage = advantage * factor.masked_fill(ignored, 0.0)
        clipped = is_clipped(
            ratio.detach(), advantage, clip_low=self.clip_low, clip_high=self.clip_high
        )
        if self.proxy:
            self._add_proxy(inputs, ratio.detach() * advantage / inputs.denominator, clipped)
        elif bool(clipped.any()):
            bias = clipping_bias_surrogate(
                ratio, advantage, clipped, denominator=inputs.denominator
            )
            gradients = torch.autograd.grad(
                bias, self.parameters, retain_graph=True, allow_unused=True
            )
            for index, (sums, gradient) in enumerate(zip(self._bias, gradients, strict=True)):
                if gradient is not None:
                    self._bias[index] = gradient if sums is None else sums.add_(gradient)

    def _add_proxy(
        self,
        inputs: LossInputs,
        coefficient: Float[Tensor, "row token"],
        clipped: Bool[Tensor, "row token"],
    ) -> None:
        """Add squared norms of the gradient at the logits: a token gives ``c (1 - p)``."""
        ignored = inputs.turn_of_token < 0
        probability = inputs.logprob.detach().masked_fill(ignored, 0.0).exp()
        parts = (coefficient * (1 - probability)).square()
        squares = torch.stack([parts[clipped].sum(), parts[~clipped & ~ignored].sum()])
        self._squares = squares if self._squares is None else self._squares + squares

    def finish(self, accelerator: Accelerator) -> dict[str, float]:
        """Scale the reduced gradient of the optimizer step and forget it.

        Returns:
            ``bias_norm``, ``gradient_norm`` and ``scale`` for the log.
        """
        bias_norm, gradient_norm = (
            self._proxy_norms(accelerator) if self.proxy else self._exact_norms(accelerator)
        )
        self.ever_clipped |= bias_norm > 0
        scale = gradient_scale(bias_norm, gradient_norm, mode=self.mode)
        if scale != 1.0:
            torch._foreach_mul_(_gradients(self.parameters), scale)
        self._bias, self._squares = [None] * len(self.parameters), None
        return {"bias_norm": bias_norm, "gradient_norm": gradient_norm, "scale": scale}

    def _proxy_norms(self, accelerator: Accelerator) -> tuple[float, float]:
        squares = torch.zeros(2) if self._squares is None else self._squares
        reduced = accelerator.reduce(squares.to(accelerator.device), reduction="sum")
        bias, gradient = reduced.sqrt().tolist()
        return bias, gradient

    def _exact_norms(self, accelerator: Accelerator) -> tuple[float, float]:
        gradient_norm = _norm(_gradients(self.parameters))
        found = any(sums is not None for sums in self._bias)
        flag = torch.tensor(float(found), device=accelerator.device)
        if accelerator.reduce(flag, reduction="sum").item() == 0:
            return 0.0, gradient_norm
        reduced = [
            accelerator.reduce(torch.zeros_like(p) if sums is None else sums, reduction="sum")
            for p, sums in zip(self.parameters, self._bias, strict=True)
        ]
        return _norm(reduced), gradient_norm

    def warn_if_idle(self) -> None:
        """Say at the end of a run that nothing was ever clipped."""
        if not self.ever_clipped:
            logger.warning(
                "clip_normalization=%r never acted: no token was clipped in the whole run. Make several updates a "
                "rollout (num_iterations), or lower epsilon: a turn's ratio moves far less than a token's.",
                self.mode,
            )


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _norm(tensors: Sequence[Tensor]) -> float:
    if not tensors:
        return 0.0
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(list(tensors))])
    return float(norms.norm().item())


def normalizer_of(
    config: AgenticGRPOConfig, parameters: Sequence[nn.Parameter]
) -> ClippingNormalizer | None:
    """Return SORL's normaliser, ``None`` if it is switched off."""
    if config.clip_normalization == "none":
        return None
    loss = loss_arguments(config)
    knobs: dict[str, Any] = {name: loss[name] for name in ("level", "clip_low", "clip_high")}
    return ClippingNormalizer(
        parameters=parameters,
        mode=config.clip_normalization,  # type: ignore[arg-type]
        proxy=config.sorl_norm == "proxy",
        **knobs,
    )
