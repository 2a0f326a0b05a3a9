"""The plugin costs nothing where it is not used."""

import subprocess
import sys
from pathlib import Path

HEAVY = {"torch", "rich", "jsonschema", "hypothesis", "vllm", "syncguard.plugin"}


def test_a_run_without_syncguard_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert 'syncguard.pytest_plugin' in sys.modules\n"
        f"    assert sorted({HEAVY!r} & set(sys.modules)) == []\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:randomly"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
