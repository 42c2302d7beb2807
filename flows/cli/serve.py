"""The command that carries audits out on a schedule."""

import contextlib
import hashlib
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from flows.cli.messages import say
from flows.cli.store import StoreOption
from memlib.console import show_text
from memlib.errors import UserError
from memlib.recipes.request import AuditRequest
from memlib.store import DEFAULT_STORE, Store
from memlib.store.permissions import user_folder

PORT = 4200


def serve(
    recipes: Annotated[list[str], Parameter(negative="")],
    /,
    *,
    cron: str,
    store: StoreOption = DEFAULT_STORE,
    port: int = PORT,
) -> None:
    """Carry audits out on a schedule, on this machine, until interrupted: every night, for example.

    A Prefect server on loopback shows the runs, protected by a password; if PREFECT_API_URL names a server, that one does.
    What dies is started again, a crashed run resumes from the store, and for each run that ended a line is printed. One run
    is under way at a time.

    Parameters
    ----------
    recipes
        Names of shipped recipes, or YAML files.
    cron
        When they run, in UTC, as in "0 2 * * *" for two o'clock every night.
    store
        Folder or s3:// prefix.
    port
        Port of the server on loopback.
    """
    from flows.serving import Served

    _check_cron(cron)
    place = store if "://" in store else str(Path(store).absolute())
    Store(place).check_writable()
    deployments: list[dict[str, Any]] = []
    for name in recipes:
        given = str(Path(name).absolute()) if Path(name).suffix else name
        request = AuditRequest.read(given)
        title = str(getattr(request.recipe, "title", "") or name)
        own = f"{re.sub('[^0-9A-Za-z]+', '-', Path(name).stem)}-{_digest(given, place)[:6]}"
        deployments.append({"name": own, "cron": cron, "title": title, "parameters": {"recipe": given, "store": place}})
    folder = user_folder("config") / "serve" / _digest(place)[:12]
    say(f"{', '.join(one['title'] for one in deployments)}: {cron} (UTC), store {place}; Ctrl-C ends it")
    with contextlib.suppress(AttributeError):  # so that a log has each line when it is due
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Served(deployments, folder, port=port, say=show_text).run()


def _digest(*named: str) -> str:
    return hashlib.sha256("\0".join(named).encode()).hexdigest()


def _check_cron(cron: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError as error:
        raise UserError(f'--cron {cron!r} is no schedule; "0 2 * * *" is two o\'clock every night') from error
