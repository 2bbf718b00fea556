"""The versions of TRL that the trainers are written for, and what they rely on.

Everything that the package takes from TRL beyond its public classes is listed in ``HOOKS``, ``ATTRIBUTES``
and ``FACTS``; ``tests/trainers/config/test_trl_contract.py`` checks each entry against the installed TRL, so that
an upgrade that breaks one says which.
"""

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

MINIMUM, BELOW = "1.16", "1.17"
"""Supported versions of TRL: from ``MINIMUM`` on, below ``BELOW``."""

HOOKS = {
    "training_step": ["model", "inputs", "num_items_in_batch"],
    "compute_loss": ["model", "inputs", "return_outputs", "num_items_in_batch"],
    "evaluation_loop": [
        "dataloader",
        "description",
        "prediction_loss_only",
        "ignore_keys",
        "metric_key_prefix",
    ],
    "_prepare_inputs": ["generation_batch"],
    "_generate_and_score_completions": ["inputs"],
    "_get_train_sampler": ["dataset"],
    "_get_output_dir": ["trial"],
    "_save_checkpoint": ["model", "trial"],
    "_push_from_checkpoint": ["checkpoint_folder"],
    "_load_rng_state": ["checkpoint"],
}
"""Methods that are overridden, with the parameters that they have after ``self``."""

ATTRIBUTES = (
    "_step",
    "_buffered_inputs",
    "_metrics",
    "_logs",
    "_pending_extra_logs",
    "_pending_metrics",
    "_total_train_tokens",
    "_current_train_step_time",
    "_tokenizer",
    "eos_token_ids",
    "num_generations",
    "num_generations_eval",
    "num_iterations",
    "ref_model",
    "beta",
    "reward_funcs",
    "reward_weights",
    "reward_func_names",
    "temperature",
    "aux_loss_enabled",
    "router_aux_loss_coef",
)
"""Attributes of a built trainer that are read or set."""

FACTS = (
    "the sampler repeats each task num_generations times side by side",
    "the fused head scores shift_labels where they stand, on what the body returns, at the sampling temperature",
    "a dataset without a prompt column is accepted",
    "the logged loss of an optimizer step is the sum of what training_step returned",
    "a checkpoint is written into _get_output_dir/checkpoint-N, and nothing of it anywhere else",
    "get_last_checkpoint, sort_checkpoints and pushes to the hub pass over a folder _partial",
    "on_save comes after _save_checkpoint",
    "_load_rng_state is called once, after _tr_loss and _globalstep_last_logged are set, before the first step",
    "VLLMGeneration builds its module's LLM in _init_vllm and pushes what _iter_named_params yields",
    "the fused head, the float32 head and Accelerate's autocast are functions of the names that given knows",
    "remove_hooks leaves one hook of ZeRO-3, in which ranks compare passes; add_hooks brings the others back",
)
"""Behaviour that the trainers rely on."""


def require_supported_trl(installed: str | None = None) -> None:
    """Refuse a version of TRL that the trainers are not written for.

    Args:
        installed: Version to judge; ``None`` asks the installed package.

    Raises:
        ImportError: If TRL is missing or its version lies outside the supported range.
    """
    wanted = f"agentic_trl supports trl >= {MINIMUM}, < {BELOW}"
    if installed is None:
        try:
            installed = version("trl")
        except PackageNotFoundError as error:
            raise ImportError(
                f"trl is not installed; {wanted}: pip install 'trl>={MINIMUM},<{BELOW}'."
            ) from error
    if not Version(MINIMUM) <= Version(installed) < Version(BELOW):
        raise ImportError(
            f"trl {installed} is installed, {wanted}: pip install 'trl>={MINIMUM},<{BELOW}'."
        )
