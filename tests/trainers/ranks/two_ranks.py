"""Run by ``test_ranks.py`` under torchrun: a case on two gloo ranks, its result written by rank 0."""

import faulthandler
import os
import pickle
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, gather_object
from peft import LoraConfig
from safetensors.torch import load_file
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from agentic_trl.asynchronous.player import ProcessChannel
from agentic_trl.batching import unsampled_row
from agentic_trl.endpoint.server import shared_endpoint
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.model.forward import token_logprobs
from agentic_trl.trainers.ranks.sharded import gathered
from agentic_trl.trainers.run import checkpoints, versions
from agentic_trl.trainers.update.rows import with_old_logprobs
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, make_trainer, scripted
from tests.trainers.ranks.cases import (
    AGENTS,
    AHEAD,
    LORA_CASES,
    PPO_CASES,
    SCRIPTED_CASES,
    SHARDED_CASES,
    agent_run,
    episodes_of,
    refill_run,
    written_credit,
    written_updates,
)
from tests.trainers.run.outcomes import differences, outcome
from tests.trainers.update.ppo_tools import make_ppo

SHARDED = {
    "fsdp": True,
    "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]},
}
"""FSDP2, each layer a unit of its own."""


def check_world(trainer):
    accelerator = trainer.accelerator
    kind = "FSDP" if trainer.args.fsdp else "MULTI_CPU"
    assert accelerator.num_processes == 2, accelerator.num_processes
    assert accelerator.distributed_type.value == kind, accelerator.distributed_type
    assert accelerator.is_fsdp2 == (kind == "FSDP")


@contextmanager
def fsdp_on_the_cpu():
    """Let Accelerate shard over gloo."""

    def take(state, plugin):
        if state._mixed_precision != "no":
            plugin.set_mixed_precision(state._mixed_precision)
        state.fsdp_plugin = plugin

    with on_the_cpu(DistributedType.FSDP, "fsdp_plugin", take):
        yield


@contextmanager
def on_the_cpu(kind, name, take):
    """Let Accelerate take a plugin on the CPU; of itself it does so for accelerators alone, and trains with DDP."""
    original = AcceleratorState.__init__

    def init(self, *arguments, **keywords):
        original(self, *arguments, **keywords)
        if keywords.get(name) is not None:
            take(self, keywords[name])
            PartialState._shared_state["distributed_type"] = kind
            self.distributed_type = kind

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AcceleratorState, "__init__", init)
        yield


def whole(tensor):
    """A gradient or a weight, put together from its shards; on all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_model(model):
    return {name: whole(one).detach().clone() for name, one in model.named_parameters()}


def gradients_of(trainer):
    return [
        {n.removeprefix("module."): whole(g) for n, g in step.items()}
        for step in trainer.gradients.steps
    ]


def scripted_case(name, folder, **changes):
    trajectories, knobs = episodes_of(name)
    knobs |= changes
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if name in LORA_CASES else None
    knobs["per_device_train_batch_size"] //= 2
    torch.manual_seed(0)
    trainer = make_trainer(folder, cls=scripted(trajectories), peft_config=lora, **knobs)
    check_world(trainer)
    trainer.train()
    trainer.accelerator.wait_for_everyone()
    micro_batches = trainer.accelerator.gather(torch.tensor([len(trainer.batches)])).tolist()
    losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    return {
        "gradients": gradients_of(trainer),
        "written": written_credit(folder),
        "said": written_updates(folder),
        "micro_batches": micro_batches,
        "losses": losses,
        "metrics": trainer.state.log_history,
    }


def ppo_case(name, folder):
    trajectories, knobs = episodes_of(name)
    knobs["per_device_train_batch_size"] //= 2
    trainer = make_ppo(folder, trajectories, peft=name in LORA_CASES, **knobs)
    check_world(trainer)
    trainer.train()
    trainer.accelerator.wait_for_everyone()
    return {
        "gradients": gradients_of(trainer),
        "written": written_credit(folder),
        "said": written_updates(folder),
        "critic": trainer.critic_gradients,
        "metrics": trainer.state.log_history,
    }


def agent_case(name, folder, **changes):
    """An agent's episodes: what was played on both ranks, from which endpoints, and what came of it."""
    trainer = agent_run(name, folder, 4, **changes)
    check_world(trainer)
    trainer.train()
    return {
        "episodes": gather_object(trainer.episodes),
        "urls": gather_object([shared_endpoint().base_url]),
        "gradients": gradients_of(trainer),
        "critic": getattr(trainer, "critic_gradients", []),
        "metrics": trainer.state.log_history,
    }


def refill_case(folder, **changes):
    """Flat groups played anew: what each rank played, and what was trained."""
    trainer = refill_run(folder, 4, **changes)
    check_world(trainer)
    return {
        "episodes": gather_object(trainer.episodes),
        "mine": gather_object([len(trainer.episodes)]),
        "gradients": gradients_of(trainer),
        "metrics": trainer.state.log_history,
    }


class Uneven(Countdown):
    """One turn for even seeds, 30 for odd ones."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.left = 30 if seed % 2 else 1
        return observation, info


def play_case(folder, **changes):
    """Episodes of 1 and of 30 turns on different ranks, with evaluation; weights must stay equal."""
    evaluated = []

    class Kept(AgenticGRPOTrainer):
        def play(self, starts, **more):
            if not self.model.training:
                evaluated.extend((start.task["seed"], start.member) for start in starts)
            return super().play(starts, **more)

    trainer = Kept(
        make_model(),
        make_args(
            folder,
            per_device_train_batch_size=2,
            num_generations=2,
            max_steps=3,
            max_turns=40,
            num_train_tasks=8,
            num_eval_tasks=3,
            num_generations_eval=1,
            per_device_eval_batch_size=1,
            eval_strategy="steps",
            eval_steps=3,
            shuffle_dataset=False,
            optim="sgd",
            learning_rate=1.0,
            max_grad_norm=0.05,  # less than the norm of every step
            gradient_checkpointing=True,
            **changes,
        ),
        environment=Uneven,
        processing_class=make_tokenizer(),
    )
    check_world(trainer)
    trainer.train()
    weights = torch.cat([whole(p).detach().flatten() for p in trainer.model.parameters()])
    both = trainer.accelerator.gather(weights[None])
    return {
        "equal": torch.equal(both[0], both[1]),
        "weights": weights,
        "evaluated": gather_object(evaluated),
        "metrics": trainer.state.log_history,
    }


def vllm_case(folder, **changes):
    """The same with the stand-in of a vLLM server, which the first rank asks for both."""
    from tests.trainers.vllm_models import stand_in

    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        changes |= {"rollout_engine": "vllm", "vllm_mode": "server"}
        return play_case(folder, vllm_server_base_url="http://here", **changes)


def resume_case(folder):
    """A PPO run, and its last half again from a checkpoint inside a generation; rank 1 saves slowly."""
    knobs = {"max_steps": 6, "steps_per_generation": 2, "num_iterations": 2, "save_steps": 1}
    knobs |= {"save_strategy": "steps", "per_device_train_batch_size": 2, "logging_steps": 4}
    saves, save_state = Saves(), checkpoints.save_state

    def slowly(trainer, aside):
        time.sleep(0.3 * trainer.accelerator.process_index)
        save_state(trainer, aside)

    checkpoints.save_state = slowly
    whole = make_ppo(folder, **knobs)
    whole.add_callback(saves)
    check_world(whole)
    whole.train()
    first = outcome(whole, folder)
    part = make_ppo(folder, **{**knobs, "save_strategy": "no"})
    part.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    mine = differences(first, outcome(part, folder))
    return {"seen": gather_object([saves.seen]), "differences": gather_object([mine])}


def sharded_cases(folder):
    """Scripted and played episodes with FSDP2, and a run that resumes, all in one go."""
    with fsdp_on_the_cpu():
        return {
            "scripted": {
                name: scripted_case(name, folder / name, **SHARDED) for name in SHARDED_CASES
            },
            "half": half_case(folder / "half", **SHARDED),
            "play": play_case(folder / "play", **SHARDED),
            "vllm": vllm_case(folder / "vllm", **SHARDED),
            "refill": refill_case(folder / "refill", **SHARDED),
            "resume": sharded_resume(folder / "resume"),
            "agents": agent_case("agents", folder / "agents", **SHARDED),
            "ahead": ahead_case(folder / "ahead", **SHARDED),
            "ahead_half": ahead_half_case(folder / "ahead_half", **SHARDED),
        }


def reports_case(folder):
    """A reward function that reports, on ranks that hold 2 and 1 of the held-out tasks."""

    def talkative(completions, log_metric, log_extra, **kwargs):
        for value in [1.0] if distributed.get_rank() == 0 else [2.0, 2.0]:
            log_metric("mine", value)
        log_extra("first", [one[0]["content"] for one in completions])
        return [float(sum(m["role"] == "assistant" for m in one)) for one in completions]

    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(
            folder,
            per_device_train_batch_size=4,
            num_eval_tasks=3,
            log_completions=True,
            num_completions_to_print=0,
        ),
        environment=Countdown,
        reward_funcs=talkative,
        processing_class=make_tokenizer(),
    )
    check_world(trainer)
    trainer.train()
    trained = {name: list(trainer._logs[name]) for name in ("completion", "advantages")}
    trained |= {"first": list(trainer._logs["extra"]["first"])}
    trainer.evaluate()
    return {
        "trained": trained,
        "completion": list(trainer._logs["completion"]),
        "first": list(trainer._logs["extra"]["first"]),
        "rewards": {name: list(column) for name, column in trainer._logs["rewards"].items()},
        "metrics": trainer.state.log_history,
    }


def half_case(folder, **changes):
    """The log-probabilities that the loss sees in bfloat16."""
    found = []

    class Kept(AgenticGRPOTrainer):
        def policy_loss(self, model, micro):
            found.append(
                token_logprobs(model, micro.batch, temperature=self.temperature)[0].detach()
            )
            return super().policy_loss(model, micro)

    trainer = make_trainer(folder, cls=Kept, bf16=True, **changes)
    trainer.train()
    kinds = {p.dtype for p in trainer.model.parameters()}
    with gathered(trainer.model):
        computed = {p.dtype for p in trainer.model.parameters()}
    return {"logprob": found[0], "stored": kinds, "computed": computed}


def run_and_resume(folder, make=make_trainer, **changes):
    """A run that is evaluated before it trains, and its last steps again from inside a generation."""
    knobs = {"max_steps": 5, "steps_per_generation": 2, "num_iterations": 2, "beta": 0.1}
    knobs |= {"per_device_train_batch_size": 4, "method": "planpo", **changes}
    first = make(folder, **knobs, save_strategy="steps", save_steps=3)
    check_world(first)
    first.evaluate()
    first.train()
    part = make(folder, **knobs)
    part.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    rows = [unsampled_row(range(3, 5 + 4 * n)) for n in range(1 + 2 * distributed.get_rank())]
    part.args.use_vllm = True  # whose log-probabilities are scored again
    with_old_logprobs(part, rows)  # a pass more of one rank would wait for ever
    return first, part


def sharded_resume(folder):
    first, part = run_and_resume(folder, **SHARDED)
    looks = gather_object([looks_of(part.model)])
    saved = load_file(folder / "checkpoint-5" / "model.safetensors")
    return {
        "whole": whole_model(first.model),
        "resumed": whole_model(part.model),
        "saved": saved,
        "looks": looks,
        "reference": isinstance(part.ref_model, FSDPModule),
    }


def ahead_case(folder, make=make_trainer, **changes):
    """A run that plays ahead and is evaluated in between; another, and its last two generations from a checkpoint."""
    trainer = make(folder, per_device_train_batch_size=4, **AHEAD, **changes)
    check_world(trainer)
    trainer.train()
    steps = {"steps_per_generation": 1, "num_iterations": 1, "max_staleness": 2}
    runs = (trainer, *run_and_resume(folder / "resumed", make, **steps, **changes))
    weights = [whole_model(one.model) for one in runs]
    names = ("trained", "whole", "resumed")
    return dict(zip(names, weights, strict=True)) | {"metrics": trainer.state.log_history}


def ahead_half_case(folder, **changes):
    """In bfloat16, the episodes of a first generation, played ahead and in turn, and what the process was told."""
    setups = []

    class Kept(AgenticGRPOTrainer):
        def prepare_sets(self, trajectories):
            turns = [turn for one in trajectories for turn in one.turns]
            self.played = [(turn.response_ids, turn.response_logprobs) for turn in turns]
            return super().prepare_sets(trajectories)

    class Told(ProcessChannel):
        def __init__(self, setup, **more):
            setups.append(pickle.loads(setup))
            super().__init__(setup, **more)

    def run(staleness):
        knobs = {"bf16": True, "max_staleness": staleness, **changes}
        trainer = make_trainer(folder / str(staleness), cls=Kept, **knobs)
        check_world(trainer)
        trainer.train()
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "ProcessChannel", Told)
        ahead, in_turn = run(1), run(0)
    [setup] = setups
    return {
        "stored": {part.dtype for part in setup.layout.parts.values()},
        "autocast": setup.mixed_precision != "no",
        "wrapped": hasattr(ahead.model, "_original_forward"),
        "ahead": gather_object(ahead.played),
        "in_turn": gather_object(in_turn.played),
    }


def looks_of(model):
    """How many parameters are shards: gathered, afterwards, and in a layer that has had its pass."""
    shards = [sum(isinstance(p, DTensor) for p in model.parameters())]
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        with gathered(model):
            passes = 3 * distributed.get_rank()  # of the second rank alone: none waits for another
            for _ in range(passes):
                model(input_ids=ids)
            shards.append(sum(isinstance(p, DTensor) for p in model.parameters()))
        shards.append(sum(isinstance(p, DTensor) for p in model.parameters()))
        model(input_ids=ids)
    layer = model.model.layers[0]
    return (*shards, all(isinstance(p, DTensor) for p in layer.parameters()))


class Saves(TrainerCallback):
    """The files of each checkpoint when callbacks hear of it."""

    def __init__(self):
        self.seen = []

    def on_save(self, args, state, control, **kwargs):
        self.seen.append(os.listdir(f"{args.output_dir}/checkpoint-{state.global_step}"))


def replicated_cases(folder):
    """All that runs with whole parameters on each rank, but a run that resumes, in one go."""
    return {
        "play": play_case(folder / "play"),
        "vllm": vllm_case(folder / "vllm"),
        "reports": reports_case(folder / "reports"),
        "ahead": ahead_case(folder / "ahead"),
        "ahead_half": ahead_half_case(folder / "ahead_half"),
        "refill": refill_case(folder / "refill"),
        **{name: scripted_case(name, folder / name) for name in SCRIPTED_CASES},
        **{name: ppo_case(name, folder / name) for name in PPO_CASES},
        **{name: agent_case(name, folder / name) for name in AGENTS},
    }


CASES = {"replicated": replicated_cases, "sharded": sharded_cases, "resume": resume_case}


def main():
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(200, exit=True)  # a hang says where
    result = CASES[name](folder)
    if distributed.get_rank() == 0:
        torch.save(result, folder / f"{name}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # gloo's threads abort the interpreter's own exit now and then


if __name__ == "__main__":
    main()
