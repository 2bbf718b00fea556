"""Configuration of rollouts: limits, history, sampling, engine, environments."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trl import GRPOConfig

from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.trainers.config.ranges import Count, NotNegative, Positive, Seconds, Share
from agentic_trl.user_values import as_texts


@dataclass
class RolloutConfig(GRPOConfig):
    """TRL's configuration, and what the playing of episodes needs beside it."""

    environment_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments that the environment is built with."}
    )
    num_train_tasks: Positive = field(
        default=512, metadata={"help": "Tasks made for training when no dataset is given."}
    )
    num_eval_tasks: Positive = field(
        default=64,
        metadata={"help": "Held-out tasks made for evaluation when no dataset is given."},
    )
    max_turns: Positive | None = field(
        default=None, metadata={"help": "Turns of an episode; None takes the environment's number."}
    )
    max_tokens_per_turn: Positive | None = field(
        default=None,
        metadata={"help": "Sampled tokens of a response; None takes max_completion_length."},
    )
    max_tokens_per_trajectory: Positive | None = field(
        default=None, metadata={"help": "Sampled tokens of an episode; None for no limit."}
    )
    max_context_tokens: Positive | None = field(
        default=None,
        metadata={
            "help": "Prompt and response together; None takes what the model's config allows."
        },
    )
    history: str = field(
        default="full",
        metadata={
            "help": "Messages that a prompt shows: the 'full' conversation, a 'window' of it, or what a function makes "
            "of the messages so far ('module:function', or the function itself)."
        },
    )
    history_window: Count | None = field(
        default=None,
        metadata={
            "help": "Past turns that history='window' shows besides the current observation."
        },
    )
    stop_strings: list[str] | None = field(
        default=None,
        metadata={"help": "Texts that end a response early, such as '</search>'; one or a list."},
    )
    response_prefill: str = field(
        default="",
        metadata={
            "help": "Beginning of every response that the prompt already holds, such as '<think>'."
        },
    )
    eval_temperature: NotNegative | None = field(
        default=None,
        metadata={"help": "Temperature of evaluation; 0 is greedy, None the training temperature."},
    )
    success_threshold: float | None = field(
        default=None,
        metadata={
            "help": "Final score, reward functions included, from which an episode is a success, unless the environment "
            "says itself; None takes the environment's."
        },
    )
    rollout_engine: str = field(
        default="auto",
        metadata={
            "help": "Engine that samples: 'transformers', 'vllm', or 'auto': vllm if use_vllm is set."
        },
    )
    engine_slots: Positive | None = field(
        default=None,
        metadata={
            "help": "Episodes in flight at a time; the next starts when one ends. None for all."
        },
    )
    engine_max_cache_tokens: Positive | None = field(
        default=None,
        metadata={
            "help": "Tokens that the rollout's key-value cache holds at most, all episodes; None for no limit."
        },
    )
    engine_probe: bool = field(
        default=True,
        metadata={
            "help": "Check at the start that the model samples, scores and trains as a plain forward pass does."
        },
    )
    rollout_order: str = field(
        default="arrival",
        metadata={
            "help": "'arrival': an episode whose environment has answered joins the next pass; 'rounds': a pass waits for every environment "
            "in flight, so that runs with workers repeat bit for bit."
        },
    )
    env_workers: Count = field(
        default=0,
        metadata={
            "help": "Workers that reset and step environments; 0 does it in between, one by one."
        },
    )
    env_worker_kind: str = field(
        default="thread",
        metadata={"help": "'thread', or 'process' for environments that need a core or may crash."},
    )
    env_timeout: Seconds | None = field(
        default=None,
        metadata={
            "help": "Seconds that a reset or a step may take; needs env_workers. None for no limit."
        },
    )
    env_retries: Count = field(
        default=2,
        metadata={
            "help": "Times that a failed episode is played anew, in a fresh environment, before it is left out."
        },
    )
    max_failed_fraction: Share = field(
        default=0.5,
        metadata={
            "help": "Share of failed environments in a batch, or in an evaluation, above which the run stops."
        },
    )
    log_trajectories: bool = field(
        default=True,
        metadata={
            "help": "Write one generation per logging_steps to output_dir/trajectories as JSON lines."
        },
    )

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "environment_kwargs",
    ]

    def __post_init__(self) -> None:
        """Read one stop string as a list of one."""
        if self.stop_strings is not None:
            self.stop_strings = list(as_texts("stop_strings", self.stop_strings))
        super().__post_init__()

    @property
    def sampling(self) -> Sampling:
        """The settings by which tokens are drawn in training."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )
