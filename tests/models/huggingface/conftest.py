import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def _quick_compilation():
    """Compiling is nearly all that these tests do, and what is compiled runs once."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
