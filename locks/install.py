"""Install memlib and what it needs from a hashed lock: python locks/install.py ENVIRONMENT [--torch-index URL].

The environments are those of locks/*.txt. With --torch-index, PyTorch comes from another index or a folder of wheels, whose
files no lock knows (its wheels for the CPU alone need a tenth of the disk), and everything else is checked as before. Systems
other than Linux have no lock: constraints.txt fixes the versions there.
"""

import argparse
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

LOCKS = Path(__file__).parent
EXTRAS = {"cpu": "cpu", "gpu": "gpu", "test": "cpu,test", "docs": "cpu,test,docs", "image": "cpu,cluster"}
TORCH = ("torch", "torchvision")
FOR_CUDA = re.compile(r"(torch|torchvision|triton|nvidia-[\w-]+|cuda-[\w-]+)(\[[^]]*])?==")  # come with PyTorch's own wheels
PIP = [sys.executable, "-m", "pip"]


def parts(lock: str) -> list[str]:
    """Return the packages of a lock, each with its hashes."""
    return re.split(r"\n(?=[A-Za-z0-9])", lock.rstrip("\n"))


def without_torch(lock: str) -> str:
    """Return a lock without PyTorch and the libraries that its wheels for NVIDIA's GPUs need."""
    return "\n".join(part for part in parts(lock) if not FOR_CUDA.match(part)) + "\n"


def from_index(lock: str, index: str) -> list[str]:
    """Return pip's arguments for the lock's version of PyTorch from another index, or a folder of wheels."""
    versions = dict(re.findall(r"^(torch|torchvision)==([^ \\\n]+)", lock, re.MULTILINE))
    where = ["--no-index", "--find-links", index] if Path(index).is_dir() else ["--index-url", index]
    return ["install", "--quiet", "--no-deps", *where, *(f"{name}=={versions[name]}" for name in TORCH)]


def main() -> None:
    """Install one environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environment", choices=sorted(EXTRAS))
    parser.add_argument("--torch-index", default="", help="index, or folder, from which PyTorch is taken, unchecked")
    parser.add_argument("--needs-only", action="store_true", help="leave out memlib itself")
    options = parser.parse_args()
    other = "faiss-cpu" if options.environment == "gpu" else "faiss-gpu"  # both packages are the same module
    pip("uninstall", "--quiet", "--yes", other)
    if not sys.platform.startswith("linux"):
        print("there are no locks for this system: versions are fixed, files are not checked", file=sys.stderr)
        pip("install", "--quiet", "-c", str(LOCKS.parent / "constraints.txt"), "-e", f".[{EXTRAS[options.environment]}]")
        return
    lock = (LOCKS / f"{options.environment}.txt").read_text()
    if options.torch_index:
        print(f"PyTorch comes from {options.torch_index}, and no hash of it is checked", file=sys.stderr)
        pip(*from_index(lock, options.torch_index))
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as rest:
            rest.write(without_torch(lock))
            rest.flush()
            from_lock(rest.name)
    else:
        from_lock(str(LOCKS / f"{options.environment}.txt"))
    if "test" in EXTRAS[options.environment].split(","):  # its losses are oracles; they load nothing of what else it needs
        from_lock(str(LOCKS / "lightly.txt"))
    if not options.needs_only:
        pip("install", "--quiet", "--no-deps", "--no-build-isolation", "-e", ".")
    compile_all()


def from_lock(path: str) -> None:
    """Install all of a lock, which is complete; bytecode is made afterwards, on all cores."""
    pip("install", "--quiet", "--no-deps", "--no-compile", "--require-hashes", "-r", path)


def compile_all() -> None:
    """Make the bytecode of all packages; files that are no valid Python are left."""
    packages = sysconfig.get_path("purelib")
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", packages], stdout=subprocess.DEVNULL, check=False)


def pip(*arguments: str) -> None:
    """Run pip; end with its status if it fails."""
    status = subprocess.run([*PIP, *arguments], cwd=LOCKS.parent, check=False).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main()
