"""Everything that a run leaves behind, and the places where two runs differ in any bit."""

import json

import torch

TIMES = ("time", "runtime", "per_second", "_seconds", "train_loss", "total_flos")
"""Endings of what is logged about the clock or about one call of ``train`` alone."""


def outcome(trainer, folder):
    """Weights, optimizer, schedule, log, trajectories and what the policy said to them, of a run that has ended."""
    return {
        "policy": trainer.model.state_dict(),
        "critic": critic_state(trainer),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "log": [
            {name: value for name, value in entry.items() if not name.endswith(TIMES)}
            for entry in trainer.state.log_history
            if "train_runtime" not in entry
        ],
        "traces": traces(folder / "trajectories"),
        "updates": {
            path.name: path.read_text()
            for path in sorted((folder / "trajectories" / "updates").glob("*"))
        },
        "metrics": [
            {name: value for name, value in record.items() if not name.endswith(TIMES)}
            for record in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
            if "train_runtime" not in record
        ],
    }


def critic_state(trainer):
    """Weights of a critic with a model of its own; others are the policy's."""
    model = getattr(getattr(trainer, "critic", None), "model", None)
    return model.state_dict() if model is not None else {}


def traces(folder):
    """All files of trajectories, without the time that steps took."""
    found = {}
    for path in sorted(folder.glob("*.*")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for turn in line["turns"]:
                del turn["seconds"]
        found[path.name] = json.dumps(lines)
    return found


def differences(one, other, name=""):
    """Names of the leaves in which two nested outcomes differ in any bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(set(one) | set(other), key=str)
        return [d for k in keys for d in differences(one.get(k), other.get(k), f"{name}/{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{name}/{i}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if torch.equal(one, other) else [name]
    return [] if one == other else [name]
