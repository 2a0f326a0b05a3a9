import subprocess
import sys
from typing import Final

import pytest

# In a process of its own: how many threads this one may use is not a test's to change.
PROGRAM: Final = """
import sys
import torch
from syncguard.campaign import pool

def busy(_=None):
    torch.ones(1 << 22).cos()
    return {"threads": torch.get_num_threads()}

torch.set_num_threads(2)
busy()
if sys.argv[1] == "kept":
    pool.end_threads = lambda: None
for _, result in pool.run_jobs([1, 2], busy, workers=1, timeout_s=float(sys.argv[2])):
    print(getattr(result, "why", result))
"""


@pytest.mark.parametrize(
    ("threads", "limit", "told"),
    [
        ("ended", "60", "{'threads': 2}\n" * 2),
        pytest.param("kept", "1", "no result within 1 s\n" * 2, marks=pytest.mark.slow),
    ],
)
def test_a_child_may_compute_in_threads_after_its_parent_has(
    threads: str, limit: str, told: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, threads, limit]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (ran.stdout, ran.stderr) == (told, "")
