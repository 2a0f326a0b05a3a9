"""What the stub engine decides when it builds a layer: method, kernel, layout."""

from syncguard.stubs.kernels import Mxfp8Kernel, PackedKernel, PlainKernel
from syncguard.stubs.layouts import LAYOUTS
from syncguard.stubs.methods import Mxfp8OnlineMethod, Mxfp8SerializedMethod, UnquantizedMethod
from syncguard.stubs.topology import Topology

__all__ = ["QuantConfig"]


class QuantConfig:
    """The engine's quantization configuration, asked once for every layer that is built.

    Args:
        topology: Of the model.

    Attributes:
        ignore: Modules that stay unquantized, by path.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        routers = [f"model.layers.{layer}.mlp.gate" for layer in range(topology.layers)]
        self.ignore = ("lm_head", "model.embed_tokens", *routers)

    def is_excluded(self, module: str) -> bool:
        """Whether a module stays unquantized; ``module`` is its path in the engine."""
        return self.topology.quantization == "none" or module in self.ignore

    def choose_layout(self, module: str) -> str:
        """The kernel layout of a module: a name of `syncguard.stubs.layouts.LAYOUTS`."""
        topology = self.topology
        if module.endswith(".experts"):
            return topology.expert_kernel
        return topology.head_kernel if module == "lm_head" else topology.linear_kernel

    def method(self, module: str, kind: str) -> UnquantizedMethod:
        """The method, with its kernel, of one module.

        Args:
            module: Its path in the engine.
            kind: As in `syncguard.stubs.modules.StubLayer`.
        """
        layout = self.choose_layout(module)
        if not self.is_excluded(module):
            online = self.topology.wire == "bf16"
            method = Mxfp8OnlineMethod if online else Mxfp8SerializedMethod
            return method(Mxfp8Kernel(LAYOUTS.get(layout, LAYOUTS["plain"])))
        if kind == "head" and layout in ("packed", "freed"):
            return UnquantizedMethod(PackedKernel(frees=self._may_free(layout)))
        known = LAYOUTS.get(layout, LAYOUTS["plain"])
        reordered = known if kind == "experts" else LAYOUTS["plain"]
        return UnquantizedMethod(PlainKernel(reordered))

    def _may_free(self, layout: str) -> bool:
        return layout == "freed" and not self.topology.tied
