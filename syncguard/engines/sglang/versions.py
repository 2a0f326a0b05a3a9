"""Check several versions of SGLang, each in a process of its own, and compare.

``python -m syncguard.engines.sglang.versions 0.5.20 0.5.21`` downloads their wheels and runs the
checks on each. Until 0.5.20 an update from tensors never rebuilds the swizzled scales (F3): that
version must fail C3, and later ones pass.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["check_version", "main"]

_TIMEOUT_S: Final = 300
_CHECKS: Final = (
    "weight-bytes",
    "exact-probe",
    "random-probe",
    "re-derivation",
    "ledger",
    "finite",
)


def check_version(version: str, folder: Path, path: str = "session") -> Mapping[str, str]:
    """Run the checks on one version of SGLang after one sync.

    Args:
        version: Of the wheel, which is downloaded if the folder has none.
        folder: Where wheels and unpacked packages are kept.
        path: How the sync reaches the engine.

    Returns:
        Check to status, or ``error`` to what went wrong.
    """
    unpacked = folder / version
    if not unpacked.exists():
        _unpack(version, folder, unpacked)
    ahead = os.pathsep.join([str(unpacked), *sys.path])
    environment = {**os.environ, "PYTHONPATH": ahead, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __spec__.name, "--here", path]
    try:
        ran = subprocess.run(  # noqa: S603 - our own module
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_TIMEOUT_S} s"}
    if ran.returncode:
        return {"error": ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else "died"}
    answer: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the versions that are named; 0 if each is as its version number says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=["0.5.20", "0.5.21"])
    parser.add_argument("--folder", type=Path, help="where wheels are kept")
    parser.add_argument("--path", default="session", help="how the sync reaches the engine")
    parser.add_argument("--here", metavar="PATH", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.here:
        _say(json.dumps(_check_here(given.here)))
        return 0
    with tempfile.TemporaryDirectory(prefix="syncguard-sglang-") as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        asexpected = True
        for version in given.versions:
            found = check_version(version, folder, given.path)
            asexpected &= _row(version, found, stale=_is_stale(version, given.path))
    return 0 if asexpected else 1


def _is_stale(version: str, path: str) -> bool:
    """F3: until 0.5.20, only a load from disk processes what it loaded."""
    return tuple(map(int, version.split("."))) <= (0, 5, 20) and path != "disk"


def _row(version: str, found: Mapping[str, str], *, stale: bool) -> bool:
    wanted = "fail" if stale else "pass"
    right = found.get("weight-bytes") == "pass" and found.get("exact-probe") == wanted
    told = ", ".join(f"{name} {found[name]}" for name in (*_CHECKS, "error") if name in found)
    verdict = "as expected" if right else f"NOT as expected (exact-probe {wanted})"
    _say(f"sglang {version}: {told}: {verdict}")
    return right


def _unpack(version: str, folder: Path, unpacked: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run(  # noqa: S603 - a package by its exact version
        [*download, "--dest", str(folder), f"sglang=={version}"], check=True
    )
    wheel = next(folder.glob(f"sglang-{version}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)


def _check_here(path: str) -> dict[str, str]:
    from syncguard.engines.sglang.adapter import SglangEngine
    from syncguard.guard import Guard
    from syncguard.learners import TransformersLearner
    from syncguard.models import resolve_model
    from syncguard.reporting import Broadcast

    with tempfile.TemporaryDirectory(prefix="syncguard-models-") as models:
        checkpoint = resolve_model("tiny-qwen3", models)
        engine = SglangEngine(checkpoint.path, path=path)
        learner = TransformersLearner(checkpoint.path, quantization="mxfp8", wire=engine.wire)
        guard = Guard(learner, engine, Broadcast([]), vocabulary=checkpoint.config["vocab_size"])
        _, verdicts = guard.sync(bucket_bytes=200_000)
        engine.close()
    return {verdict.check: str(verdict.status) for verdict in verdicts}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
