"""SGLang up to 0.5.20: an update from tensors never rebuilds what kernels derive from weights.

A load from disk runs the layers' post-processing, an update from tensors does not: the kernels of
MXFP8 then read scales that were swizzled at start. From 0.5.21 on the end of a session runs it.
Runs SGLang's updater on one layer. Needs SGLang where it can be imported.
Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import functools
import sys
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.quantization.base_config import QuantizeMethodBase
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket


class Derives(QuantizeMethodBase):  # type: ignore[misc]
    """A method that keeps a copy of its layer's weight, as for a kernel."""

    def apply(self, layer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Not served here."""
        raise NotImplementedError

    def process_weights_after_loading(self, layer: Any) -> None:
        """Derive anew."""
        layer.derived = layer.weight.data.clone()


class Model(torch.nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: Any = torch.nn.Module()
        self.layer.weight = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
        self.layer.quant_method = Derives()
        self.layer.quant_method.process_weights_after_loading(self.layer)

    def load_weights(self, weights: Any) -> None:
        """Copy what comes."""
        for _, tensor in weights:
            self.layer.weight.data.copy_(tensor)


def main() -> int:
    """Update the weight: what is derived from it must follow."""
    model = Model()
    updater = SimpleNamespace(
        get_model=lambda: model,
        device="cpu",
        _assert_weight_cache_inactive=lambda *_: None,
    )
    updater._update_weights_from_flattened_bucket = functools.partial(
        WeightUpdater._update_weights_from_flattened_bucket, updater
    )
    bucket = FlattenedTensorBucket(named_tensors=[("layer.weight", torch.ones(4))])
    payload = {
        "flattened_tensor": bucket.get_flattened_tensor(),
        "metadata": bucket.get_metadata(),
    }
    sessions = hasattr(WeightUpdater, "begin_weight_update")
    if sessions:
        WeightUpdater.begin_weight_update(updater)
    answer = WeightUpdater.update_weights_from_tensor(updater, payload, "flattened_bucket")
    print(f"the update answers: {answer}")
    if sessions:
        WeightUpdater.end_weight_update(updater, run_post_load=False)
    print(f"the weight: {model.layer.weight.tolist()}")
    print(f"what the kernel reads: {model.layer.derived.tolist()}")
    print("expected: the same")
    return int(not torch.equal(model.layer.derived, model.layer.weight.data))


if __name__ == "__main__":
    sys.exit(main())
