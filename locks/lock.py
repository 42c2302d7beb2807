"""Write the hashed locks from constraints.txt: `make locks`, after a change of pyproject.toml or of constraints.txt.

Each environment has a lock of its own, for Linux and Python 3.11 to 3.13. Needs uv.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "3.11.7"
ENVIRONMENTS = {
    "cpu": ["cpu"],
    "gpu": ["gpu"],
    "test": ["cpu", "test"],
    "docs": ["cpu", "test", "docs"],
    "image": ["cpu", "cluster"],
}
"""Extras of memlib in each environment."""
ALONE = {"lightly": ["--no-deps"], "sbom": []}
"""Further locks, of the packages that <name>.in lists, with options of uv."""


def with_plain_names(lock: str) -> str:
    """Return a lock in which packages with extras are listed without them, too: pip takes a hash for one form alone."""
    parts = re.split(r"\n(?=[A-Za-z0-9])", lock.rstrip("\n"))
    both = ([re.sub(r"^([\w.-]+)\[[^]]*]", r"\1", part), part] for part in parts)
    return "\n".join(one for forms in both for one in dict.fromkeys(forms)) + "\n"


def main() -> None:
    """Write all locks."""
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--native-tls", "--python-version", PYTHON,
          "--no-strip-extras", "--generate-hashes", "--no-header", "--no-annotate"]  # fmt: skip
    locks = {
        name: ["pyproject.toml", "locks/build.in", "-c", "constraints.txt", *(f"--extra={extra}" for extra in extras)]
        for name, extras in ENVIRONMENTS.items()
    }
    locks |= {name: [f"locks/{name}.in", *options] for name, options in ALONE.items()}
    for name, arguments in locks.items():
        done = subprocess.run([*uv, *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
        (ROOT / "locks" / f"{name}.txt").write_text(with_plain_names(done.stdout))


if __name__ == "__main__":
    main()
