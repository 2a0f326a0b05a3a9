"""Models by name: tiny random checkpoints that syncguard makes itself, or a checkpoint folder."""

import difflib
import hashlib
import json
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from syncguard.checkpoints import Checkpoint, read_checkpoint
from syncguard.errors import UsageError

__all__ = ["MODELS", "TinyModel", "expert_count", "resolve_model"]

_EXPERTS: Final = ("n_routed_experts", "num_experts", "num_local_experts")
"""What configurations of models call the number of their experts."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A small random checkpoint, the same bytes wherever it is made.

    Attributes:
        name: What the user types.
        summary: One line for a list of models.
        model_type: The transformers model type.
        settings: Arguments of its configuration.
        seed: Of the random weights.
        spread: Standard deviation of the layers' matrices, four times what training starts from:
            quantization errors and faults then show in the probabilities.
        head_spread: Of the embedding and the head; the policy's entropy is then 4 nats of the 6.2
            of a uniform one.
        norm_spread: Standard deviation of norm weights around 1; not 0, so that a lost or swapped
            norm weight shows.
    """

    name: str
    summary: str
    model_type: str
    settings: Mapping[str, Any] = field(repr=False)
    seed: int = 0
    spread: float = 0.08
    head_spread: float = 0.2
    norm_spread: float = 0.1

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of all of the above, which name its folder in the cache."""
        told = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:8]


_QWEN3: Final = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

_SPREAD_WIDE: Final = 0.056
"""At twice the width, so that layers amplify no more: routers would go by rounding errors."""

MODELS: Final[Mapping[str, TinyModel]] = {
    model.name: model
    for model in (
        TinyModel(
            "tiny-qwen3",
            "Qwen3, 2 layers of width 128, 512 tokens, with a head of its own",
            "qwen3",
            {**_QWEN3, "tie_word_embeddings": False},
        ),
        TinyModel(
            "tiny-qwen3-tied",
            "the same, with the embedding as head",
            "qwen3",
            {**_QWEN3, "tie_word_embeddings": True},
        ),
        TinyModel(
            "tiny-qwen3-wide",
            "Qwen3, 2 layers of width 256: what each of two ranks holds is enough for any kernel",
            "qwen3",
            {
                **_QWEN3,
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "tie_word_embeddings": False,
            },
            spread=_SPREAD_WIDE,
        ),
        TinyModel(
            "tiny-qwen3-moe",
            "Qwen3 with 4 experts, of which a token uses 2; the first layer is dense",
            "qwen3_moe",
            {
                **_QWEN3,
                "tie_word_embeddings": False,
                "moe_intermediate_size": 192,  # so that both of two ranks have whole blocks
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "mlp_only_layers": [0],
                "norm_topk_prob": True,
            },
        ),
        TinyModel(
            "tiny-qwen3-moe-wide",
            "Qwen3 with 4 experts in both layers, of width 256: enough for any kernel on two ranks",
            "qwen3_moe",
            {
                **_QWEN3,
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "tie_word_embeddings": False,
                "moe_intermediate_size": 256,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "norm_topk_prob": True,
            },
            spread=_SPREAD_WIDE,
        ),
        TinyModel(
            "tiny-glm4-moe",
            "GLM 4.5 with 4 experts and a shared one, a router bias, and a dense first layer",
            "glm4_moe",
            {
                **_QWEN3,
                "tie_word_embeddings": False,
                "moe_intermediate_size": 192,  # so that both of two ranks have whole blocks
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 1.0,
                "norm_topk_prob": True,
                "use_qk_norm": True,
            },
        ),
        TinyModel(
            "tiny-llama",
            "Llama, 2 layers of width 96, 512 tokens, with a head of its own",
            "llama",
            {
                **_QWEN3,
                "hidden_size": 96,
                "intermediate_size": 160,
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "tie_word_embeddings": False,
            },
        ),
    )
}
"""The checkpoints that syncguard makes itself, by name."""


def expert_count(config: Mapping[str, Any]) -> int:
    """How many experts a layer of a model has; 0 if it is no mixture.

    Args:
        config: Its configuration, as transformers writes it.
    """
    return next((int(config[name]) for name in _EXPERTS if config.get(name)), 0)


def resolve_model(
    name_or_path: str, cache_dir: str | Path, *, quantization: str = "none"
) -> Checkpoint:
    """Give the checkpoint that the user means, checked; make it if it is one of `MODELS`.

    Args:
        name_or_path: A key of `MODELS`, or a folder.
        cache_dir: Where made checkpoints are kept; it may be missing.
        quantization: ``none``, or ``mxfp8`` to also check that the layers divide into blocks.

    Returns:
        The checkpoint.

    Raises:
        UsageError: There is no such model, or the folder is not a usable checkpoint.
    """
    model = MODELS.get(name_or_path)
    if model is not None:
        path = _made(model, Path(cache_dir))
        return read_checkpoint(path, name=model.name, quantization=quantization)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise UsageError(_unknown(name_or_path))
    return read_checkpoint(path, name=name_or_path, quantization=quantization)


def _unknown(name_or_path: str) -> str:
    close = difflib.get_close_matches(name_or_path, MODELS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"model {name_or_path!r} is neither a folder nor a name that syncguard knows.{hint} "
        f"Known names: {', '.join(sorted(MODELS))}. Nothing is downloaded: for any other model "
        f"give the folder of its checkpoint"
    )


def _made(model: TinyModel, cache_dir: Path) -> Path:
    folder = cache_dir / f"{model.name}-{model.digest}"
    damaged = False
    if folder.exists():
        try:
            read_checkpoint(folder)
        except UsageError:
            damaged = True
        else:
            return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        # Everything happens in a scratch folder beside; a rename then publishes all or nothing.
        with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=cache_dir) as scratch:
            made = Path(scratch, "made")
            _make(model, made)
            if damaged:
                folder.rename(Path(scratch, "damaged"))
            made.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster
            raise UsageError(
                f"model {model.name!r}: cannot make it in the cache folder {str(cache_dir)!r}: "
                f"{error}. Give a cache folder that can be written to"
            ) from error
    return folder


def _make(model: TinyModel, folder: Path) -> None:
    from syncguard._libraries import import_transformers, quiet

    transformers = import_transformers()
    config = transformers.AutoConfig.for_model(model.model_type, **model.settings)
    with quiet():
        built = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        with torch.no_grad():
            persistent = built.state_dict().keys()
            buffers = [item for item in built.named_buffers() if item[0] in persistent]
            for name, tensor in [*built.named_parameters(), *buffers]:
                tensor.copy_(_values(model, name, tensor.shape))
        built.save_pretrained(folder)


def _values(model: TinyModel, name: str, shape: torch.Size) -> torch.Tensor:
    # Each tensor has a generator of its own, so that no order of parameters matters.
    generator = torch.Generator().manual_seed(model.seed + zlib.crc32(name.encode()))
    noise = torch.randn(shape, generator=generator)
    if len(shape) < 2:
        return 1 + noise * model.norm_spread
    return noise * (model.head_spread if "embed" in name or "head" in name else model.spread)
