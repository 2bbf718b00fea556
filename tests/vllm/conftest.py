"""Real vLLM on the CPU: collected only where vLLM is installed; ``make test-vllm`` makes such an environment."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(autouse=True)
def weights_can_be_loaded_again(monkeypatch):
    """vLLM packs the weights of linear layers for the CPU, after which nothing can be loaded into them."""
    import torch
    import vllm.model_executor.layers.utils as layers

    def plain(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    monkeypatch.setattr(layers, "dispatch_cpu_unquantized_gemm", plain)


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """Compiling takes a minute and a half a model here."""
    from functools import partial

    from trl.generation import vllm_generation

    eager = partial(vllm_generation.LLM, enforce_eager=True)
    monkeypatch.setattr(vllm_generation, "LLM", eager)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """Folder of the tiny policy, for vLLM."""
    from tests.vllm.policies import padded_tiny_policy

    return padded_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def server(policy, tmp_path_factory):
    """Address of a server with the tiny policy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", policy]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
    command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    command += ["--weight-transfer-config", '{"backend":"nccl"}', "--port", str(port)]
    log = tmp_path_factory.mktemp("server") / "log"
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url, process):
    while True:
        assert process.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
        except OSError:
            time.sleep(0.5)
        else:
            return
