"""What Accelerate may spread over the ranks, and what is refused with a sentence.

That FSDP2 trains, plays, resumes and feeds vLLM is tested on two ranks (``test_ranks``). Mutations seen red
here: DeepSpeed let through; FSDP1 let through; a critic, a setting or an option of the plugin left out.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from peft import LoraConfig, get_peft_model

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.ppo import PPOTrainer
from agentic_trl.trainers.sharded import set_up_ranks
from tests.tiny import make_args, make_model

pytestmark = pytest.mark.trainer

FSDP2 = {"fsdp_version": 2, "cpu_ram_efficient_loading": False}
CONFIGS = Path(__file__).parents[2] / "recipes" / "accelerate"


def spread(
    tmp_path, kind, *, trainer=AgenticGRPOTrainer, model=None, version=2, plugin=FSDP2, **args
):
    """What a trainer shows of itself when Accelerate was set up for ``kind``."""
    sharding = FullyShardedDataParallelPlugin(**{**plugin, "fsdp_version": version})
    one = object.__new__(trainer)
    one.args = make_args(tmp_path, **args)
    one.model = model
    one.accelerator = SimpleNamespace(
        distributed_type=DistributedType(kind),
        is_fsdp2=kind == "FSDP" and version == 2,
        state=SimpleNamespace(fsdp_plugin=sharding),
    )
    return one


@pytest.mark.parametrize("kind", ["NO", "MULTI_CPU", "MULTI_GPU", "FSDP"])
def test_data_parallelism_and_fsdp2_are_taken(tmp_path, kind):
    set_up_ranks(spread(tmp_path, kind))


@pytest.mark.parametrize("path", sorted(CONFIGS.iterdir()), ids=lambda path: path.stem)
def test_the_configurations_of_accelerate_are_taken(tmp_path, monkeypatch, path):
    config = load_config_from_file(str(path))
    kind = str(config.distributed_type).rpartition(".")[2]
    for name, value in config.fsdp_config.items():  # as `accelerate launch` hands them on
        monkeypatch.setenv(
            name.upper(), str(value).lower() if isinstance(value, bool) else str(value)
        )
    plugin = {} if kind == "FSDP" else FSDP2
    set_up_ranks(spread(tmp_path, kind, plugin=plugin))


@pytest.mark.parametrize(
    ("kind", "version", "named"), [("DEEPSPEED", 2, "DEEPSPEED"), ("FSDP", 1, "FSDP1")]
)
def test_other_ways_are_refused(tmp_path, kind, version, named):
    with pytest.raises(ValueError, match=f"{named}.*fsdp_version: 2"):
        set_up_ranks(spread(tmp_path, kind, version=version))


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("clip_normalization='relative'", {"clip_normalization": "relative"}),
        ("share_prefixes=True", {"share_prefixes": True}),
        ("sync_ref_model=True", {"sync_ref_model": True, "beta": 0.1}),
        ("PPOTrainer", {"trainer": PPOTrainer}),
        ("fsdp_offload_params", {"plugin": {**FSDP2, "cpu_offload": True}}),
        (
            "fsdp_cpu_ram_efficient_loading",
            {"plugin": {**FSDP2, "cpu_ram_efficient_loading": True}},
        ),
    ],
)
def test_what_needs_whole_parameters_is_refused_under_fsdp2(tmp_path, named, changes):
    with pytest.raises(ValueError, match=f"cannot run under FSDP2.*{named}"):
        set_up_ranks(spread(tmp_path, "FSDP", **changes))
    changes.pop("plugin", None)
    set_up_ranks(spread(tmp_path, "MULTI_GPU", **changes))


def test_an_older_pytorch_is_refused_under_fsdp2(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.12.1+cu130")
    with pytest.raises(ValueError, match=r"torch 2\.12\.1.*expected 2\.13"):
        set_up_ranks(spread(tmp_path, "FSDP"))
    set_up_ranks(spread(tmp_path, "MULTI_GPU"))


def test_an_adapter_with_vllm_is_refused_under_fsdp2(tmp_path):
    adapted = get_peft_model(make_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    vllm = {"rollout_engine": "vllm", "vllm_mode": "server"}
    with pytest.raises(ValueError, match="vLLM with an adapter"):
        set_up_ranks(spread(tmp_path, "FSDP", model=adapted, **vllm))
    set_up_ranks(spread(tmp_path, "FSDP", model=make_model(), **vllm))
