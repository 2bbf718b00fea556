"""Run by ``test_server_ranks.py`` under torchrun: two ranks whose processes play ahead, each asking one stand-in of a server."""

from contextlib import ExitStack

import pytest
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from tests.trainers.ranks import two_ranks
from tests.trainers.ranks.two_ranks import Uneven, check_world
from tests.trainers.server_standin import (
    Server,
    check_order,
    check_versions,
    make,
    responses,
    served,
    serving,
    stand_in_server,
)


def server_case(folder):
    """Episodes of 1 and of 30 turns on different ranks, with evaluation."""
    state, server = PartialState(cpu=True), Server()
    assert state.num_processes == 2
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stand_in_server(patch)
        url = [stack.enter_context(serving(server)) if state.is_main_process else None]
        broadcast_object_list(url)
        trainer = make(
            folder,
            url[0],
            environment=Uneven,
            max_staleness=1,
            per_device_train_batch_size=2,
            max_turns=40,
            max_completion_length=2,
            num_eval_tasks=3,
            per_device_eval_batch_size=1,
            eval_strategy="steps",
            eval_steps=3,
            shuffle_dataset=False,
        )
        check_world(trainer)
        trainer.train()
        check_versions(trainer, 1)
        both = gather_object([[responses([one]) for one in trainer.generations]])
        weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        equal = trainer.accelerator.gather(weights[None])
        if state.is_main_process:
            check_order(server)
        return {
            "equal": torch.equal(equal[0], equal[1]),
            "versions": server.version + 1,
            "askers": len({pid for _, _, pid, _ in server.events if pid is not None}),
            "played": [sorted(one + two) for one, two in zip(*both, strict=True)],
            "served": [served(server, version) for version in range(server.version + 1)],
            "turns": [max(map(len, one)) for one in both],
        }


if __name__ == "__main__":
    two_ranks.CASES["server"] = server_case
    two_ranks.main()
