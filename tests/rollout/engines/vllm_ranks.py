"""Run by ``test_vllm_engine.py``: a case of uneven episodes on three gloo ranks, forked after the imports."""

import faulthandler
import multiprocessing
import os
import sys
from pathlib import Path

import torch
from torch import distributed

from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.vllm.backends import ColocatedBackend, ServerBackend
from agentic_trl.rollout.engines.vllm.engine import Ranks, VLLMEngine, sampling_arguments
from tests.rollout.engines.vllm_standins import STOP, FakeClient, FakeLLM, answer_to, request

WORLD = 3
TURNS = {0: [1], 1: [30, 2, 7], 2: []}
"""Turns of the episodes of each rank."""

ARGUMENTS = sampling_arguments(Sampling(), stop_ids=frozenset({STOP}))


def make_engine(case, rank):
    if case == "tensor_parallel":
        backend = ColocatedBackend(FakeLLM(), dict, ARGUMENTS)
        return VLLMEngine(
            backend, stop_ids=frozenset({STOP}), ranks=Ranks(rank=rank, together=True)
        )
    client = FakeClient(fail_at=5 if case == "failing_server" else None)
    backend = ServerBackend(client, ARGUMENTS, calls=8) if rank == 0 else None
    ranks = Ranks(rank=rank, together=True, first_asks=True)
    return VLLMEngine(backend, stop_ids=frozenset({STOP}), ranks=ranks)


def play(engine, rank):
    """Ask turn after turn, as often as the busiest rank; return what came for each episode."""
    turn = dict.fromkeys(range(len(TURNS[rank])), 0)
    limits = {e: (4 if e % 2 else 2) for e in turn}  # unequal budgets: some answers are cut
    engine.submit([request(e, (rank, e, 0), limits[e]) for e in turn])
    rounds, wrong = 0, []
    while True:
        open_episodes = torch.tensor([sum(turn[e] < TURNS[rank][e] for e in turn)])
        distributed.all_reduce(open_episodes)
        if open_episodes.item() == 0:
            return {"rounds": rounds, "turns": turn, "wrong": wrong}
        rounds += 1
        for episode, sample in engine.advance():
            prompt = (rank, episode, turn[episode])
            if (sample.ids, sample.logprobs) != answer_to(prompt, limits[episode]):
                wrong.append((prompt, sample))
            if sample.truncated != (limits[episode] == 2):
                wrong.append((prompt, sample))
            turn[episode] += 1
            if turn[episode] < TURNS[rank][episode]:
                engine.submit([request(episode, (rank, episode, turn[episode]), limits[episode])])


def run(case, rank, folder):
    faulthandler.dump_traceback_later(60, exit=True)
    store = distributed.FileStore(str(folder / f"{case}_store"), WORLD)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    try:
        result = play(make_engine(case, rank), rank)
    except RuntimeError as error:
        result = str(error)
    torch.save(result, folder / f"{case}_{rank}.pt")
    distributed.barrier()
    os._exit(0)


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    for case in sys.argv[2:]:
        processes = [
            context.Process(target=run, args=(case, rank, folder)) for rank in range(WORLD)
        ]
        for one in processes:
            one.start()
        for one in processes:
            one.join()


if __name__ == "__main__":
    main()
