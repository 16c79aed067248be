"""What a run's settings make of the trainer."""

from __future__ import annotations

from rl_sync.runtime.programs import trainer_of
from rl_sync.settings.run import RunSettings
from tests.models.meshes import layout
from tests.runs import tiny


def _trainer(**fields):
    config = {**tiny.get_config().to_dict(), "workdir": "none"}
    for name, value in fields.items():
        section, field = name.split("__")
        config[section][field] = value
    settings = RunSettings.from_config(config)
    return settings, trainer_of(settings, settings.load_task(), layout())


def test_the_trainer_has_a_critic_where_its_algorithm_needs_values_and_offloads_as_it_is_told():
    settings, trainer = _trainer(algorithm__name="ppo", trainer__offload_optimizer=True)
    assert trainer.critic == settings.critic
    assert (trainer.offload_reference, trainer.offload_optimizer) == (False, True)
    _, trainer = _trainer(trainer__offload_reference=True)
    assert trainer.critic is None
    assert (trainer.offload_reference, trainer.offload_optimizer) == (True, False)
