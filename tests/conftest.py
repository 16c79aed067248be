"""All tests see four CPU devices, for those with meshes; processes that tests start do not."""

import jax

jax.config.update("jax_num_cpu_devices", 4)
