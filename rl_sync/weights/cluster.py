"""The `jax.distributed` cluster: processes that compute or move weights together."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any

import jax
from jax._src import distributed, xla_bridge

from rl_sync.addresses import interface_towards, parts_of
from rl_sync.weights.ends_interface import WeightsTimeoutError, WeightsTransferError

_LEAVE = "rl_sync/leave"
_LEAVING = "rl_sync/leaving"


def init_cluster(
    coordinator_address: str,
    num_processes: int,
    process_id: int,
    *,
    timeout_secs: float = 120.0,
    heartbeat_secs: float = 30.0,
) -> None:
    """Joins the cluster and waits for all others; call it before any other use of JAX.

    Collectives use gloo on CPUs, and the hardware's own transport on GPUs and TPUs.

    Args:
      coordinator_address: the `host:port` where process 0 listens, on that interface only.
      num_processes: number of processes.
      process_id: index of this process, from 0.
      timeout_secs: deadline for the others to join.
      heartbeat_secs: heartbeat timeout: a process that is silent for this long counts as dead, and
        the others abort.

    Raises:
      ValueError: `process_id` does not fit `num_processes`.
      WeightsTimeoutError: not all processes joined in time.
      WeightsTransferError: JAX is in use already, or the port is taken.
    """
    _check_place(num_processes, process_id)
    if process_id == 0:
        _check_port(coordinator_address)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _use_interface(interface_towards(coordinator_address))
    # Otherwise JAX would take SIGTERM as a notice of preemption, and the process would not end.
    jax.config.update("jax_enable_preemption_service", False)
    _join(
        timeout_secs,
        f"Process {process_id} waited {timeout_secs:.0f} s for the {num_processes} processes of the"
        f" cluster at {coordinator_address}: one did not start, or cannot reach that address.",
        coordinator_address=coordinator_address,
        coordinator_bind_address=coordinator_address,
        num_processes=num_processes,
        process_id=process_id,
        # JAX aborts the process without a Python exception when its own deadline passes.
        initialization_timeout=int(timeout_secs) + 60,
        heartbeat_timeout_seconds=int(heartbeat_secs),
        shutdown_timeout_seconds=int(heartbeat_secs),
    )


def host_leaves(timeout_secs: float) -> bool:
    """Waits for process 0, the cluster's host, to start leaving; says whether it has.

    Returns True without a cluster, and in process 0 itself.

    Args:
      timeout_secs: maximum wait.

    Raises:
      WeightsTransferError: the cluster is gone.
    """
    client = distributed.global_state.client
    if client is None or distributed.global_state.process_id == 0:
        return True
    try:
        client.blocking_key_value_get(_LEAVING, int(timeout_secs * 1000))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return False
        raise WeightsTransferError(f"The cluster's host is gone: {error}") from error
    return True


def leave_cluster(timeout_secs: float = 120.0) -> None:
    """Leaves the cluster once all processes are ready to leave; does nothing without a cluster.

    Process 0 hosts the cluster: if it exited earlier, the others would be killed.

    Raises:
      WeightsTimeoutError: another process was not ready in time. The cluster can then no longer be
        left cleanly; once this process's work is saved, end it immediately (`os._exit`).
    """
    client = distributed.global_state.client
    if client is None:
        return
    try:
        if distributed.global_state.process_id == 0:
            client.key_value_set(_LEAVING, "")
        client.wait_at_barrier(_LEAVE, int(timeout_secs * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise WeightsTimeoutError(
            f"Process {distributed.global_state.process_id} waited {timeout_secs:.0f} s for the"
            f" other processes of the cluster to finish: {error}"
        ) from error
    jax.distributed.shutdown()


def _check_place(num_processes: int, process_id: int) -> None:
    """Raises an error unless this process can become one of so many, with this index."""
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f"process_id={process_id} does not fit a cluster of {num_processes} processes: they"
            f" have 0 to {num_processes - 1}."
        )
    if xla_bridge.backends_are_initialized():
        raise WeightsTransferError(
            "This process has used JAX before it joined its cluster, which is too late: call"
            " init_cluster before any array is made or any device is listed."
        )


def _use_interface(address: str) -> None:
    """Lets gloo connect the processes by an address of this machine.

    By itself it takes what the machine's name means on the machine, which others cannot reach if it
    is a loopback address, as Debian configures it. JAX has no setting for it.
    """

    def make_client() -> Any:
        collectives = xla_bridge._jax.make_gloo_tcp_collectives(
            distributed_client=distributed.global_state.client, hostname=address
        )
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def _check_port(coordinator_address: str) -> None:
    """Binds the port briefly, since JAX may crash on a port that is taken."""
    host, port = parts_of(coordinator_address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise WeightsTransferError(
            f"The cluster's coordinator cannot listen on port {port} of {coordinator_address}:"
            f" {error}. Choose another port, or end the program that uses it."
        ) from error


def _join(timeout_secs: float, late: str, **arguments: Any) -> None:
    """Initializes JAX's cluster in a thread, since the call cannot be interrupted."""
    outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def initialize() -> None:
        try:
            jax.distributed.initialize(**arguments)
            outcome.put(None)
        except Exception as error:
            outcome.put(error)

    threading.Thread(target=initialize, name="join-cluster", daemon=True).start()
    try:
        error = outcome.get(timeout=timeout_secs)
    except queue.Empty:
        raise WeightsTimeoutError(late) from None
    if error is not None:
        raise WeightsTransferError(
            f"The cluster at {arguments['coordinator_address']} could not be joined: {error}"
        ) from error
