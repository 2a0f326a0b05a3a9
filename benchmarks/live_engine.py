"""Fingerprints against vLLM's own weight checksums (SHA-256), on the same live model.

The model is SmolLM2-135M if `make smollm2` has made it, else one of random weights of that size;
both with MXFP8 linears. vLLM's `compute_weight_checksums` reads all named parameters. The subject
prints the same tensors, row by row, scales byte by byte; the adapter's `weight_prints`, which also
tells fused shards apart and leaves nothing named twice, is noted beside.

What checks cost after a live sync, and what memory they take, belongs into a file of its own here:
`live_checks.py`, with the rows named in README.md.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from _measure import Row, at_least, machine, not_run, noted, ratios, record, rounds, use_all_cores

_NAME = "fingerprints of a live model, speed over vLLM's checksums"
_BOUND = 8
_ROUNDS = 12
_SMOLLM2 = Path(__file__).parents[1] / "build" / "smollm2"
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def _rows(checkpoint: Path) -> list[Row]:
    from syncguard.engines.vllm import VllmEngine
    from syncguard.fingerprint import row_prints

    engine = VllmEngine(checkpoint, "mxfp8")
    llm = engine._llm
    use_all_cores()
    model: Any = engine._model
    tensors = dict(model.named_parameters())
    total = sum(tensor.nbytes for tensor in tensors.values())
    print(f"  {len(tensors)} parameters, {total / 1e6:.0f} MB")

    def checksums() -> None:
        (digests,) = llm.collective_rpc("compute_weight_checksums")
        # Names begin with the rank.
        if {name.rpartition(":")[2] for name in digests} != tensors.keys():
            raise AssertionError("vLLM's checksums cover other parameters")

    def prints() -> None:
        for name, tensor in tensors.items():
            row_prints(tensor, granule=1 if name.endswith("_scale") else None)

    speed, spent = ratios(prints, checksums, rounds(_ROUNDS))
    whole, _ = ratios(engine.weight_prints, checksums, rounds(_ROUNDS))
    scale = 1e12 / total
    return [
        at_least(_NAME, speed, "ratio", _BOUND),
        noted("weight_prints of a live model, speed over vLLM's checksums", whole, "ratio"),
        noted(
            "fingerprints of a live model",
            type(spent)(spent.median * scale, spent.low * scale, spent.high * scale),
            "ms/GB",
        ),
    ]


def _main() -> None:
    print(f"  {machine()}")
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        record([not_run(_NAME, "ratio", f"at least {_BOUND}", str(error))])
        return
    if (_SMOLLM2 / "config.json").is_file():
        record(_rows(_SMOLLM2))
        return
    with tempfile.TemporaryDirectory(prefix="syncguard-bench-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_CONFIG))
        record(_rows(Path(folder)))


if __name__ == "__main__":
    _main()
    # vLLM's interpreter exit takes seconds and may print; everything is written by now.
    os._exit(0)
