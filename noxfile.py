"""The smoke check on every version of vLLM that the adapter supports; not a part of CI.

`pipx run nox` runs all of them, `pipx run nox -s "vllm(version='0.31.0')"` one, in the environment
that `make install` has made: each version's wheel comes before the environment's own on the path.
"""

import nox

VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0")


@nox.session(python=False)
@nox.parametrize("version", VERSIONS)
def vllm(session: nox.Session, version: str) -> None:
    """Run the smoke check on one version, and write its row of docs/versions.md."""
    session.run(".venv/bin/python", "scripts/version_matrix.py", version, external=True)
