"""Every field of the configurations is read by something that a run with an environment calls, or refused.

What reads a field is found in the sources: an attribute of a configuration (``args.x``, ``config.x``) outside the files
that check configurations, and outside the methods of TRL and transformers whose work the package does itself. That a
refused field is refused, and that one that acts beside another is refused without it, ``test_config.py`` shows for each.

Mutation seen red: ``torch_empty_cache_steps`` taken out of ``REFUSED``.
"""

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest
import transformers
import trl
from trl import GRPOConfig

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig
from agentic_trl.trainers.config.trl_fields import REFUSED
from tests.paths import ROOT

CHECKS = {"checks.py", "trl_fields.py", "ranges.py", "trl_ranges.py", "wrong_names.py"}
CHECKS |= {
    "off_policy_checks.py",
    "kinds.py",
    "dry_runs.py",
    "explained.py",
    "flat_group_checks.py",
}
CONFIGS = {"args", "self.args", "trainer.args", "config", "self.config", "training_args"}
CONFIGS |= {"given", "host.args", "self._trainer.args"}
NOT_RUN = {"training_step", "compute_loss", "_compute_loss", "evaluation_loop", "prediction_step"}
NOT_RUN |= {"_generate_and_score_completions", "_generate", "_generate_single_turn"}
"""Methods of the hosts in whose place the package has its own where there is an environment."""
OF_CONFIG = {"__post_init__", "_validate_args"}
"""Methods of configurations that check and convert."""

BY_HAND = {
    "rollout_engine": "AgenticGRPOConfig makes use_vllm of it",
    "tf32": "TrainingArguments switches it on",
    "local_rank": "the launcher's number, kept for scripts",
    "vllm_importance_sampling_cap": "TRL's old name of vllm_importance_sampling_clip_max",
}
"""Fields that act without being read as an attribute of a configuration elsewhere, each with how."""


def read_in(path, *, own):
    """The fields that a file reads off a configuration.

    ``own`` is whether ``self`` is one there, which is read in what it offers besides checks and conversions.
    """
    found = set()
    tree = ast.parse(path.read_text())
    ours = path.is_relative_to(ROOT / "agentic_trl")
    names = OF_CONFIG if own else (set() if ours else NOT_RUN)
    skipped = {
        id(inside)
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.name in names
        for inside in ast.walk(one)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Attribute):
            holder = ast.unparse(node.value)
            if holder in CONFIGS or (own and holder == "self"):
                found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            holder, name = ast.unparse(node.args[0]), node.args[1]
            if holder in CONFIGS and isinstance(name, ast.Constant):
                found.add(name.value)
    return found


def sources():
    """Files that run, each with whether ``self`` is a configuration there."""
    for path in (ROOT / "agentic_trl").rglob("*.py"):
        if path.name not in CHECKS:
            yield path, path == ROOT / "agentic_trl/trainers/config/rollout.py"
    hosts = Path(inspect.getfile(transformers)).parent
    for path in [*hosts.glob("trainer*.py"), *(hosts / "integrations").glob("*.py")]:
        yield path, False
    yield hosts / "training_args.py", True
    trainers = Path(inspect.getfile(trl)).parent
    for name in ("grpo_trainer", "base_trainer", "callbacks", "utils"):
        path = trainers / "trainer" / f"{name}.py"
        if path.exists():
            yield path, False
    yield trainers / "generation" / "vllm_generation.py", False


READ = set().union(*(read_in(path, own=own) for path, own in sources()))
FIELDS = {one.name for one in dataclasses.fields(AgenticPPOConfig) if one.init}


@pytest.mark.parametrize("name", sorted(FIELDS - set(REFUSED)))
def test_a_field_that_is_taken_is_read(name):
    assert (name in READ) != (name in BY_HAND), "read by nothing" if name not in READ else "read"


def test_all_fields_are_looked_at():
    assert {one.name for one in dataclasses.fields(AgenticGRPOConfig)} <= FIELDS
    assert {one.name for one in dataclasses.fields(GRPOConfig)} <= FIELDS
    assert len(FIELDS) > 200
    assert set(BY_HAND) <= FIELDS - set(REFUSED)
