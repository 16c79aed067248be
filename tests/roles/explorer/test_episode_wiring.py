"""The director that a run's settings make: environments find the places of images in prompts."""

import numpy as np
import pytest

from rl_sync.environments.interface import Message, Outcome, Turn
from rl_sync.images import Image
from rl_sync.roles.assembly import wiring
from rl_sync.roles.explorer import episode_wiring
from rl_sync.rollout.episodes.episode_records import BeginEpisode
from tests.settings.changed import settings_with
from tests.tasks.loading import write_lines


class Asks:
    """Asks the row's question about its images, and ends."""

    inline = True
    shows_images = True

    def reset(self, task, seed):
        return Turn((Message("user", task["prompt"], images=tuple(task["images"])),))

    def step(self, reply):
        return Outcome({"asked": 1.0})

    def close(self):
        pass


@pytest.mark.parametrize(
    ("placeholder", "texts"),
    [
        ("[img]", {"Is [img] like <image> or [img]?": 2, "[img] first": 1, "no <image>: ": 1}),
        ("<image>", {"Is <image> like [img] or <image>?": 2, "no place [img]: ": 1}),
        ("", {"no place <image>: ": 1, "[img] for two": 2}),
    ],
)
def test_an_environment_asks_with_images_at_the_places_of_the_task_s_own_placeholder(
    tmp_path, monkeypatch, placeholder, texts
):
    shades = [np.full((8, 8), 60 * shade, np.uint8) for shade in range(2)]
    urls = [Image.of_array(shade).data_url() for shade in shades]
    rows = [
        {"prompt": text, "answer": "a", "images": urls[:count]} for text, count in texts.items()
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    settings = settings_with(
        task__name="dataset",
        task__dataset__path=str(path),
        task__dataset__held_out_path=str(path),
        task__image_placeholder=placeholder,
        task__max_completion_tokens=2,
        model__vision__image_size=16,
        model__vision__tile_tokens=4,
        environment__name=f"{__file__}:Asks",
        environment__max_tokens=120,
        sft__steps=0,
    )
    task = wiring.load_task(settings)
    made = []
    monkeypatch.setattr(episode_wiring, "EpisodeEngine", lambda _, one, **more: made.append(one()))
    episode_wiring.playing(settings, task, engine=None)
    [director] = made
    try:
        assert [prompt.text for prompt in task.train] == list(texts)
        for prompt in task.train:
            director.begin([BeginEpisode(prompt.prompt_id, prompt.fields, 0)])
            [asked] = director.answers(10.0, True)
            shown = task.pictured(prompt)
            assert asked.ids.tolist() == shown.ids.tolist()
            assert asked.images.at.tolist() == shown.at.tolist()
            assert asked.images.digests == shown.digests
    finally:
        director.close()


def test_the_endpoint_of_agents_parts_replies_at_the_run_s_marks(monkeypatch):
    settings = settings_with(
        task__name="arithmetic",
        tokenizer__thoughts="<why> </why>",
        environment__name="agent(command='true', separate_reasoning=True)",
        environment__max_tokens=120,
    )
    task = wiring.load_task(settings)
    made = []
    monkeypatch.setattr(episode_wiring, "EpisodeEngine", lambda _, one, **more: made.append(one()))
    episode_wiring.playing(settings, task, engine=None)
    [director] = made
    try:
        reasoning = director._host._reasoning
        assert reasoning.parted("<why>so</why>yes") == ("so", "yes")
    finally:
        director.close()
