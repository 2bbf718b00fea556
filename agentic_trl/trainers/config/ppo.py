"""Configuration of the trainers with a critic (PPO, SO-PPO, StepPO, ACTFOCUS-PPO): learning rate, GAE, whitening."""

from dataclasses import dataclass
from typing import Any, ClassVar

from agentic_trl.number_ranges import Count, NotNegative, Positive, Share, Width
from agentic_trl.old_names import KNOBS, accept_old_fields
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.config.kinds import check_kinds
from agentic_trl.trainers.config.ranges import check_ranges, knob
from agentic_trl.trainers.config.wrong_names import explain_wrong_names


@dataclass
class PPOConfig(AgenticGRPOConfig):
    """Configuration of ``PPOTrainer``: that of ``AgenticGRPOConfig`` and what the critic adds.

    A critic takes the place of the group, so one episode a task (``num_generations=1``) is the default.
    """

    HAS_CRITIC: ClassVar[bool] = True

    method: str = knob("ppo", help="Paper whose knobs are set: ppo, so-ppo, steppo, actfocus-ppo.")
    num_generations: Positive = knob(
        1, help="Episodes of a task in a generation batch, at least 1."
    )
    critic_learning_rate: NotNegative = knob(
        1e-5, help="Peak learning rate of the critic; the schedule is the policy's."
    )
    critic_warmup_steps: Count = knob(
        0, help="Optimizer steps at the start in which only the critic learns."
    )
    cliprange_value: Width = knob(
        0.5, help="Range in which a value moves at full effect, reward units."
    )
    token_gamma: Share = knob(1.0, help="Discount per token of token_gae, in [0, 1].")
    token_lambda: Share = knob(1.0, help="Trace decay per token of token_gae, in [0, 1].")
    turn_lambda: Share = knob(1.0, help="Trace decay per turn of step_gae, in [0, 1].")
    turn_credit: str | None = knob(
        None,
        help="'token': each token its own advantage; 'mean': the mean of the turn's, SORL lemma "
        "4.1. None takes the method's value.",
    )
    whiten_advantages: bool = knob(
        True, help="Subtract the batch's mean, divide by its standard deviation."
    )
    bootstrap_truncated: bool = knob(
        False, help="Value the final observation of an episode that was cut, instead of 0."
    )

    def __post_init__(self) -> None:
        """Let one episode a task pass TRL's check of groups, which wants two.

        Raises:
            ValueError: If a number is out of range, or prefixes are to be shared, which a critic does not.
        """
        check_kinds(self)
        check_ranges(self)
        if self.share_prefixes:
            raise ValueError(
                "share_prefixes=True: got a trainer with a critic, expected one without: critics read whole rows. "
                "Leave it at False, on a command line --no_share_prefixes."
            )
        given: Any = self
        single = given.num_generations == 1
        if single:
            if given.per_device_eval_batch_size is None:
                given.per_device_eval_batch_size = given.per_device_train_batch_size
            given.num_generations_eval = given.num_generations_eval or 1
            given.num_generations = 2
            given.per_device_train_batch_size *= 2
            if given.generation_batch_size is not None:
                given.generation_batch_size *= 2
        super().__post_init__()
        if single:
            given.num_generations = 1
            given.per_device_train_batch_size //= 2
            given.generation_batch_size //= 2


@dataclass
class AgenticPPOConfig(PPOConfig):
    """Configuration of ``AgenticPPOTrainer``."""


explain_wrong_names(PPOConfig)
explain_wrong_names(AgenticPPOConfig)
accept_old_fields(PPOConfig, KNOBS)
accept_old_fields(AgenticPPOConfig, KNOBS)
