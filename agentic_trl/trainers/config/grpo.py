"""Configuration of GRPO and its relatives: method, credit, ratio, loss, token weights, gradient scale."""

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from agentic_trl.methods import DEFAULTS, METHODS, credits_of, methods_of
from agentic_trl.number_ranges import NotNegative, Positive, Share, Width
from agentic_trl.old_names import KNOBS, accept_old_fields
from agentic_trl.trainers.config.checks import (
    check_names,
    check_reference,
    check_unused_knobs,
)
from agentic_trl.trainers.config.dry_runs import check_dry
from agentic_trl.trainers.config.explained import explained
from agentic_trl.trainers.config.flat_group_checks import check_flat_groups
from agentic_trl.trainers.config.kinds import check_kinds
from agentic_trl.trainers.config.ranges import check_ranges, knob
from agentic_trl.trainers.config.rollout import RolloutConfig
from agentic_trl.trainers.config.wrong_names import explain_wrong_names

_BY_METHOD = "None takes the method's value."


@dataclass
class AgenticGRPOConfig(RolloutConfig):
    """Configuration of ``AgenticGRPOTrainer``.

    TRL's fields keep TRL's meaning; batch sizes count episodes. With an environment, settings that
    would have no effect are refused. Without one the trainer is TRL's and so is every default.
    """

    HAS_CRITIC: ClassVar[bool] = False

    method: str = knob(
        "grpo", help=f"Paper whose knobs are set: {', '.join(methods_of(critic=False))}."
    )
    advantage: str | None = knob(
        None, help=f"Credit: {', '.join(credits_of(critic=False))}. {_BY_METHOD}"
    )
    scale_rewards: str | None = knob(
        None, help=f"Division by the group's standard deviation: 'group', 'none'. {_BY_METHOD}"
    )
    importance_sampling_level: str | None = knob(
        None, help=f"Level of the ratio: 'token', 'turn', 'sequence'. {_BY_METHOD}"
    )
    epsilon: Share | None = knob(None, help=f"Clip distance below 1, in [0, 1]. {_BY_METHOD}")
    epsilon_high: NotNegative | None = knob(
        None, help=f"Clip distance above 1; the same as epsilon if unset. {_BY_METHOD}"
    )
    loss_aggregation: str | None = knob(
        None,
        help="Mean over 'token's, over 'turn's of token means, or over 'trajectory's of token "
        f"means. {_BY_METHOD}",
    )
    per_device_eval_batch_size: Positive | None = knob(
        None,
        help="Episodes played together in evaluation; None takes the training's number, in whole groups.",
    )
    bf16: bool | None = knob(
        None, help="Train in bfloat16; None does so where there is an accelerator."
    )
    planpo_alpha_start: Share = knob(
        0.1, help="Weight of the response level at the start, in [0, 1] (alpha_init, eq. 8)."
    )
    planpo_alpha_end: Share = knob(
        0.05, help="Weight of the response level at the end, in [0, 1] (alpha_final, eq. 8)."
    )
    planpo_response_group: str = knob(
        "success", help="Responses compared in A^S: those of 'success'es, or all 'active' (eq. 4)."
    )
    gigpo_turn_weight: NotNegative = knob(
        1.0, help="Weight of the anchor-state advantage, 0 or more (w)."
    )
    token_weighting: str | None = knob(
        None, help=f"Weight of tokens in the surrogate: 'uniform', 'actfocus'. {_BY_METHOD}"
    )
    actfocus_alpha: Share = knob(0.3, help="Weight of reasoning tokens, in [0, 1] (alpha, eq. 6).")
    actfocus_beta: NotNegative = knob(
        1.0, help="Largest extra weight of an action token, 0 or more (beta, eq. 6)."
    )
    actfocus_renormalize: bool = knob(
        False, help="Divide the weights by their mean over the rollout batch."
    )
    clip_normalization: str | None = knob(
        None,
        help="SORL's scale of the gradient: 'none', 'relative' 1/(1+|C|/|g|), 'floor' "
        f"1/max(|C|, 1), 'paper' 1/|C|. {_BY_METHOD}",
    )
    sorl_norm: str = knob(
        "exact", help="Norm of the clipping bias: 'exact' second gradient, or logit-space 'proxy'."
    )
    turn_gamma: Share | None = knob(None, help=f"Discount per turn, in [0, 1]. {_BY_METHOD}")
    invalid_action_penalty: NotNegative = knob(
        0.0, help="Taken off the reward of a turn without an accepted action; not for PlanPO."
    )
    sampler_correction: str = knob(
        "auto",
        help="Factor policy / sampler on the surrogate: 'none', or bounded 'token_truncate', 'token_mask', 'sequence_truncate', "
        "'sequence_mask'. 'auto': none; with vLLM what vllm_importance_sampling_* say; with max_staleness 'token_truncate'.",
    )
    sampler_correction_min: NotNegative | None = knob(
        None, help="Lower bound of the correction's ratio; None for none."
    )
    sampler_correction_max: Width | None = knob(
        None,
        help="Upper bound of the correction's ratio; None takes that of vllm_importance_sampling_* where they say the correction, "
        "or else 2.0.",
    )
    old_logprobs: str = knob(
        "auto",
        help="Old log-probabilities of the ratio: the policy's at the start of the update ('recomputed'), or the 'sampler's. 'auto': "
        "recomputed with vLLM, max_staleness or a correction, else the sampler's where they are exact.",
    )
    max_tokens_per_microbatch: Positive = knob(
        8192, help="Padded tokens of a forward and backward pass; bounds the memory."
    )
    share_prefixes: bool = knob(
        False,
        help="Compute the common beginning of rows once in the update; needs attention 'sdpa', no critic.",
    )
    flat_groups: str = knob(
        "keep",
        help="Groups whose advantages are all 0: 'keep' them, 'drop' their rows (all rows without advantage) from forward "
        "and backward passes, or 'refill': play them anew with other tasks, then drop what is still flat.",
    )
    max_refills: Positive | None = knob(
        None,
        help="Groups of a generation that flat_groups='refill' plays anew at most; None for as many as it has.",
    )
    on_nonfinite_gradient: str = knob(
        "stop",
        help="Effect of a NaN or infinite gradient: 'stop' the run, 'skip' the optimizer step.",
    )

    def __post_init__(self) -> None:
        """Resolve the method and check the values.

        Raises:
            ValueError: If a number is out of range, a name unknown, or a knob without effect is set.
        """
        check_kinds(self)
        check_ranges(self)
        check_names(self)
        check_unused_knobs(self)
        self._resolve_method()
        check_reference(self)
        check_flat_groups(self)
        if self.rollout_engine == "vllm":
            self.use_vllm = True
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = self._held_out_batch()
        if self.bf16 is None and not torch.accelerator.is_available():
            self.bf16 = False  # TRL's default needs an accelerator
        with warnings.catch_warnings(), explained():
            # TRL itself sets the old name.
            warnings.filterwarnings("ignore", message="`gradient_checkpointing` is deprecated")
            super().__post_init__()
        check_dry(self)

    def resolved(self, name: str) -> Any:
        """Return a knob's value: the user's, the method's, or the default."""
        value = getattr(self, name)
        return METHODS[self.method].settings.get(name, DEFAULTS[name]) if value is None else value

    def _held_out_batch(self) -> int:
        """Return the training's number of episodes; where TRL counts the groups of held-out ones, whole groups."""
        size: int = self.per_device_train_batch_size
        if self.eval_strategy == "no":
            return size
        group: int = self.num_generations_eval or self.num_generations
        return -(-size // group) * group

    def _resolve_method(self) -> None:
        for name in DEFAULTS.keys() & {one.name for one in dataclasses.fields(self)}:
            setattr(self, name, self.resolved(name))


explain_wrong_names(AgenticGRPOConfig)
accept_old_fields(AgenticGRPOConfig, KNOBS)
