"""The progress of a run, in forward-backward calls and generation batches."""

from agentic_trl.trainers.config.host import Host


def calls_done(trainer: Host) -> int:
    """Return the number of forward-backward calls in the optimizer steps that are done."""
    return int(trainer.state.global_step * trainer.args.gradient_accumulation_steps)


def calls_per_generation(trainer: Host) -> int:
    """Return the number of forward-backward calls that one generation batch serves."""
    return int(trainer.args.steps_per_generation * trainer.num_iterations)


def more_passes(trainer: Host) -> bool:
    """Return whether a later call of the run passes over the rows of this one.

    Args:
        trainer: The trainer, in a forward-backward call.
    """
    args = trainer.args
    generation_end = (generation_index(trainer) + 1) * calls_per_generation(trainer)
    run_end = trainer.state.max_steps * args.gradient_accumulation_steps
    return bool(trainer._step + args.steps_per_generation < min(generation_end, run_end))


def is_written(trainer: Host) -> bool:
    """Return whether the episodes of the current generation are written down: one generation per ``logging_steps`` optimizer steps."""
    args = trainer.args
    every = max(int(args.logging_steps) if args.logging_steps >= 1 else 1, 1)
    covered = max(calls_per_generation(trainer) // args.gradient_accumulation_steps, 1)
    return bool(args.log_trajectories and trainer.state.global_step % every < covered)


def generation_index(trainer: Host) -> int:
    """Return the number of the current generation batch, from 0; it seeds everything that is drawn for it."""
    return trainer._step // calls_per_generation(trainer)
