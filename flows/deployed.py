"""The one flow that deployments run: any audit, by the name of a recipe. Its signature is the form in Prefect's UI."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, runtime, tags
from prefect.states import Crashed, Failed

from flows.audits import resolved
from flows.recipes import load_recipe, validate
from flows.running import TAG, flow_of
from memlib.audits import AUDITS, audit_of
from memlib.errors import EngineLost, RunError, StoreUnreachable, UserError
from memlib.specs import Resources, Spec, merged


@flow(name="audit", validate_parameters=True)
def audit(
    recipe: str = "smoke",
    changes: dict[str, Any] = {},  # noqa: B006 - the form needs a default in JSON, and nobody writes to it
    store: str = "memlib-store",
    resources: Resources = Resources(),
) -> Any:
    """Runs the audit that a recipe describes. What the store holds already is not done again, so a rerun goes on.

    Args:
        recipe: The name of a shipped recipe, as `memlib recipes` lists them, or the path of a YAML file that the worker can
            read. It says which audit runs.
        changes: Values of the recipe to change, by dotted key, as in {"training.epochs": 50}.
        store: An absolute folder or an s3:// prefix for artifacts, results and reports. Credentials come from the worker's
            environment.
        resources: Machines. What differs from the defaults takes precedence over the recipe's own. Changes no result.

    Returns:
        The run's manifest; or the error in one line: in the state Crashed, from which an automation runs it again, where a
        machine or the store went away, else in the state Failed.
    """
    try:
        name, spec, machines = asked_for(recipe, changes, resources)
        _check_lasting(store)
        with tags(TAG):
            return flow_of(AUDITS[name])(spec, store, machines, True)
    except (EngineLost, StoreUnreachable) as error:
        return Crashed(message=str(error), data=error)
    except (UserError, RunError) as error:
        return Failed(message=str(error), data=error)


def asked_for(recipe: str, changes: Mapping[str, Any], resources: Resources) -> tuple[str, Spec, Resources]:
    """The audit, its recipe and the machines that the parameters name.

    Raises:
        UserError: for a recipe or a change that is none.
    """
    settings = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    content, machines = load_recipe(recipe, settings)
    name = audit_of(str(content.get("audit")))
    if name not in AUDITS:
        raise UserError(f"recipe {recipe} does not say which audit it is for (audit: {', '.join(AUDITS)})")
    said = merged(machines, resources.model_dump(mode="json", exclude_defaults=True))
    return name, validate(AUDITS[name].recipe, resolved(AUDITS[name], content)), validate(Resources, said)


def _check_lasting(store: str) -> None:
    """Refuses a store in the worker's own folder, which is deleted after the run."""
    if runtime.deployment.id is not None and "://" not in store and not Path(store).is_absolute():
        raise UserError(f"store {store!r} lies in a folder that is deleted after the run; use an absolute path or s3://")
