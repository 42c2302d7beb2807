"""python -m benchmarks.validity NAME [--minutes M]: compute a part of the study, or resume it; print and record it."""

import argparse
import importlib

from benchmarks.evidence import EVIDENCE, blocks, write
from benchmarks.validity.harness import Part, carry_out, made

MODULES = (
    "smoke",
    "gate",
    "baseline",
    "deja_vu",
    "deja_vu_alone",
    "persons",
    "reconstruction",
    "captions",
    "forgetting",
    "unique_feature",
    "exposure",
    "documents",
    "fine_tunes",
    "sweeps",
    "words",
    "power",
    "forests",
    "membership",
    "declared",
    "dossier",
    "look",
    "canaries",
    "served",
)


def parts() -> dict[str, Part]:
    """Return all parts by name."""
    every = [part for name in MODULES for part in importlib.import_module(f"benchmarks.validity.{name}").PARTS]
    return {part.name: part for part in every}


def main() -> None:
    known = parts()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=known)
    parser.add_argument("--minutes", type=float, default=39.0, help="stop after this many minutes; the same command resumes")
    chosen = parser.parse_args()
    part = known[chosen.part]
    rows = carry_out(part, minutes=chosen.minutes)
    lines = list(part.report(rows))
    print("\n".join([f"## {part.name}", "", part.question, "", made(rows), "", *lines]))
    record = {"part": part.name, "question": part.question, "command": f"make validity PART={part.name}", "made": made(rows)}
    write(EVIDENCE / "validity" / f"{part.name}.yaml", record | {"shown": list(blocks(lines))})


if __name__ == "__main__":
    main()
