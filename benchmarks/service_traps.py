"""Services that mislead: what memlib says of each trap of the server in `benchmarks.served`, as a table.

python -m benchmarks.service_traps
"""

import sys
from pathlib import Path

from benchmarks.served import TRAPS
from memlib.errors import RunError, UserError
from memlib.observe.service_checks import check_again, check_service
from memlib.specs import ServedSpec


def main() -> None:
    """Print the table."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "end_to_end"))
    from small_service import serving

    print("| the service | by its test before an audit |")
    print("|---|---|")
    with serving(shapes=("completions", "chat")) as (served, part):
        spec = ServedSpec.model_validate(part)
        for trap, meaning in {"": "scores given texts, as it should", **TRAPS}.items():
            served.trap, served.requests = trap, 0
            served.asked.clear()
            try:
                if trap == "changes":
                    served.trap = ""
                    before = check_service(spec)
                    served.trap, served.requests = trap, 1000
                    said = f"inconclusive: {check_again(spec, before).changed}"
                else:
                    found = check_service(spec)
                    how = f"refused: {found.problems[0]}" if found.problems else f"used ({found.level})"
                    said = "; ".join([how, *found.remarks])
            except (RunError, UserError) as error:
                said = f"refused: {str(error).replace(spec.host, 'HOST')}"
            print(f"| {meaning} | {said} |")


if __name__ == "__main__":
    main()
