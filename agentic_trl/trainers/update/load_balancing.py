"""The load-balancing loss of a mixture of experts, as a term of the policy's loss."""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from agentic_trl.types import LossOutput, TokenBatch


def with_balance(
    output: LossOutput,
    aux_loss: Float[Tensor, ""] | None,
    batch: TokenBatch,
    *,
    coefficient: float,
    denominator: float,
) -> LossOutput:
    """Add the load-balancing loss of a micro-batch, weighted by its share of the optimizer step.

    Args:
        output: The loss of the micro-batch without it.
        aux_loss: Load-balancing loss over the micro-batch's tokens; ``None`` if the model has none.
        batch: The micro-batch.
        coefficient: ``router_aux_loss_coef``.
        denominator: Units of the loss in the whole optimizer step, all ranks.

    Returns:
        The loss with the term, so that micro-batches add up to ``coefficient`` times their mean by units.

    Source:
        Fedus et al., Switch Transformers, arXiv 2101.03961v3, eqs. 4-6; added to the policy's loss as TRL does.
    """
    if aux_loss is None:
        return output
    share = batch.token_share.masked_fill(batch.turn_of_token < 0, 0.0).sum() / denominator
    metrics = {**output.metrics, "aux_loss": (share * aux_loss).detach()}
    return replace(output, loss=output.loss + coefficient * share * aux_loss, metrics=metrics)
