"""Configuration of the trainers: TRL's, plus what agents over many turns need."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from trl import GRPOConfig

from agentic_trl.trainers.fields import refused_settings
from agentic_trl.trainers.methods import DEFAULTS, KNOBS_OF_ADVANTAGE, METHODS

_BY_METHOD = "None takes the method's value."


@dataclass
class AgenticGRPOConfig(GRPOConfig):
    """Configuration of ``AgenticGRPOTrainer``.

    TRL's fields keep TRL's meaning; batch sizes count episodes. With an environment, settings that
    would have no effect are refused. Without one the trainer is TRL's and so is every default.
    """

    method: str = field(
        default="grpo",
        metadata={"help": f"Paper whose knobs are set: {', '.join(METHODS)}."},
    )
    advantage: str | None = field(
        default=None,
        metadata={"help": f"Credit: 'grpo', 'planpo' or 'gigpo'. {_BY_METHOD}"},
    )
    scale_rewards: str | bool | None = field(
        default=None,
        metadata={
            "help": f"Division by the group's standard deviation: 'group', 'none'. {_BY_METHOD}"
        },
    )
    importance_sampling_level: str | None = field(
        default=None,
        metadata={"help": f"Level of the ratio: 'token', 'turn', 'sequence'. {_BY_METHOD}"},
    )
    epsilon: float | None = field(
        default=None, metadata={"help": f"Clip distance below 1, in [0, 1]. {_BY_METHOD}"}
    )
    epsilon_high: float | None = field(
        default=None,
        metadata={"help": f"Clip distance above 1; the same as epsilon if unset. {_BY_METHOD}"},
    )
    loss_aggregation: str | None = field(
        default=None,
        metadata={
            "help": "Mean over 'token's, over 'turn's of token means, or over 'trajectory's of token "
            f"means. {_BY_METHOD}"
        },
    )
    per_device_eval_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Episodes played together in evaluation; None takes the training's number."
        },
    )
    bf16: bool | None = field(
        default=None,
        metadata={"help": "Train in bfloat16; None does so where there is an accelerator."},
    )
    planpo_alpha_start: float = field(
        default=0.1,
        metadata={"help": "Weight of the response level at step 0, in [0, 1] (alpha_init, eq. 8)."},
    )
    planpo_alpha_end: float = field(
        default=0.05,
        metadata={
            "help": "Weight of the response level at the end, in [0, 1] (alpha_final, eq. 8)."
        },
    )
    planpo_response_group: str = field(
        default="success",
        metadata={
            "help": "Responses compared in A^S: those of 'success'es, or all 'active' (eq. 4)."
        },
    )
    gigpo_step_weight: float = field(
        default=1.0, metadata={"help": "Weight of the anchor-state advantage (w)."}
    )
    step_gamma: float | None = field(
        default=None, metadata={"help": f"Discount per turn, in [0, 1]. {_BY_METHOD}"}
    )
    invalid_action_penalty: float = field(
        default=0.0,
        metadata={
            "help": "Taken off the reward of a turn without an accepted action; not for PlanPO."
        },
    )
    environment_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments that the environment is built with."}
    )
    num_train_tasks: int = field(
        default=512, metadata={"help": "Tasks made for training when no dataset is given."}
    )
    num_eval_tasks: int = field(
        default=64,
        metadata={"help": "Held-out tasks made for evaluation when no dataset is given."},
    )
    max_turns: int | None = field(
        default=None, metadata={"help": "Turns of an episode; None takes the environment's number."}
    )
    max_tokens_per_turn: int | None = field(
        default=None,
        metadata={"help": "Sampled tokens of an answer; None takes max_completion_length."},
    )
    max_tokens_per_trajectory: int | None = field(
        default=None, metadata={"help": "Sampled tokens of an episode; None for no limit."}
    )
    max_context_tokens: int | None = field(
        default=None,
        metadata={"help": "Prompt and answer together; None takes what the model's config allows."},
    )
    history: str = field(
        default="full",
        metadata={"help": "What a prompt shows: the 'full' conversation, or a 'window' of it."},
    )
    history_window: int | None = field(
        default=None,
        metadata={
            "help": "Past turns that history='window' shows besides the current observation."
        },
    )
    max_tokens_per_microbatch: int = field(
        default=8192,
        metadata={"help": "Padded tokens of a forward and backward pass; bounds the memory."},
    )
    eval_temperature: float | None = field(
        default=None,
        metadata={"help": "Temperature of evaluation; 0 is greedy, None the training temperature."},
    )

    max_failed_fraction: float = field(
        default=0.5,
        metadata={"help": "Share of failed environments in a batch above which the run stops."},
    )
    log_trajectories: bool = field(
        default=True,
        metadata={
            "help": "Write one generation per logging_steps to output_dir/trajectories as JSON lines."
        },
    )
    on_nonfinite_gradient: str = field(
        default="stop",
        metadata={"help": "What a NaN or infinite gradient does: 'stop' the run, 'skip' the step."},
    )

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "environment_kwargs",
    ]

    def __post_init__(self) -> None:
        """Resolve the method and check the values.

        Raises:
            ValueError: If a name is unknown, a number out of range, or a knob without effect is set.
        """
        self._check_names()
        self._check_unused_knobs()
        self._resolve_method()
        self._check_ranges()
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = self.per_device_train_batch_size
        if self.bf16 is None and not torch.accelerator.is_available():
            self.bf16 = False  # TRL's default needs an accelerator
        super().__post_init__()

    def check_environment_run(self) -> None:
        """Refuse what a run with an environment would ignore.

        Raises:
            ValueError: If a setting of TRL without effect is set, or batches cannot be split.
        """
        problems = refused_settings(self, dataclasses.fields(GRPOConfig))
        if self.scale_rewards not in {"group", "none"}:
            problems.append(f"scale_rewards={self.scale_rewards!r}: expected 'group' or 'none'.")
        if self.steps_per_generation % self.gradient_accumulation_steps:
            problems.append(
                f"steps_per_generation={self.steps_per_generation} is not a multiple of "
                f"gradient_accumulation_steps={self.gradient_accumulation_steps}: the count that the "
                "loss is divided by would not be known at the first backward. Make it a multiple."
            )
        if problems:
            raise ValueError("\n".join(["This run cannot start:", *problems]))

    def check_plain_run(self) -> None:
        """Refuse what a run without an environment would ignore.

        Raises:
            ValueError: If a knob of agents is set.
        """
        own = {f.name for f in dataclasses.fields(AgenticGRPOConfig)}
        own -= {f.name for f in dataclasses.fields(GRPOConfig)}
        resolved = set(DEFAULTS)
        plain = {f.name: f.default for f in dataclasses.fields(AgenticGRPOConfig)}
        set_knobs = sorted(k for k in own - resolved if getattr(self, k) != plain[k])
        set_knobs += [k for k in own & resolved if getattr(self, k) != DEFAULTS[k]]
        if set_knobs:
            raise ValueError(
                f"Got {', '.join(set_knobs)} without an environment, expected an environment: these act on "
                "episodes. Pass `environment=...` to the trainer, or leave them at their defaults."
            )

    def _check_names(self) -> None:
        choices = {
            "method": tuple(METHODS),
            "advantage": ("grpo", "planpo", "gigpo", None),
            "importance_sampling_level": ("token", "turn", "sequence", None),
            "loss_aggregation": ("token", "turn", "trajectory", None),
            "planpo_response_group": ("success", "active"),
            "history": ("full", "window"),
            "on_nonfinite_gradient": ("stop", "skip"),
        }
        for name, legal in choices.items():
            value = getattr(self, name)
            if value not in legal:
                names = ", ".join(repr(one) for one in legal if one is not None)
                raise ValueError(f"{name}: got {value!r}, expected one of {names}.")

    def _check_unused_knobs(self) -> None:
        advantage = self.advantage or METHODS[self.method].get("advantage", DEFAULTS["advantage"])
        plain = {f.name: f.default for f in dataclasses.fields(self)}
        for name, readers in KNOBS_OF_ADVANTAGE.items():
            unset = (plain[name], DEFAULTS.get(name))
            if getattr(self, name) not in unset and advantage not in readers:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is read by advantage={' or '.join(readers)} only, got "
                    f"advantage={advantage!r}. Leave it at its default, or change the advantage."
                )
        if self.history_window is not None and self.history != "window":
            raise ValueError(
                f"history_window={self.history_window} is read by history='window' only, got "
                f"history={self.history!r}. Set history='window' or leave it unset."
            )
        if self.invalid_action_penalty and advantage == "planpo":
            raise ValueError(
                f"invalid_action_penalty={self.invalid_action_penalty}: PlanPO divides the outcome by the "
                "number of turns, which a penalty would distort, and its paper has none. Set it to 0, or "
                "choose another advantage."
            )

    def _resolve_method(self) -> None:
        for name, default in DEFAULTS.items():
            if getattr(self, name) is None:
                setattr(self, name, METHODS[self.method].get(name, default))

    def _check_ranges(self) -> None:
        positive = (
            "num_train_tasks",
            "num_eval_tasks",
            "max_turns",
            "max_tokens_per_turn",
            "max_tokens_per_trajectory",
            "max_context_tokens",
            "max_tokens_per_microbatch",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1.")
        unit = ("planpo_alpha_start", "planpo_alpha_end", "step_gamma", "epsilon")
        for name in (*unit, "max_failed_fraction"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: got {value}, expected a number in [0, 1].")
        for name in ("invalid_action_penalty", "history_window", "eval_temperature"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}: got {value}, expected 0 or more.")
