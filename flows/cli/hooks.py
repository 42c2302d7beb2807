"""Hooks: commands or webhooks that learn how a run ended.

They come from the command line or the environment alone, as they run code: recipes, manifests and requests in a store cannot
name any. A hook gets a small JSON without examples, secrets and recipe, and its failure changes nothing about the run.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from cyclopts import Parameter

from flows.cli.messages import say
from memlib.errors import UserError
from memlib.runs import requests
from memlib.sanitize import brief

COMMAND_SECONDS, WEBHOOK_SECONDS = 60.0, 10.0
SHOWN = "shown"


_GETS = (
    "A command gets a small JSON on its standard input, an address gets it by POST: run, audit, title, verdict, sentence, "
    "store and status, without examples and recipe."
)


def _option(event: str, help_: str) -> Parameter:
    return Parameter(env_var=f"MEMLIB_ON_{event}", help=f"Command or http(s):// address {help_}", show_default=False)


@dataclass(frozen=True)
class Hooks:
    """Commands or webhooks that are called when a run has ended."""

    #: called however the run ended.
    on_end: Annotated[str, _option("END", f"to call when the run has ended, however it ended. {_GETS}")] = ""
    on_failure: Annotated[str, _option("FAILURE", "to call if the run failed.")] = ""  #: called if the run failed.
    #: called if the verdict of the completed run is "shown".
    on_finding: Annotated[str, _option("FINDING", "to call if the verdict of the completed run is shown.")] = ""

    def check(self) -> None:
        """Check that each hook can be called, before a run starts.

        Raises:
            UserError: if one cannot be; the message does not repeat it, as it may hold a token.
        """
        for name, hook in asdict(self).items():
            if hook:
                _check(f"--{name.replace('_', '-')}", hook)


NO_HOOKS = Hooks()


@dataclass(frozen=True)
class Event:
    """The facts about a run that its hooks learn."""

    audit: str  #: audit, title: name of the audit on the command line, and title of the recipe.
    title: str
    store: str  #: address of the store, which never contains credentials.
    run: str = ""  #: id of the run; "" if it did not get that far.
    verdict: str = ""  #: verdict, sentence: its verdict; "" unless it has completed.
    sentence: str = ""
    status: str = "running"  #: completed, failed or stopped.


def fire(hooks: Hooks, event: Event) -> None:
    """Call the hooks that an event concerns, one after the other; a failure is a line on standard error."""
    concerned = {
        "on_end": True,
        "on_failure": event.status == "failed",
        "on_finding": event.status == "completed" and event.verdict == SHOWN,
    }
    for name, hook in asdict(hooks).items():
        if hook and concerned[name]:
            kind = name.removeprefix("on_")
            content = json.dumps({"event": kind, **asdict(event)}).encode()
            problem = (_post if _is_web(hook) else _run)(hook, content)
            if problem:
                say(f"warning: the hook --on-{kind} failed: {problem}")


def _is_web(hook: str) -> bool:
    return hook.lower().startswith(("http://", "https://"))


def _check(option: str, hook: str) -> None:
    if _is_web(hook):
        from memlib.sharing.web import check_url

        check_url(hook, name=f"the address of {option}", remedy="put a token into its path or query, or call a command")
        return
    try:
        words = shlex.split(hook)
    except ValueError as error:
        raise UserError(f"the command of {option} cannot be read ({error}); quote it as for a shell") from None
    if not words or shutil.which(words[0]) is None:
        raise UserError(
            f"the program of {option} is not found{f': {words[0]}' if words else ''}; name a program or an http(s):// address"
        )


def _run(hook: str, content: bytes) -> str:
    """Run a command without a shell, with an event on its standard input; return the problem, if any.

    Its output goes to standard error, as standard output may be read as JSON. The command gets a session of its own, so that
    all its processes can be ended, and signals that memlib's supervisor blocks are unblocked in it.
    """
    words = shlex.split(hook)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,
            preexec_fn=_unblock,
        )
    except OSError as error:
        return f"{os.path.basename(words[0])} cannot be started ({error.strerror})"
    try:
        process.communicate(content, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{os.path.basename(words[0])} took more than {COMMAND_SECONDS:g} s"
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"{os.path.basename(words[0])} ended with status {process.returncode}" if process.returncode else ""


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _post(hook: str, content: bytes) -> str:
    """Post an event to an address; return the problem, if any, which names the host alone."""
    from memlib.sharing.web import WebError, send

    try:
        send("POST", hook, content, headers={"Content-Type": "application/json"}, waits=(1.0,), timeout=WEBHOOK_SECONDS)
    except WebError as error:
        return brief(str(error))
    return ""


# -- from the computing process to the command that supervises it --------------------------------------

MARK = "hooks "
handed_over: list[Callable[[str], None]] = []
"""Function that passes a line on to the process that supervises this one, which then calls the hooks; empty without one."""


def fire_line(line: str, status: str | None = None) -> None:
    """Call the hooks of a line that `reported` handed over.

    Args:
        line: hooks and event.
        status: how the run ended, if its process could not report its end itself.
    """
    hooks, facts = json.loads(line.removeprefix(MARK))
    event = Event(**facts)
    fire(Hooks(**hooks), event if status is None else replace(event, status=status))


class Ending:
    """The facts about a run under way for its hooks, kept up to date in the process that will call them."""

    def __init__(self, hooks: Hooks, event: Event) -> None:
        self._hooks, self.event = hooks, event
        self.learn()

    def learn(self, **facts: str) -> None:
        """Add facts about the run."""
        self.event = replace(self.event, **facts)
        for hand in handed_over if self._hooks != NO_HOOKS else ():  # without any, the command need not load this module
            hand(MARK + json.dumps([asdict(self._hooks), asdict(self.event)]))

    def begin(self, store: str, run: str) -> None:
        """Keep the id of the first run that begins; runs within a sweep begin later."""
        if not self.event.run:
            self.learn(run=run)


@contextmanager
def reported(hooks: Hooks, event: Event) -> Iterator[Ending]:
    """Call the hooks when the run in this block has ended; yield the facts about it, to which the block adds the verdict."""
    ending, status = Ending(hooks, event), "stopped"
    requests.listeners.append(ending.begin)
    try:
        yield ending
        status = "completed"
    except Exception:
        status = "failed"
        raise
    finally:
        requests.listeners.remove(ending.begin)
        ending.learn(status=status)
        if not handed_over:
            fire(hooks, ending.event)
