"""Faults of engines that cells of the survey are known to meet, with what reproduces them.

A script uses nothing but the engine's own interface, and exits with 1 while the fault is there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Final

__all__ = ["FINDINGS", "Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of an engine.

    Attributes:
        name: Of its script, and of its entry in the docs.
        title: What happens, in a sentence.
        subjects: By condition that it violates, what it names there: a regular expression for the
            whole of each subject, without the rank that it may begin with.
        follows: Conditions that are violated in consequence, whatever they name.
    """

    name: str
    title: str
    subjects: Mapping[str, str]
    follows: frozenset[str] = frozenset()

    @property
    def script(self) -> str:
        """The text of the script that reproduces it."""
        file = resources.files("syncguard").joinpath(f"survey/scripts/{self.name}.py")
        return file.read_text("utf-8")

    def explains(self, failing: Mapping[str, Sequence[str]]) -> bool:
        """Whether all of a cell's failures are this fault's doing.

        Args:
            failing: Violated condition to what it names.
        """
        if not failing.keys() & self.subjects.keys():
            return False
        return all(
            condition in self.follows or self._names(condition, named)
            for condition, named in failing.items()
        )

    def _names(self, condition: str, named: Sequence[str]) -> bool:
        pattern = self.subjects.get(condition)
        return pattern is not None and all(
            re.fullmatch(rf"(rank\d+:)?({pattern})", name) for name in named
        )


_HEAD: Final = r"lm_head(\.weight)?"
_EXPERT: Final = r"model\.layers\.\d+\.mlp\.experts\..*"

_LINEAR: Final = r"model\.layers\.\d+\.(mlp|self_attn)\..*"

_ALL: Final = (
    Finding(
        "sglang_disk_rollback",
        "an update from disk that fails rolls back to the new weights",
        {"C5": r".*", "C8": r".*"},
    ),
    Finding(
        "sglang_last_token",
        "among a prompt's log-probabilities the last token of the vocabulary is called token 0",
        {"C6": r".*"},
    ),
    Finding(
        "sglang_llama_block_scales",
        "the Llama loader drops the block scales of MXFP8, and the update answers success",
        {"C2": _LINEAR, "C3": _LINEAR, "C5": _LINEAR},
        frozenset({"C6"}),
    ),
    Finding(
        "sglang_online_mxfp8",
        "weights that SGLang quantized itself cannot be updated",
        {"C5": r".*"},
        frozenset({"C2", "C3", "C4", "C6", "C8"}),
    ),
    Finding(
        "sglang_qwen3_moe_dense_layers",
        "a Qwen3 mixture gets experts in the layers that its configuration keeps dense",
        {"C1": _LINEAR, "C5": _LINEAR},
        frozenset({"C2", "C3", "C6"}),
    ),
    Finding(
        "sglang_stale_swizzled_scales",
        "up to 0.5.20 an update from tensors never rebuilds the swizzled scales",
        {"C3": _LINEAR},
        frozenset({"C6"}),
    ),
    Finding(
        "sglang_trtllm_partial_session",
        "with TRT-LLM's kernel each session shuffles every layer again, also what it did not bring",
        {"C2": _LINEAR, "C3": _LINEAR},
        frozenset({"C5", "C6"}),
    ),
    Finding(
        "vllm_tied_head",
        "a tied lm_head keeps the packed copy of its first weights after every reload",
        {"C2": _HEAD, "C3": _HEAD},
        frozenset({"C6"}),
    ),
    Finding(
        "vllm_bf16_experts",
        "unquantized experts are packed for the CPU kernel at start, not after a reload",
        {"C2": _EXPERT, "C3": _EXPERT},
        frozenset({"C6"}),
    ),
    Finding(
        "vllm_int8_scales",
        "after a reload the CPU's INT8 kernels read scales from memory that has been freed",
        {"C2": _LINEAR, "C3": _LINEAR},
        frozenset({"C6"}),
    ),
    Finding(
        "vllm_modelopt_exclusion",
        "ModelOpt's exclusion model.layers.N.mlp.gate also excludes mlp.gate_up_proj",
        {"C1": r"model\.layers\.\d+\.mlp\.(gate|up)_proj\.weight"},
        frozenset({"C2", "C3", "C4", "C5", "C6"}),
    ),
    Finding(
        "vllm_router_quantized",
        "quantization='mxfp8' also quantizes the routers of a mixture",
        {"C1": r"model\.layers\.\d+\.mlp\.gate\.weight"},
        frozenset({"C2", "C3", "C6"}),
    ),
    Finding(
        "vllm_wrong_shape",
        "after one tensor of a wrong shape, the next complete sync fails with its error",
        {"C5": r".*"},
        frozenset({"C2", "C3", "C4", "C6"}),
    ),
    Finding(
        "vllm_empty_update",
        "an update that brings no weight is committed under its new version",
        {"C2": r".*@rank1", "C5": r".*"},
        frozenset({"C3", "C6", "C7", "C8"}),
    ),
    Finding(
        "vllm_folded_handlers",
        "compiled code that folds weights keeps calling packed matrices that a reload has freed",
        {"C4": r".*\.handler_tensor"},
        frozenset({"C5", "C6"}),
    ),
    Finding(
        "vllm_drafted_sampling",
        "on a CPU tokens after drafts are sampled with a temperature that nothing has written",
        {"C6": r".*"},
    ),
    Finding(
        "vllm_expert_scales",
        "after a reload MXFP8 experts read scales that are no parameters any more",
        {"C4": r".*quant_config\._w[12]\.scale|.*w(13|2)_weight_scale"},
        frozenset({"C3"}),
    ),
)

FINDINGS: Final[Mapping[str, Finding]] = MappingProxyType({each.name: each for each in _ALL})
"""By name."""
