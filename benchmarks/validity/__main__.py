"""python -m benchmarks.validity NAME [--minutes M]: computes a part of the study, or goes on with it, and prints it."""

import argparse
import importlib

from benchmarks.validity.harness import Part, carry_out, heading

MODULES = ("deja_vu", "deja_vu_alone", "forgetting", "unique_feature", "exposure")


def parts() -> dict[str, Part]:
    """All parts by name."""
    found = [part for name in MODULES for part in importlib.import_module(f"benchmarks.validity.{name}").PARTS]
    return {part.name: part for part in found}


def main() -> None:
    known = parts()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=known)
    parser.add_argument("--minutes", type=float, default=39.0, help="stop after so long; the same command goes on")
    chosen = parser.parse_args()
    part = known[chosen.part]
    rows = carry_out(part, minutes=chosen.minutes)
    print("\n".join([*heading(part, rows), *part.report(rows)]))


if __name__ == "__main__":
    main()
