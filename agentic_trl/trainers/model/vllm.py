"""vLLM as the sampler of a run: the choice of the engine, the transfer of weights, the limit of the context.

vLLM's log-probabilities are those that the trainer computes only in two cases: after the temperature, if
nothing is truncated ("processed_logprobs"), or before it, if the temperature is 1 ("raw_logprobs"). The mode is
chosen accordingly; a correction of the loss, and old log-probabilities that are vLLM's, are refused where neither fits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.import_utils import is_vllm_available

from agentic_trl.rollout.engines.base import Engine, EngineFactory, Sampling
from agentic_trl.rollout.engines.vllm.backends import ColocatedBackend, ServerBackend
from agentic_trl.rollout.engines.vllm.engine import Backend, Ranks
from agentic_trl.rollout.engines.vllm.factory import SERVER_CALLS, Asking, AsksServer
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.config.host import Host, Model
from agentic_trl.trainers.config.off_policy import needs_sampler_logprobs
from agentic_trl.trainers.model.context_limit import context_limit
from agentic_trl.trainers.ranks.collective import any_rank


def logprobs_fit(mode: str, sampling: Sampling) -> bool:
    """Return whether vLLM's log-probabilities are those of the policy at the sampling temperature."""
    if mode == "processed_logprobs":
        return not sampling.truncates
    return mode == "raw_logprobs" and sampling.temperature == 1.0


def require_vllm(config: AgenticGRPOConfig, model: str | Model) -> None:
    """Refuse a run with vLLM that could not start.

    Raises:
        ImportError: If vLLM is not installed.
        ValueError: If the model has no folder or name that vLLM could load.
    """
    if not config.use_vllm:
        return
    if not is_vllm_available():
        raise ImportError(
            "rollout_engine='vllm' (or use_vllm) needs vLLM, which is not installed: pip install "
            "'agentic-trl[vllm]', or pip install 'vllm>=0.22,<=0.31'."
        )
    named = model if isinstance(model, str) else getattr(model, "name_or_path", "")
    if config.vllm_mode == "colocate" and not named:
        raise ValueError(
            "The model was made in memory, expected a name or folder: vLLM builds its own copy from the files. "
            "Save it with save_pretrained, the tokenizer too, and pass the folder."
        )


class TrainedVLLM(VLLMGeneration):
    """TRL's vLLM: in the precision of the trained model, and with exactly its weights."""

    def __init__(self, *arguments: Any, options: dict[str, Any], **keywords: Any) -> None:
        """Build vLLM, or connect to its server.

        Args:
            *arguments: As for TRL's class.
            options: Arguments of ``vllm.LLM`` that TRL's class has no parameter for.
            **keywords: As for TRL's class.
        """
        self._options = options
        self._pushed: Any = None
        self.settle: Callable[[], None] = lambda: None
        """Waits until nobody asks in this rank's name, before a server's weights change."""
        super().__init__(*arguments, **keywords)

    def _init_vllm(self) -> None:
        with _llm_options(self._options):
            super()._init_vllm()

    def refresh(self, step: int) -> None:
        """Hand the policy's weights to vLLM, if they are others than those that it has; on all ranks together.

        Args:
            step: Optimizer steps done; it counts for optimizers that write past PyTorch's bookkeeping.
        """
        changed = self._pushed != (step, self._versions())
        if self.mode != "server":
            if changed:
                self.sync_weights()
        elif any_rank(self.accelerator, changed):  # the server's weights are those of all ranks
            self.settle()
            self.accelerator.wait_for_everyone()
            self.sync_weights()
            self.accelerator.wait_for_everyone()
        self._pushed = (step, self._versions())

    def _versions(self) -> list[tuple[int, int]]:
        return [(p.data_ptr(), p._version) for p in self.model.parameters()]

    def _iter_named_params(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under vLLM's names, adapters merged one layer at a time.

        TRL's own way adds an adapter to the weights in place and subtracts it again, which in bfloat16
        leaves the base changed a little each time.
        """
        if not is_peft_model(self.model):
            yield from super()._iter_named_params()
            return
        for name, parameter in self.model.named_parameters():
            if self.model.prefix in name or "original_module" in name or "value_head" in name:
                continue
            owner, _, _ = name.partition(".base_layer.")
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            plain = self._fix_param_name_to_vllm(plain, ["modules_to_save.default."])
            with _merged(self.model.get_submodule(owner) if owner != name else None):
                yield plain, parameter.data


@contextmanager
def _llm_options(options: dict[str, Any]) -> Iterator[None]:
    """Let TRL build ``vllm.LLM`` with other arguments."""
    original = getattr(vllm_generation, "LLM", None)
    vllm_generation.LLM = lambda **given: original(**{**given, **options})  # type: ignore[misc]
    try:
        yield
    finally:
        vllm_generation.LLM = original


@contextmanager
def _merged(layer: nn.Module | None) -> Iterator[None]:
    """Merge the active adapter into a layer, and take the very same weights back afterwards."""
    if not isinstance(layer, BaseTunerLayer):
        yield
        return
    kept = [(p, p.data) for p in layer.get_base_layer().parameters()]
    for parameter, data in kept:
        parameter.data = data.clone()
    layer.merge()
    try:
        yield
    finally:
        layer.unmerge()
        for parameter, data in kept:
            parameter.data = data


def build_vllm(trainer: Host) -> TrainedVLLM:
    """Build vLLM for a trainer, as TRL does for its own rollouts.

    Raises:
        ValueError: If a server's log-probabilities are not the policy's.
    """
    args, accelerator = trainer.args, trainer.accelerator
    # In mixed precision the trainer computes in bfloat16, whatever it stores.
    half = accelerator.mixed_precision == "bf16"
    dtype = torch.bfloat16 if half else trainer.model.dtype
    sampling = args.sampling
    built = TrainedVLLM(
        model=trainer.model,
        accelerator=accelerator,
        processing_class=trainer.processing_class,
        mode=args.vllm_mode,
        server_base_url=args.vllm_server_base_url,
        server_host=args.vllm_server_host,
        server_port=args.vllm_server_port,
        group_port=args.vllm_group_port,
        server_timeout=args.vllm_server_timeout,
        tensor_parallel_size=args.vllm_tensor_parallel_size,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        max_num_seqs=args.per_device_train_batch_size
        * args.vllm_tensor_parallel_size
        * args.steps_per_generation,
        model_impl=args.vllm_model_impl,
        trust_remote_code=args.trust_remote_code,
        options={
            "dtype": str(dtype).removeprefix("torch."),
            "enable_prefix_caching": True,
            "logprobs_mode": "raw_logprobs" if sampling.truncates else "processed_logprobs",
        },
    )
    if args.vllm_mode == "server" and accelerator.is_main_process:
        mode = built.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
        wanted = needs_sampler_logprobs(args)
        if wanted is not None and not logprobs_fit(mode, sampling):
            raise ValueError(
                f"The vLLM server was started with --logprobs-mode {mode}, which with this sampling does not give "
                f"the policy's log-probabilities, so {wanted} would be biased. Start it "
                f"with {'raw' if sampling.truncates else 'processed'}_logprobs, or switch it off with "
                "sampler_correction='none' and without old_logprobs='sampler'."
            )
    return built


def choose_engine(trainer: Host) -> tuple[EngineFactory | None, int | None]:
    """Return what makes the engines of a run, and how many tokens a context may have.

    Returns:
        The factory, ``None`` for the model itself; and the tokens that model and engine take, ``None`` if unknown.

    Raises:
        ValueError: If ``max_context_tokens`` is more than vLLM takes.
    """
    limit = context_limit(trainer.model)
    if not trainer.args.use_vllm:
        return None, limit
    built = trainer.vllm_generation = build_vllm(trainer)
    takes, wanted = vllm_context_limit(built), trainer.args.max_context_tokens
    if wanted is not None and wanted > takes:
        raise ValueError(
            f"max_context_tokens={wanted}, but vLLM takes {takes} tokens, prompt and response together. Lower it, or "
            "raise vllm_max_model_length (server: --max-model-len)."
        )
    return vllm_factory(built, trainer), takes if limit is None else min(limit, takes)


def vllm_context_limit(built: TrainedVLLM) -> int:
    """Return how many tokens vLLM takes, prompt and response together; on every rank."""
    box: list[Any] = [None]
    if built.mode == "colocate":
        box = [built.llm.llm_engine.model_config.max_model_len]
    elif built.accelerator.is_main_process:
        box = [built.vllm_client.get_server_info()["model_config"]["max_model_len"]]
    return int(broadcast_object_list(box, from_process=0)[0])


def vllm_factory(built: TrainedVLLM, trainer: Host) -> EngineFactory:
    """Return what makes an engine on vLLM with the current weights."""
    make = _asking(trainer).factory(_backend_maker(built), ranks=_ranks(built))

    def refreshed(model: Model, sampling: Sampling) -> Engine:
        built.refresh(trainer.state.global_step)
        return make(model, sampling)

    return refreshed


def asks_server(trainer: Host) -> AsksServer:
    """Return what makes engines on a trainer's server, with the weights that it has, in another process."""
    built = trainer.vllm_generation
    return AsksServer(
        client=vllm_generation.VLLMClient,
        url=built.server_base_url or f"http://{built.server_host}:{built.server_port}",
        timeout=built.server_timeout,
        asking=_asking(trainer),
    )


def _asking(trainer: Host) -> Asking:
    return Asking(
        tokenizer=trainer._tokenizer,
        stop_ids=frozenset(trainer.eos_token_ids),
        stop_strings=tuple(trainer.args.stop_strings or ()),
        slots=trainer.args.engine_slots,
    )


def _ranks(built: TrainedVLLM) -> Ranks:
    accelerator = built.accelerator
    if built.mode == "server":
        several = accelerator.num_processes > 1
        return Ranks(rank=accelerator.process_index, together=several, first_asks=several)
    if built.tensor_parallel_size > 1:
        return Ranks(rank=accelerator.process_index, together=True, group=built.tp_group)
    return Ranks()


def _backend_maker(built: TrainedVLLM) -> Callable[[dict[str, Any]], Backend | None]:
    if built.mode == "colocate":
        make = vllm_generation.SamplingParams
        return lambda arguments: ColocatedBackend(built.llm, make, arguments)
    if not built.accelerator.is_main_process:
        return lambda arguments: None
    return lambda arguments: ServerBackend(built.vllm_client, arguments, calls=SERVER_CALLS)
