"""The host: the trainer as its parts see it, the attributes of TRL's object and those that the trainers add.

Parts take a ``Host`` and not a trainer's class, so that what they may touch is written down in one place.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from accelerate import Accelerator
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerState

from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.types import Trajectory, TurnTable

if TYPE_CHECKING:
    from agentic_trl.batching import EpisodeSet, Row
    from agentic_trl.rollout.manager import RolloutManager
    from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
    from agentic_trl.trainers.model.output_layer import HeadUse
    from agentic_trl.trainers.run.ahead import Ahead
    from agentic_trl.trainers.run.success_threshold import ThresholdWatch
    from agentic_trl.trainers.update.critic import Critic
    from agentic_trl.trainers.update.loss import StepSums
    from agentic_trl.trainers.update.signals import SignalWatch
    from agentic_trl.trainers.update.sorl import ClippingNormalizer

Model: TypeAlias = PreTrainedModel | PeftModel
"""A model of transformers, with or without adapters, and what Accelerate makes of it."""


class Host(Protocol):
    """A trainer with an environment."""

    HAS_CRITIC: ClassVar[bool]

    # Of TRL and transformers
    args: "AgenticGRPOConfig"
    accelerator: Accelerator
    state: TrainerState
    model: Model
    model_wrapped: Model
    ref_model: Model | None
    temperature: float
    beta: float
    num_generations: int
    num_generations_eval: int
    num_iterations: int
    is_in_train: bool
    train_dataset: Any
    eval_dataset: Any
    environments: list[Any] | None
    reward_funcs: list[Any]
    reward_func_names: list[str]
    reward_weights: Tensor
    aux_loss_enabled: bool
    router_aux_loss_coef: float
    eos_token_ids: Sequence[int]
    processing_class: Any
    callback_handler: Any
    vllm_generation: Any
    _tokenizer: PreTrainedTokenizerBase
    _name: str
    _paper: dict[str, str]
    _tag_names: list[str]
    _step: int
    _metrics: dict[str, Any]
    _logs: dict[str, Any]
    _pending_extra_logs: dict[str, Any]
    _pending_metrics: dict[str, Any]
    _total_train_tokens: float
    _tr_loss: Tensor
    _globalstep_last_logged: int

    # Of this package
    rollouts: "RolloutManager | None"
    ahead: "Ahead | None"
    replaced: dict[int, Trajectory]
    buffered_sets: "list[EpisodeSet] | None"
    advantage_function: Callable[[TurnTable], Float[Tensor, " turn"]] | None
    head: "HeadUse"
    signals: "SignalWatch"
    threshold_watch: "ThresholdWatch"
    normalizer: "ClippingNormalizer | None"
    critic: "Critic"
    step_sums: "StepSums"
    fingerprint: dict[str, str]
    probed: bool
    saw_first_kl: bool
    repeated: RepeatedWarnings
    rollout_seconds: float

    play: Callable[..., list[Trajectory]]
    compute_loss: Callable[..., Tensor]
    compute_loss_context_manager: Callable[[], AbstractContextManager[Any]]
    add_callback: Callable[[TrainerCallback], None]
    _get_train_sampler: Callable[..., Any]
    _calculate_rewards: Callable[..., Float[Tensor, "trajectory function"]]
    trained_parameters: Callable[[], Iterator[nn.Parameter]]
    assign_credit: "Callable[[Sequence[Trajectory], Sequence[Row]], list[Row]]"


if not TYPE_CHECKING:
    Host = object  # a check at run time takes any trainer, and what stands for one in a test
