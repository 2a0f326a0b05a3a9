"""vLLM, live on a CPU."""

from syncguard.engines.vllm.adapter import PATHS, VllmEngine

__all__ = ["PATHS", "VllmEngine"]
