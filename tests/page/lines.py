"""Lines of files of episodes, small enough to work out by hand."""

import json


def turn(**more):
    """A turn of three sampled tokens, two of reasoning."""
    return {
        "extends": True,
        "conversation": 0,
        "observation_ids": [5, 6],
        "response_ids": [7, 8, 9],
        "token_kinds": [1, 1, 2],
        "response_logprobs": [-0.5, -0.25, -1.0],
        "advantages": [1.0, -2.0, 3.0],
        "weights": [1.0, 0.5, 1.0],
        "reward": 0.5,
        "penalty": 0.0,
        "valid": True,
        "truncated": False,
        "action": "left",
        "state_key": "0,0",
        "seconds": 0.1,
        "policy_version": None,
        **more,
    }


def line(*turns, **more):
    """An episode of some turns, with a message before each response and one behind the last."""
    said = [("user", "assistant")] * len(turns)
    messages = [{"role": "system", "content": "rules"}]
    for at, pair in enumerate(said):
        messages += [{"role": role, "content": f"{role} {at}"} for role in pair]
    return {
        "step": 4,
        "group": 2,
        "member": 1,
        "task": json.dumps({"seed": 3}),
        "stop": "terminated",
        "success": True,
        "score": 1.0,
        "error": "",
        "messages": [*messages, {"role": "user", "content": "the end"}],
        "turns": list(turns),
        "final_observation_ids": [],
        **more,
    }


def write_run(folder, *lines, facts=None, log=(), updates=(), step=4, rank=0):
    """A folder with these episodes in a file; lines may be texts."""
    trajectories = folder / "trajectories"
    (trajectories / "updates").mkdir(parents=True, exist_ok=True)
    written = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    path = trajectories / f"step_{step:06d}_rank_{rank}.jsonl"
    path.write_text("".join(f"{one}\n" for one in written), encoding="utf-8")
    if facts is not None:
        (folder / "run.json").write_text(json.dumps(facts))
    if log:
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in log))
    if updates:
        said = trajectories / "updates" / f"update_{step + 1:06d}_rank_{rank}.jsonl"
        said.write_text("".join(f"{json.dumps(one)}\n" for one in updates))
    return folder
