"""What vLLM loads in every process of an engine: our CPU kernels and our transport.

vLLM calls `register` in each of its processes, through the entry point group
``vllm.general_plugins``. It only adds choices: the kernels are taken for MXFP8 on a CPU, where
vLLM has none that runs, and the transport only where a configuration names it.
"""

__all__ = ["register"]


def register() -> None:
    """Add the CPU kernels and the file transport to vLLM's registries; safe to call again."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    from syncguard.engines.vllm.compat import choose_experts
    from syncguard.engines.vllm.kernel import CpuMxfp8LinearKernel
    from syncguard.engines.vllm.launch import BACKEND
    from syncguard.engines.vllm.transport import FileTransferEngine

    if CpuMxfp8LinearKernel not in linear._POSSIBLE_MXFP8_KERNELS.get(PlatformEnum.CPU, ()):
        linear.register_linear_kernel(CpuMxfp8LinearKernel, PlatformEnum.CPU, "mxfp8")
    choose_experts()
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, FileTransferEngine)
