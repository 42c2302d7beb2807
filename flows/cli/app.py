"""The `memlib` command."""

import _thread
import ast
import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from cyclopts import App, CycloptsError, Group, UnknownOptionError

import memlib
from flows.cli.messages import say
from flows.cli.supervisor import STOPPED, STOPPED_LINE, TRY_AGAIN, heedless
from flows.environment import prepare_environment
from flows.interrupts import interrupt, keep_interrupts
from memlib.console import show_text
from memlib.errors import EngineLost, RunError, StoreUnreachable, UserError

MOMENT_SECONDS = 0.01


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script that completes memlib commands in a shell, with recipes and run ids.

    For the current session: eval "$(memlib completion bash)", likewise for zsh, or memlib completion fish | source. To keep
    it, save the script where your shell looks for completions.
    """
    show_text(app.generate_completion(shell=shell))


COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "demo": "demo:demo", "look": "look:look", "init": "start:init", "validate": "start:validate",
        "sources": "start:sources", "doctor": "start:doctor", "recipes": "shipped:recipes", "schema": "shipped:schema",
        "scan": "scan:scan",
        "overlap": "overlap:overlap",
    },
    "Run": {"plan": "running:plan", "run": "running:run", "resume": "running:resume", "status": "store:status",
        "serve": "serve:serve"},
    "Read": {
        "runs": "store:runs", "index": "store:index", "show": "store:show", "open": "store:open_page", "diff": "store:diff",
        "check": "gate:check", "gate": "gate:gate", "dossier": "dossier:dossier", "risk": "dossier:risk",
    },
    "Share": {
        "card": "sharing:card", "mlflow": "sharing:mlflow", "croissant": "sharing:croissant", "export": "owner:export",
        "ids": "owner:ids", "canaries": "canaries:canaries", "sign": "store:sign", "verify": "store:verify",
    },
    "Operate": {"gc": "store:gc", "forget": "forget:forget", "completion": "app:completion"},
}  # fmt: skip
"""The commands by group, in the order in which a user needs them, each with its module in flows.cli and its function.

A command's module is imported when the command is used."""

GROUPS = {title: Group(title, sort_key=number) for number, title in enumerate(COMMANDS)}


def commands_of(*, summarized: bool) -> App:
    """Return the application.

    Args:
        summarized: whether to read the first sentence on each command from its source, so that a list of the commands imports
            none of them.
    """
    found = App(
        name="memlib",
        help="Memorization audits of neural networks: what does a model remember of its training data?",
        version=memlib.__version__,
        version_flags=["--version"],
        result_action="return_value",
    )
    for title, commands in COMMANDS.items():
        for order, (name, place) in enumerate(commands.items()):
            text = _summary(place) if summarized else None
            found.command(f"flows.cli.{place}", name=name, group=GROUPS[title], sort_key=order, help=text)
    return found


def _summary(place: str) -> str:
    """Return the first line of a command's docstring; a command that has commands of its own is described by its module's."""
    module, _, name = place.partition(":")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return (ast.get_docstring(functions[0] if functions else tree) or "").partition("\n")[0]


app = commands_of(summarized=False)


def _interrupt(*_: object) -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that Ray and the Prefect server that this run started end with it.

    Later signals are ignored: timeout(1) sends two, and the second would interrupt the shutdown. If Ray's servers were sent
    the same signal, Ray's library prints its backtrace to descriptor 2, from which Python's own stderr is separated here.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, heedless)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        sys.stderr = open(os.dup(2), "w", buffering=1)  # noqa: SIM115
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    interrupt()


def _raise_again(lost: "sys.UnraisableHookArgs") -> None:
    """Raise an interrupt again that arrived in a callback or destructor, where Python would print and drop it.

    It is raised a moment later, as within this hook Python would print and drop it, too.
    """
    if lost.exc_type is KeyboardInterrupt:
        later = threading.Timer(MOMENT_SECONDS, _thread.interrupt_main)
        later.daemon = True
        later.start()
    else:
        sys.__unraisablehook__(lost)


def _as_setting(error: CycloptsError) -> str:
    """Return how to write an unknown option that is a setting of recipes, if the command takes settings; else ""."""
    if not isinstance(error, UnknownOptionError) or not any("--set" in one.names for one in error.argument_collection):
        return ""
    from memlib.recipes.files import keys_ending_in

    option = error.token.keyword or error.token.value
    keys = keys_ending_in(option.lstrip("-").replace("-", "_"))
    return f"{option} is a setting of the recipe: write --set {keys[0]}=VALUE" if keys else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    User errors and expected failures print one or two lines and return 2, or 75 if running the same command again resumes the
    work. Signals return 130.
    """
    sys.unraisablehook = _raise_again
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
        signal.signal(signal.SIGHUP, _interrupt)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: interrupt())
    os.umask(0o077)  # files of libraries are private to the user; the store sets its own permissions
    prepare_environment()
    warnings.filterwarnings("ignore", module=r"torch\b")  # meant for developers, and printed in the middle of the output
    try:
        with keep_interrupts():
            given = sys.argv[1:] if arguments is None else arguments
            chosen = commands_of(summarized=True) if list(given) in ([], ["-h"], ["--help"]) else app
            status = chosen(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:  # an unknown option, or one without its value
        say(f"memlib: {_as_setting(error) or ' '.join(str(error).split())} (see memlib --help)")
        return 2
    except (EngineLost, StoreUnreachable) as error:
        say(f"memlib: {error}")
        return TRY_AGAIN
    except (UserError, RunError) as error:
        say(f"memlib: {error}")
        return 2
    except BrokenPipeError:  # the reader closed the pipe, as in memlib runs --json | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a lost network, a folder that is a file
        say(f"memlib: {type(error).__name__}: {error}")
        return 2
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not (isinstance(error.code, int) and error.code > 128):  # no signal of Ray
            raise
        say(STOPPED_LINE)
        return STOPPED
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
