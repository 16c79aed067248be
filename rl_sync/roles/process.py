"""One process of a role: `python -m rl_sync.roles.process --role=… --workdir=… --master=…`.

The launcher starts these on one machine. It gives each a pipe as standard input; a role whose pipe
closes ends itself, since nothing supervises it any more.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from absl import logging as absl_logging

from rl_sync.cluster.parallel_imports import loading
from rl_sync.isolation.machine_limits import end_when_exhausted
from rl_sync.role_names import MASTER, TOGETHER, TRAINER, number_of
from rl_sync.roles.exit_status import (
    DEVICE_FULL,
    ENDED,
    FAILED,
    HANDED_OVER,
    ORPHANED,
)

if TYPE_CHECKING:
    from rl_sync.settings.run_settings import RunSettings

_log = logging.getLogger("rl_sync")


def main() -> int:
    """Runs the role that the command line names; returns the exit status."""
    arguments = _arguments()
    log_to_stderr()
    faulthandler.enable()
    # The launcher asks a process that hangs for its stacks, before it kills it.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # The launcher decides when a role stops; a terminal's Ctrl-C is only for the launcher.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments.lifeline:
        threading.Thread(target=end_when_orphaned, name="lifeline", daemon=True).start()
    end_when_exhausted()
    with loading():
        from rl_sync.cluster import compilation_cache
        from rl_sync.cluster.session import HandOverError
        from rl_sync.cluster.user_errors import (
            DeviceFullError,
            explained,
            is_for_user,
            log_failure,
        )
        from rl_sync.roles.assembly import gpu_flags
        from rl_sync.settings.config_reading import read_settings
        from rl_sync.workdir import Workdir

    config = json.loads(Workdir(arguments.workdir).config.read_text())
    settings = read_settings(config)
    gpu_flags.choose(settings.explorer_dtype, settings.quantization is not None, os.environ)
    compiled = compilation_cache.use(settings.launch.compilation_cache, os.environ)
    try:
        _run(arguments, settings)
    except HandOverError as asked:
        _log.info("%s, and has handed over its work.", asked)
        return HANDED_OVER
    except Exception as error:
        error = explained(error)
        log_failure(_log, arguments.role, error)
        if isinstance(error, DeviceFullError):
            return DEVICE_FULL
        return ENDED if is_for_user(error) else FAILED
    if compiled.needed:
        _log.info("Of %d programs the compilation cache had %d.", compiled.needed, compiled.read)
    return 0


def log_to_stderr() -> None:
    """Logs this process's messages, but only warnings from Orbax, which logs every file."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    absl_logging.set_verbosity(absl_logging.WARNING)


def _run(arguments: argparse.Namespace, settings: RunSettings) -> None:
    """Runs the role; imports only the modules that it needs."""
    if arguments.role == MASTER:
        with loading():
            from rl_sync.roles.master.service import run_master

        run_master(settings, arguments.master, arguments.recover, arguments.continues)
        return
    with loading():
        from rl_sync.cluster.process_resources import Addresses, join
        from rl_sync.cluster.topology import Member
        from rl_sync.roles.assembly import build, colocation
        from rl_sync.weights import storage

        if arguments.role in (TRAINER, TOGETHER):
            storage.load_orbax()  # They need it soon, and have no threads yet.
    addresses = Addresses(arguments.master, arguments.replay, arguments.coordinator, arguments.team)
    if arguments.role == TOGETHER:
        colocation.run_colocated(settings, addresses)
        return
    resources = join(settings, addresses, Member(arguments.role, arguments.process))
    if arguments.role == TRAINER:
        build.run_trainer(settings, addresses, resources)
    else:
        build.run_explorer(settings, addresses, number_of(arguments.role), resources)


def leave(status: int) -> NoReturn:
    """Ends the process immediately, without shutting down the interpreter.

    An ordinary exit may wait for threads that are inside calls, and for a cluster's barrier; and an
    XLA thread that releases a Python object meanwhile aborts the process.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--role",
        required=True,
        help="master, trainer, explorer1, explorer2, …, or trainer+explorers",
    )
    parser.add_argument("--workdir", required=True, help="work directory with config.json")
    parser.add_argument("--master", required=True, help="host:port of the master")
    parser.add_argument("--replay", required=True, help="host:port of the replay server")
    parser.add_argument("--process", type=int, default=0, help="index of the role's process")
    parser.add_argument("--coordinator", default="", help="host:port of the process's cluster")
    parser.add_argument("--team", default="", help="host:port of the role's first process")
    parser.add_argument(
        "--recover", action="store_true", help="go on from the journal of the run's earlier master"
    )
    parser.add_argument(
        "--continues", action="store_true", help="take back the end of the run's earlier attempt"
    )
    parser.add_argument("--lifeline", action="store_true", help="end when standard input is closed")
    return parser.parse_args()


def end_when_orphaned() -> None:
    """Waits until the launcher closes the standard input, or dies; then ends the process."""
    while os.read(0, 4096):
        pass
    _log.error("The launcher is gone, so this process ends.")
    leave(ORPHANED)


if __name__ == "__main__":
    leave(main())
