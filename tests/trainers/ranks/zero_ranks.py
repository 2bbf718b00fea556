"""Run by ``test_zero.py`` under torchrun: cases of ``two_ranks`` with DeepSpeed on two gloo ranks."""

import faulthandler
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import deepspeed
import pytest
import torch
from accelerate.utils import DistributedType, gather_object
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad
from torch import distributed

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.model import forward
from agentic_trl.trainers.ranks.sharded import gathered
from tests.tiny import make_trainer
from tests.trainers.ranks import two_ranks
from tests.trainers.ranks.cases import AHEAD_MODELS, SHARDED_CASES, small_trainer


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
    """Let Accelerate hand the model to DeepSpeed over gloo."""

    def take(state, plugin):
        plugin.set_mixed_precision(state._mixed_precision)
        plugin.select(_from_accelerator_state=True)
        state._mixed_precision = "no"
        state.deepspeed_plugins = plugin

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    # Before a model is loaded, which asks for the world's size.
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    cpu = two_ranks.on_the_cpu(DistributedType.DEEPSPEED, "deepspeed_plugin", take)
    with cpu, pytest.MonkeyPatch.context() as patch:
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


def resume_case(folder, given, **more):
    make = partial(small_trainer, given=given)
    first, part = two_ranks.run_and_resume(folder, make, **more)
    norms = [e["grad_norm"] for e in first.state.log_history if "grad_norm" in e]
    return {
        "smallest_gradient": min(norms),
        "whole": two_ranks.whole_model(first.model),
        "resumed": two_ranks.whole_model(part.model),
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


def nan_case(folder, how, **more):
    """Three steps of which the second has no finite loss on one rank."""

    class Bad(AgenticGRPOTrainer):
        def policy_loss(self, model, micro):
            output = super().policy_loss(model, micro)
            bad = self.state.global_step == 1 and self.accelerator.process_index == 1
            return replace(output, loss=output.loss * float("nan")) if bad else output

    trainer = make_trainer(folder, cls=Bad, max_steps=3, on_nonfinite_gradient=how, **more)
    try:
        trainer.train()
        error = None
    except FloatingPointError as caught:
        error = str(caught)
    skipped = [e["skipped_steps"] for e in trainer.state.log_history if "skipped_steps" in e]
    finite = all(w.isfinite().all() for w in two_ranks.whole_model(trainer.model).values())
    return {"error": error, "skipped": skipped, "finite": finite}


def cases(folder, stage):
    settings = {"deepspeed": zero(stage)}
    return {
        "scripted": {
            name: two_ranks.scripted_case(name, folder / name, **settings) for name in SHARDED_CASES
        },
        "play": two_ranks.play_case(folder / "play", **settings),
        "vllm": two_ranks.vllm_case(folder / "vllm", **settings),
        "half": two_ranks.half_case(folder / "half", **settings),
        "skip": nan_case(folder / "skip", "skip", **settings),
        "stop": nan_case(folder / "stop", "stop", **settings),
        "resume": {
            given: resume_case(folder / f"resume_{given}", given, **settings)
            for given in ("object", "path", "loaded")
        },
    }


def ahead_cases(folder, stage):
    """Runs that play ahead; see ``two_ranks``."""
    settings = {"deepspeed": zero(stage)}
    result = {
        given: two_ranks.ahead_case(
            folder / given, make=partial(small_trainer, given=given), **settings
        )
        for given in AHEAD_MODELS[stage]
    }
    return result | {"half": two_ranks.ahead_half_case(folder / "half", **settings)}


CASES = {"zero": cases, "ahead": ahead_cases}


def main():
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(560, exit=True)  # a hang says where
    # Some micro-batches are small enough for all logits at once; ranks in step must not go two ways.
    forward.WHOLE_LOGITS = 310
    with deepspeed_on_the_cpu():
        result = CASES[name[:-1]](folder, int(name[-1]))
    if distributed.get_rank() == 0:
        torch.save(result, folder / f"{name}.pt")
    distributed.barrier()
    os._exit(0)  # gloo's threads abort the interpreter's own exit now and then


if __name__ == "__main__":
    main()
