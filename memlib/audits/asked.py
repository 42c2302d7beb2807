"""Findings and page sections on a service: its noise beside the scores, changes, and attacks that it does not allow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlib.findings import Finding, Findings, diagnostic
from memlib.observe.service_checks import HOW_TESTED, HOW_TESTED_BY_TEXT, LEVELS, Level, ServiceCheck
from memlib.pipeline.stage import AnyArtifact
from memlib.report.page import Section, TableView, facts_table
from memlib.specs import ServedSpec

NOTICED = 0.1  # of the spread of scores, from which on noise is stated
SERVICE = "service"
VOID = "The service's answers decide nothing."
CARRIED_OUT, NOT_POSSIBLE, NOT_ASKED = "carried out", "not possible with this access", "not asked for"


def service_row(
    *,
    host: str,
    model: str,
    level: Level,
    requests: int,
    noise: float,
    spread: float,
    changed: str,
    when: str,
    n: int,
    forced: bool = False,
) -> Finding:
    """Return the finding on a service.

    Args:
        host, model: where it is, and the model's name there.
        requests: number of requests, those of its tests included.
        noise: largest difference of a text's mean log probability between equal requests, in nats a token; 0 of answers.
        spread: standard deviation of the scores, in nats a token.
        changed: how the model changed during the audit; "" if it did not.
        when: date of its test before.
        n: number of units.
        forced: whether generated text alone was asked for, whatever the service gives.
    """
    params: dict[str, Any] = {"host": host, "served": model, "level": level, "requests": requests, "when": when}
    if forced:
        params["forced"] = True
    if level == "scores":
        params |= {"noise": noise, "spread": spread}
    if void := void_of(noise, spread, changed):
        params["void"] = void
    elif noise and noise >= NOTICED * spread:
        params["noisy"] = (
            f"Equal requests to the service differ by {noise:.2g} nats a token, and the standard deviation of the scores is "
            f"{spread:.2g}."
        )
    return diagnostic(SERVICE, params, noise, n=n)


def row_of(
    service: ServedSpec, checks: Sequence[ServiceCheck], answers: Sequence[AnyArtifact], *, spread: float, n: int
) -> Finding:
    """Return the finding on a service, from its tests before and after, and the artifacts of what was asked between them.

    Args:
        spread, n: as in `service_row`.
    """
    return service_row(
        host=service.host, model=service.model, level=checks[0].level, spread=spread, n=n,
        requests=sum(check.asked for check in checks) + sum(part.facts.get("requests", 0) for part in answers),
        noise=max(check.noise_of_texts for check in checks) if checks[0].level == "scores" else 0.0,
        changed=changed_in(checks, answers), when=checks[0].when, forced=service.level == "text",
    )  # fmt: skip


def changed_in(checks: Sequence[ServiceCheck], answers: Sequence[AnyArtifact]) -> str:
    """Return how the model changed during the audit, by its tests and by its names in all answers; "" if it did not."""
    if said := next((check.changed for check in checks if check.changed), ""):
        return said
    known = {name for check in checks for name in check.names}
    others = {name for part in answers for name in part.facts.get("names", ())} - known
    return (
        f"some answers are by {', '.join(sorted(others))}, and not by {', '.join(sorted(known))}" if known and others else ""
    )


def void_of(noise: float, spread: float, changed: str) -> str:
    """Return why answers of a service decide nothing; "" if they do.

    Args:
        noise, spread, changed: as in `service_row`.

    Example:
        >>> void_of(1e-5, 0.3, ""), void_of(0.0, 0.0, "")
        ('', 'All scores are alike.')
        >>> void_of(0.4, 0.3, "")
        'The scores vary by 0.3 nats a token, no more than equal requests to the service do (0.4).'
    """
    if changed:
        return f"The service changed during the audit: {changed}."
    if not spread > 0:
        return "All scores are alike."
    if noise >= spread:
        return f"The scores vary by {spread:.2g} nats a token, no more than equal requests to the service do ({noise:.2g})."
    return ""


def is_void(row: Finding | None) -> bool:
    """Return whether a finding on a service says that its answers decide nothing."""
    return row is not None and "void" in row.params


def said_of_service(findings: Findings) -> Iterator[str]:
    """Yield sentences on a service that was asked; none of a model at hand."""
    row = findings.get(SERVICE)
    if row is not None:
        given = "log probabilities of given texts" if row.params["level"] == "scores" else "generated text alone"
        yield f"The model was asked behind a service ({row.params['host']}, {row.params['when']}), for {given}."
        yield from (row.params[name] for name in ("void", "noisy") if name in row.params)


def service_section(findings: Findings, attacks: Mapping[str, str], more: Mapping[str, str] | None = None) -> Section | None:
    """Return the section of a page on a service that was asked; None of a model at hand.

    Args:
        attacks: by name of the attack, what became of it.
        more: further facts by name.
    """
    row = findings.get(SERVICE)
    if row is None:
        return None
    params = row.params
    facts = {
        "service": f"{params['served']} at {params['host']}",
        "gives": "it was asked for generated text alone" if params.get("forced") else LEVELS[params["level"]],
        "requests": f"{params['requests']:,}, with its test before and after, from {params['when']} on",
    }  # fmt: skip
    if "noise" in params:
        facts["difference between equal requests"] = f"{params['noise']:.2g} nats a token"
        facts["standard deviation of the scores"] = f"{params['spread']:.2g} nats a token"
    cells = list(attacks.items())
    how = HOW_TESTED if params["level"] == "scores" else HOW_TESTED_BY_TEXT
    return Section("The service", how, facts_table({**facts, **(more or {})}), TableView(("attack", ""), cells, data=[row]))
