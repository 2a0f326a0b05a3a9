"""SGLang: the Llama loader drops the block scales of FP8 and MXFP8 weights, without an error.

It renames ``weight_scale_inv`` to ``weight_scale`` for every model, and no block-quantized layer
has a parameter of that name. Needs SGLang where it can be imported; no model and no GPU.
Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import sys
from types import SimpleNamespace

import torch
from sglang.srt.models.llama import LlamaForCausalLM


def main() -> int:
    """Load one scale: it must arrive."""
    name = "model.layers.0.self_attn.o_proj.weight_scale_inv"
    scale = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)
    model = SimpleNamespace(
        named_parameters=lambda: [(name, scale)],
        model=object(),
        config=SimpleNamespace(tie_word_embeddings=False),
    )
    load = getattr(LlamaForCausalLM, "_legacy_load_weights", LlamaForCausalLM.load_weights)
    load(model, [(name, torch.full((4, 4), 127, dtype=torch.uint8))])
    print(f"the scale after loading 127: {scale[0].tolist()}")
    print("expected: [127, 127, 127, 127]")
    return int(not bool((scale == 127).all()))


if __name__ == "__main__":
    sys.exit(main())
