"""SGLang, live on a CPU."""

from syncguard.engines.sglang.adapter import PATHS, SglangEngine

__all__ = ["PATHS", "SglangEngine"]
