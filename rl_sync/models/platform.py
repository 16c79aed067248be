"""Tells the platform that programs are compiled for, which decides kernels and layouts."""

from __future__ import annotations

import contextlib
from typing import Literal, cast, get_args

import jax

Platform = Literal["cpu", "gpu", "tpu"]

TPU_LANES = 128
"""Number of values that a TPU stores side by side; it pads a shorter innermost axis."""

_target = jax.make_user_context(None)


def platform() -> Platform:
    """Returns the platform that the function being traced is compiled for.

    It is the platform of this process's devices, unless `compiling_for` names another one.
    """
    name = _target.value or jax.default_backend()
    return cast(Platform, name if name in get_args(Platform) else "gpu")


def compiling_for(name: Platform | None) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which functions are traced for a platform that this process may lack.

    A function compiles once for each platform. None means the platform of this process's devices.
    """
    return _target(name)


def has_flash_units() -> bool:
    """Says whether the GPU that functions are traced for supports flash-attention kernels.

    NVIDIA GPUs support them from compute capability 8.0 (Ampere) on. In a context of
    `compiling_for`, the GPU is JAX's default device; without one, the GPU is assumed to support
    them.
    """
    if _target.value is not None:
        device = jax.config.jax_default_device
        if getattr(device, "platform", None) != "gpu":
            return True
    elif jax.default_backend() in ("cpu", "tpu"):
        return True
    else:
        device = jax.local_devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    major = capability.partition(".")[0]
    return major.isdigit() and int(major) >= 8
