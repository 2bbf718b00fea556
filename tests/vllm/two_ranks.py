"""Run by ``test_two_ranks.py`` under torchrun: two gloo ranks, each with its vLLM or both with one."""

import faulthandler
import os
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import gather_object
from torch import distributed

from tests.vllm.cases import logged, make

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def patch():
    """As in conftest.py."""
    import vllm.model_executor.layers.utils as layers
    from trl.generation import vllm_generation

    def plain(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = plain
    vllm_generation.LLM = partial(vllm_generation.LLM, enforce_eager=True)


def main():
    folder, policy, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)
    patch()
    trainer = make(
        policy,
        folder,
        vllm_tensor_parallel_size=size,
        per_device_train_batch_size=4,
        max_steps=2,
        max_turns=5,
        num_eval_tasks=3,
    )
    assert trainer.accelerator.num_processes == 2
    turns, play = [], trainer.play

    def playing(starts, **more):
        found = play(starts, **more)
        turns.append([len(one.turns) for one in found])
        return found

    trainer.play = playing
    trainer.train()
    trainer.evaluate()
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    both = trainer.accelerator.gather(weights[None])
    result = {
        "gaps": logged(trainer, "sampling/logprob_difference"),
        "equal": torch.equal(both[0], both[1]),
        "turns": gather_object([turns]),
    }
    if distributed.get_rank() == 0:
        torch.save(result, folder / "result.pt")
    distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
