"""Run by ``test_zero.py`` under torchrun: cases of ``two_ranks`` with DeepSpeed on two gloo ranks."""

import faulthandler
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import deepspeed
import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, gather_object
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad
from torch import distributed
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentic_trl import tiny_policy
from agentic_trl.batching import unsampled_row
from agentic_trl.trainers import forward
from agentic_trl.trainers.forward import token_logprobs
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.sharded import gathered
from tests.tiny import Countdown, make_args, make_trainer
from tests.trainers import two_ranks
from tests.trainers.cases import SHARDED_CASES


def zero(stage):
    return {
        "zero_optimization": {
            "stage": stage,
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": 0,  # tiny parameters are sharded too
        },
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": "auto"},
    }


@contextmanager
def deepspeed_on_the_cpu():
    """Let Accelerate hand the model to DeepSpeed over gloo; of itself it trains with DDP on the CPU."""
    original = AcceleratorState.__init__

    def init(self, *arguments, deepspeed_plugin=None, **keywords):
        original(self, *arguments, deepspeed_plugin=deepspeed_plugin, **keywords)
        if deepspeed_plugin is not None:
            deepspeed_plugin.set_mixed_precision(self._mixed_precision)
            deepspeed_plugin.select(_from_accelerator_state=True)
            self._mixed_precision = "no"
            self.deepspeed_plugins = deepspeed_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.DEEPSPEED
            self.distributed_type = DistributedType.DEEPSPEED

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    # Before a model is loaded, which asks for the world's size.
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AcceleratorState, "__init__", init)
        patch.setattr(DeepSpeedEngine, "step", keeping_gradients)
        patch.setattr(two_ranks, "check_world", check_world)
        patch.setattr(two_ranks, "gradients_of", lambda trainer: take_gradients())
        patch.setattr(two_ranks, "whole", whole)
        yield


STEPS = []
step = DeepSpeedEngine.step


def keeping_gradients(engine, *arguments, **keywords):
    """What the engine steps with; it keeps its gradients to itself and steps before callbacks hear of them."""
    named = [(n, p) for n, p in engine.module.named_parameters() if p.requires_grad]
    found = {n: safe_get_full_grad(p) for n, p in named}
    STEPS.append({n: g.clone() for n, g in found.items() if g is not None})
    return step(engine, *arguments, **keywords)


def take_gradients():
    found = list(STEPS)
    STEPS.clear()
    return found


def check_world(trainer):
    accelerator = trainer.accelerator
    assert accelerator.num_processes == 2, accelerator.num_processes
    assert accelerator.distributed_type.value == "DEEPSPEED", accelerator.distributed_type


def whole(parameter):
    if not hasattr(parameter, "ds_id"):
        return parameter
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def whole_model(model):
    return {n: whole(p).detach().clone() for n, p in model.named_parameters()}


def small_trainer(folder, given, **knobs):
    """A trainer of a random model, or of the tiny policy, which is sharded as it is loaded, here or by the trainer."""
    if given == "object":
        return make_trainer(folder, **knobs)
    args = make_args(folder, **knobs)  # from here on models are sharded as they are loaded
    model = (
        AutoModelForCausalLM.from_pretrained(tiny_policy()) if given == "loaded" else tiny_policy()
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    return AgenticGRPOTrainer(model, args, environment=Countdown, processing_class=tokenizer)


def resume_case(folder, given, **more):
    """A run with a reference that is evaluated before it trains, and its last steps again from within a generation."""
    knobs = {"max_steps": 5, "steps_per_generation": 2, "num_iterations": 2, "beta": 0.1}
    knobs |= {"per_device_train_batch_size": 4, "method": "planpo", **more}
    first = small_trainer(folder, given, **knobs, save_strategy="steps", save_steps=3)
    check_world(first)
    first.evaluate()
    first.train()
    part = small_trainer(folder, given, **knobs)
    part.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    rows = [unsampled_row(range(3, 5 + 4 * n)) for n in range(1 + 2 * distributed.get_rank())]
    part._attach("old_logprob", part.model, rows)  # a pass more of one rank would wait for ever
    return {
        "whole": whole_model(first.model),
        "resumed": whole_model(part.model),
        "saved": str(folder / "checkpoint-5"),
        "looks": gather_object([looks_of(part.model_wrapped)]),
        "reference": gather_object([looks_of(part.ref_model)]),
    }


def looks_of(engine):
    """How many parameters hold something, gathered and otherwise, with unequal numbers of passes in between."""

    def count():
        return sum(p.numel() > 0 for p in engine.parameters())

    ids, counts = torch.tensor([[3, 4, 5]]), [count()]
    with torch.no_grad():
        for rank in (1, 0):
            with gathered(engine):
                for _ in range(3 * (distributed.get_rank() == rank)):
                    engine.module(input_ids=ids)
                counts.append(count())
            counts.append(count())
            engine(input_ids=ids)  # in step again
    return counts


def half_case(folder, **more):
    """The log-probabilities that the loss sees in bfloat16."""
    found = []

    class Kept(AgenticGRPOTrainer):
        def _policy_loss(self, model, micro):
            found.append(token_logprobs(model, micro.batch, temperature=self.temperature)[0])
            return super()._policy_loss(model, micro)

    trainer = make_trainer(folder, cls=Kept, bf16=True, **more)
    trainer.train()
    return {"logprob": found[0].detach(), "kinds": {p.dtype for p in trainer.model.parameters()}}


def nan_case(folder, how, **more):
    """Three steps of which the second has no finite loss on one rank."""

    class Bad(AgenticGRPOTrainer):
        def _policy_loss(self, model, micro):
            output = super()._policy_loss(model, micro)
            bad = self.state.global_step == 1 and self.accelerator.process_index == 1
            return replace(output, loss=output.loss * float("nan")) if bad else output

    trainer = make_trainer(folder, cls=Bad, max_steps=3, on_nonfinite_gradient=how, **more)
    try:
        trainer.train()
        error = None
    except FloatingPointError as caught:
        error = str(caught)
    skipped = [e["skipped_steps"] for e in trainer.state.log_history if "skipped_steps" in e]
    finite = all(w.isfinite().all() for w in whole_model(trainer.model).values())
    return {"error": error, "skipped": skipped, "finite": finite}


def main():
    stage, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(200, exit=True)  # a hang says where
    settings = {"deepspeed": zero(stage)}
    # Some micro-batches are small enough for all logits at once; ranks in step must not go two ways.
    forward.WHOLE_LOGITS = 310
    with deepspeed_on_the_cpu():
        result = {
            "scripted": {
                name: two_ranks.scripted_case(name, folder / name, **settings)
                for name in SHARDED_CASES
            },
            "play": two_ranks.play_case(folder / "play", **settings),
            "vllm": two_ranks.vllm_case(folder / "vllm", **settings),
            "half": half_case(folder / "half", **settings),
            "skip": nan_case(folder / "skip", "skip", **settings),
            "stop": nan_case(folder / "stop", "stop", **settings),
            "resume": {
                given: resume_case(folder / f"resume_{given}", given, **settings)
                for given in ("object", "path", "loaded")
            },
        }
    if distributed.get_rank() == 0:
        torch.save(result, folder / f"{stage}.pt")
    distributed.barrier()
    os._exit(0)  # gloo's threads abort the interpreter's own exit now and then


if __name__ == "__main__":
    main()
