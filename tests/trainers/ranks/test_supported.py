"""What Accelerate may spread over the ranks, and what is refused with a sentence.

That FSDP2 and ZeRO train, play, resume and feed vLLM is tested on two ranks (``test_ranks``, ``test_zero``).
Mutations seen red here: FSDP1 or another stage of ZeRO let through; a critic, a setting, an option of the plugin or an
old version left out.
"""

import re
from types import SimpleNamespace

import pytest
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from peft import LoraConfig, get_peft_model

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.ppo import PPOTrainer
from agentic_trl.trainers.ranks.supported import set_up_ranks
from tests.paths import ROOT
from tests.tiny import make_args, make_model

pytestmark = pytest.mark.trainer

FSDP2 = {"fsdp_version": 2, "cpu_ram_efficient_loading": False}
CONFIGS = ROOT / "recipes" / "accelerate"


VERSIONS = {"torch": "2.13.0+cpu", "deepspeed": "0.19.8", "accelerate": "1.15.0"}


@pytest.fixture(autouse=True)
def versions(monkeypatch):
    installed = dict(VERSIONS)
    monkeypatch.setattr("agentic_trl.trainers.ranks.supported.version", installed.__getitem__)
    return installed


def spread(
    tmp_path,
    kind,
    *,
    trainer=AgenticGRPOTrainer,
    model=None,
    version=2,
    plugin=FSDP2,
    precision="bf16",
    zero=None,
    **args,
):
    """What a trainer shows of itself when Accelerate was set up for ``kind``."""
    config = {"zero_optimization": {"stage": 3, **(zero or {})}}
    sharding = FullyShardedDataParallelPlugin(**{**plugin, "fsdp_version": version})
    one = object.__new__(trainer)
    one.args = make_args(tmp_path, **args)
    one.model = model
    one.accelerator = SimpleNamespace(
        distributed_type=DistributedType(kind),
        is_fsdp2=kind == "FSDP" and version == 2,
        mixed_precision=precision,
        state=SimpleNamespace(
            # Each is there if it is in use.
            **({"fsdp_plugin": sharding} if kind == "FSDP" else {}),
            deepspeed_plugin=SimpleNamespace(deepspeed_config=config),
        ),
    )
    return one


@pytest.mark.parametrize("kind", ["NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"])
def test_data_parallelism_fsdp2_and_zero_are_taken(tmp_path, kind):
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
    stage = int(config.deepspeed_config.get("zero_stage", 3))
    set_up_ranks(spread(tmp_path, kind, plugin=plugin, zero={"stage": stage}))


def test_fsdp1_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"FSDP1.*fsdp_version: 2"):
        set_up_ranks(spread(tmp_path, "FSDP", version=1))


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
    if not changes.pop("plugin", None):
        with pytest.raises(ValueError, match=f"cannot run under DEEPSPEED.*{named}"):
            set_up_ranks(spread(tmp_path, "DEEPSPEED", **changes))
    set_up_ranks(spread(tmp_path, "MULTI_GPU", **changes))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_stages_of_zero_are_taken(tmp_path, stage):
    set_up_ranks(spread(tmp_path, "DEEPSPEED", zero={"stage": stage}))


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("zero_optimization.stage=0", {"zero": {"stage": 0}}),
        ("offload_param", {"zero": {"offload_param": {"device": "cpu"}}}),
        ("offload_optimizer", {"zero": {"offload_optimizer": {"device": "nvme"}}}),
        ("fp16: use bf16", {"precision": "fp16"}),
    ],
)
def test_what_was_not_tried_with_deepspeed_is_refused(tmp_path, named, changes):
    with pytest.raises(ValueError, match=f"cannot run under DEEPSPEED.*{named}"):
        set_up_ranks(spread(tmp_path, "DEEPSPEED", **changes))
    for kind in ("FSDP", "MULTI_GPU"):
        set_up_ranks(spread(tmp_path, kind, **changes))


def test_an_offload_to_nowhere_is_taken(tmp_path):
    nowhere = {"offload_param": {"device": "none"}, "offload_optimizer": None}
    set_up_ranks(spread(tmp_path, "DEEPSPEED", zero=nowhere))


@pytest.mark.parametrize(
    ("kind", "package", "old", "least"),
    [
        ("FSDP", "torch", "2.12.1+cu130", "2.13"),
        ("DEEPSPEED", "deepspeed", "0.18.9", "0.19"),
        ("DEEPSPEED", "accelerate", "1.14.0", "1.15"),
    ],
)
def test_older_versions_are_refused(tmp_path, versions, kind, package, old, least):
    versions[package] = old
    with pytest.raises(ValueError, match=rf"{package} {re.escape(old)}.*expected {least}"):
        set_up_ranks(spread(tmp_path, kind))
    for other in {"FSDP", "DEEPSPEED", "MULTI_GPU"} - {kind}:
        set_up_ranks(spread(tmp_path, other))


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_an_adapter_with_vllm_is_refused(tmp_path, kind):
    adapted = get_peft_model(make_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    vllm = {"rollout_engine": "vllm", "vllm_mode": "server"}
    with pytest.raises(ValueError, match="vLLM with an adapter"):
        set_up_ranks(spread(tmp_path, kind, model=adapted, **vllm))
    set_up_ranks(spread(tmp_path, kind, model=make_model(), **vllm))
