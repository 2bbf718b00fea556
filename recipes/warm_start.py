"""Teaches a model an environment's actions from its oracle's episodes, before it is trained by reward.

    accelerate launch recipes/warm_start.py --config recipes/scienceworld/planpo-lora-smollm2-cpu.yaml \
        --model HuggingFaceTB/SmolLM2-135M-Instruct --output_dir outputs/scienceworld/warm-start

The recipe supplies the environment, its training tasks, history and limits, and the LoRA settings. The oracle
plays the first ``--episodes`` training tasks; the model learns the tokens of its successful answers with TRL's
``SFTTrainer`` and goes to ``output_dir``, an adapter merged into it. A weak model gets some successes this
way, without which there is no reward to learn from. Flags other than those of ``--help`` change the recipe.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, disable_progress_bars
from train import Parsed, UsageError, parse
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer, get_peft_config

from agentic_trl.assets import embedded
from agentic_trl.command_line import fail, find_user_modules, naming, prepare_folder
from agentic_trl.rollout.demonstrate import demonstrate, supervised_examples
from agentic_trl.trainers.config.arguments import rollout_settings
from agentic_trl.trainers.model.context_limit import context_limit
from agentic_trl.trainers.user_code.tasks import resolve_environments, task_dataset
from agentic_trl.types import Trajectory


def main() -> None:
    """Demonstrate and imitate; leave with code 2 and a sentence if the recipe or a flag is wrong."""
    options, flags = parser().parse_known_args()
    find_user_modules()
    options.output_dir = os.path.abspath(options.output_dir)
    options.model = embedded(options.model)
    disable_progress_bars()
    try:
        prepare_folder(Path(options.output_dir))
        parsed = parse(["--config", options.config, *flags])
        with naming(options.model):
            trainer = build(options, parsed, examples_of(options, parsed))
    except Exception as error:
        sys.exit(fail("error", error))
    trainer.train()
    if trainer.is_world_process_zero():
        learned = trainer.accelerator.unwrap_model(trainer.model)
        merged = learned.merge_and_unload() if parsed[2].use_peft else learned
        merged.save_pretrained(options.output_dir)
        trainer.processing_class.save_pretrained(options.output_dir)
        found = [one for one in trainer.state.log_history if "loss" in one]
        loss = found[-1]["loss"] if found else trainer.state.log_history[-1]["train_loss"]
        print(
            f"imitated {len(trainer.train_dataset)} sequences in {trainer.state.global_step} steps, loss {loss:.3f} at the "
            f"end\nmodel: {options.output_dir}"
        )


def build(
    options: argparse.Namespace, parsed: Parsed, examples: list[dict[str, list[int]]]
) -> SFTTrainer:
    """Return the trainer that imitates.

    Args:
        options: The flags.
        parsed: The recipe.
        examples: What ``examples_of`` gave.
    """
    _, args, model = parsed
    accelerated = torch.accelerator.is_available()
    config = SFTConfig(
        options.output_dir,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=options.batch_size,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        max_length=None,
        completion_only_loss=True,
        gradient_checkpointing=bool(args.activation_checkpointing),
        bf16=accelerated,
        use_cpu=not accelerated,
        seed=args.seed,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": model.dtype},
    )
    trainer = SFTTrainer(
        options.model,
        config,
        train_dataset=Dataset.from_list(examples),
        peft_config=get_peft_config(model),
        callbacks=[Lines()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


class Lines(TrainerCallback):
    """Prints a line where the Trainer logs a loss."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Print the loss since the last line."""
        logged = state.log_history[-1]
        if state.is_world_process_zero and "loss" in logged:
            print(
                f"step {state.global_step}/{state.max_steps}  loss {logged['loss']:.3f}", flush=True
            )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that are not the recipe's."""
    made = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--config", required=True, help="a recipe")
    made.add_argument(
        "--model",
        required=True,
        help="name or path of the model to start from; 'tiny' and 'tiny-tools' are embedded",
    )
    made.add_argument("--output_dir", required=True)
    made.add_argument("--episodes", type=int, default=64, help="training tasks that are shown")
    made.add_argument("--epochs", type=float, default=2)
    made.add_argument("--learning_rate", type=float, default=2e-4)
    made.add_argument("--batch_size", type=int, default=4, help="sequences a step and process")
    return made


def examples_of(options: argparse.Namespace, parsed: Parsed) -> list[dict[str, list[int]]]:
    """Return the sequences to imitate, the same on every process.

    Args:
        options: The flags.
        parsed: The recipe.

    Raises:
        UsageError: If no episode succeeded.
    """
    recipe, args, _ = parsed
    shared: list[Any] = [[], ""]
    if PartialState().is_main_process:
        specs = resolve_environments(recipe.environment, args.environment_kwargs)
        (spec,) = specs.values()
        spec.make_oracle()  # one that is missing is said before tasks are made
        limit = context_limit(AutoConfig.from_pretrained(options.model))
        trajectories = demonstrate(
            spec,
            list(task_dataset(specs, options.episodes, "train")),
            tokenizer=AutoTokenizer.from_pretrained(options.model),
            settings=rollout_settings(args, context_limit=limit),
            seed=args.seed,
        )
        solved = [one for one in trajectories if one.success]
        turns = sum(len(one.turns) for one in solved)
        shared = [supervised_examples(solved), "" if solved else _told(trajectories[0])]
        print(
            f"{len(solved)} of {len(trajectories)} demonstrations succeeded: {turns} turns, "
            f"{sum(one.sampled_tokens for one in solved)} tokens to imitate among "
            f"{sum(len(one['input_ids']) for one in shared[0])} in {len(shared[0])} sequences",
            flush=True,
        )
    examples, first = broadcast_object_list(shared)
    if not examples:
        raise UsageError(
            f"No demonstration succeeded, so there is nothing to imitate. {first} Where a limit cut it, raise the recipe's "
            "max_turns, max_completion_length or max_context_tokens; else look at the oracle, and at what makes a success."
        )
    return list(examples)


def _told(episode: Trajectory) -> str:
    """Return how a demonstration went: its end, its score, and the last that was said."""
    said = [
        f"{one['role']}: {one.get('content') or ''}{one.get('tool_calls') or ''}"
        for one in episode.messages[-3:]
    ]
    cut = sum(turn.truncated for turn in episode.turns)
    turns = (
        f"{len(episode.turns)} turn{'s' * (len(episode.turns) != 1)}, {cut} cut by the token limit"
    )
    shown = " | ".join(text if len(text) <= 200 else f"{text[:200]}..." for text in said)
    error = f" ({episode.error})" if episode.error else ""
    return f"The first ended by {episode.stop.value}{error} with score {episode.score:g} after {turns}: {shown!r}."


if __name__ == "__main__":
    main()
