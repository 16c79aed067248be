"""Tasks with images: rows of strangers' files, places, limits, demonstrations, and refusals."""

import base64
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rl_sync.configs import base
from rl_sync.images import Image, images_of
from rl_sync.settings.records import build
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.task_catalog import TaskConfig, load_task
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.types import Prompt
from tests.odd_images import drawn, encoded, turned
from tests.tasks.loading import write_lines
from tests.tasks.pictures.checkpoints import gemma3
from tests.tasks.pictures.vocabularies import gemma3_tokenizer

TILES = SquareTiles(16, 4)
PNG = encoded(drawn(20, 12), "PNG")


def _load(path, processor=TILES, tokenizer=None, **fields):
    config = base.get_config().task
    config.name, config.dataset.path = "dataset", str(path)
    config.max_completion_tokens = 20
    for name, value in fields.items():
        (config if name in config else config.dataset)[name] = value
    task = build(TaskConfig, config.to_dict(), "config.task")
    named = TokenizerConfig(None if tokenizer is None else str(tokenizer), "auto", None)
    return load_task(task, named, 0, processor=processor)


def _rows(tmp_path, *rows):
    """Writes rows, with others behind them so that one can be held out."""
    more = [{"prompt": f"more {i}?", "answer": str(i)} for i in range(10)]
    return write_lines(tmp_path / "rows.jsonl", [*rows, *more])


def _prompt(task, text):
    [found] = [one for one in (*task.train, *task.held_out) if one.text.endswith(text)]
    return found


def test_the_same_question_about_another_image_is_another_problem(tmp_path):
    rows = []
    for shade in range(10):
        image = Image.of_array(np.full((8, 8, 3), 20 * shade, np.uint8)).content()
        url = "data:image/png;base64," + base64.b64encode(image).decode()
        rows += 2 * [{"prompt": "Which shade?", "answer": str(shade), "images": [url]}]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = _load(path, images="images", held_out_fraction=0.2)
    trained, held_out = ([one.answer for one in of] for of in (task.train, task.held_out))
    assert (len(trained), len(held_out)) == (16, 4)
    assert {*trained}.isdisjoint(held_out)


def test_a_strangers_lines_have_paths_bytes_urls_and_rows_without_images(tmp_path):
    (tmp_path / "bilder").mkdir()
    (tmp_path / "bilder" / "größe ü.jpg").write_bytes(turned(30, 20, orientation=6))
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    path = _rows(
        tmp_path,
        {"Frage": "Wie viele? 图", "Antwort": "2", "Fotos": ["bilder/größe ü.jpg", url]},
        {"Frage": "One?", "Antwort": "1", "Fotos": url},
        {"Frage": "None?", "Antwort": "0", "Fotos": []},
        {"Frage": "Null <image>?", "Antwort": "0", "Fotos": None},
    )
    lines = [json.loads(line) for line in path.read_text().split("\n")]
    for line in lines[4:]:
        line["Frage"], line["Antwort"] = line.pop("prompt"), line.pop("answer")
    write_lines(path, lines)
    task = _load(path, prompt="Frage", answer="Antwort", images="Fotos")
    counts = {"Wie viele? 图": 2, "One?": 1, "None?": 0, "Null <image>?": 0}
    for text, count in counts.items():
        prompt = _prompt(task, text)
        found = task.pictured(prompt)
        assert len(found.tiles) == count
        assert (found.at >= 0).sum() == 4 * count
        assert len(found.ids) == len(text) + 4 * count
        assert task.prompt_lengths([prompt]) == {len(text) + 4 * count}
    photo, _ = images_of(_prompt(task, "Wie viele? 图").row)
    assert photo.size() == (20, 30)
    assert photo.place == f"{path}, line 1: 'Fotos' [0]"
    assert task.max_prompt_tokens == max(
        len(one.text) + 4 * len(images_of(one.row)) for one in (*task.train, *task.held_out)
    )


def test_parquet_rows_hold_images_as_the_datasets_library_stores_them(tmp_path):
    stored = [{"bytes": encoded(drawn(9 + i, 9), "PNG"), "path": f"{i}.png"} for i in range(12)]
    table = {
        "prompt": [f"{i}?" for i in range(12)],
        "answer": [str(i) for i in range(12)],
        "images": [[one] if i % 3 else [] for i, one in enumerate(stored)],
        "image": stored,
    }
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    task = _load(path)
    [prompt] = [one for one in (*task.train, *task.held_out) if one.text == "1?"]
    assert images_of(prompt.row)[0].size() == (10, 9)
    assert len(task.pictured(prompt).tiles) == 1
    other = _load(path, images="image")
    assert all(len(images_of(one.row)) == 1 for one in (*other.train, *other.held_out))
    none = _load(path, images="")
    assert not none.shows_images


@pytest.mark.gate
def test_a_data_set_of_the_library_keeps_its_files_undecoded(tmp_path):
    import datasets

    photo = turned(30, 20, orientation=6)
    rows = {
        "prompt": [f"{i}?" for i in range(12)],
        "answer": ["a"] * 12,
        "photo": [{"bytes": photo, "path": None}] * 12,
        "more": [[{"bytes": PNG, "path": None}] * 2] * 12,
    }
    features = datasets.Features(
        prompt=datasets.Value("string"),
        answer=datasets.Value("string"),
        photo=datasets.Image(),
        more=[datasets.Image()],
    )
    path = tmp_path / "saved"
    datasets.Dataset.from_dict(rows, features).save_to_disk(path)
    [image] = images_of(_load(path, images="photo").train[0].row)
    assert (image.data, image.size()) == (photo, (20, 30))
    assert [one.data for one in images_of(_load(path, images="more").train[0].row)] == [PNG] * 2


def test_parts_of_messages_show_images_between_texts(tmp_path):
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    (tmp_path / "b.png").write_bytes(encoded(drawn(7, 5), "PNG"))
    content = [
        {"type": "text", "text": "Compare <image> "},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": " with "},
        {"type": "image"},
    ]
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "same"},
    ]
    rows = [{"messages": messages, "images": ["b.png"]}]
    rows += [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "a"}]}
        for i in range(10)
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    config = {"format": "messages", "held_out_path": str(path), "demonstration": ""}
    task = _load(path, **config)
    prompt = task.train[0]
    assert prompt.text == f"Compare <image> {PLACE} with {PLACE}"
    assert prompt.answer == "same"
    first, second = images_of(prompt.row)
    assert first.data == PNG
    assert second.size() == (7, 5)
    found = task.pictured(prompt)
    assert found.at.tolist() == [-1] * 16 + [0, 1, 2, 3] + [-1] * 6 + [4, 5, 6, 7]
    imitated = _load(write_lines(path, rows[:1]), **(config | {"demonstration": "messages"}))
    [shown] = imitated.demonstrations
    assert (shown.text, shown.answer) == (prompt.text, "same")


def test_demonstrations_have_the_tokens_of_their_images(tmp_path):
    image = {"bytes": None, "path": None, "url": "data:;base64," + base64.b64encode(PNG).decode()}
    path = _rows(tmp_path, {"prompt": "a <image> b", "answer": "c", "images": [image]})
    task = _load(path, held_out_path=str(path))
    shown = next(one for one in task.demonstrations if "<image>" in one.text)
    [tokens], [mask] = task.encode_demonstrations([shown])
    ids = task.pictured(task.train[0]).ids
    assert len(ids) == 8
    np.testing.assert_array_equal(tokens[:8], ids)
    assert np.flatnonzero(mask).tolist() == [8, 9]
    lease = Prompt(0, "a <image> b", "c")  # Explorers get no rows.
    tokens, lengths = task.encode_prompts([lease, "more 1?"])
    assert lengths.tolist() == [8, 7]
    np.testing.assert_array_equal(tokens[0, :8], ids)
    assert task.pictured(lease).digests == task.pictured(task.train[0]).digests
    assert task.is_seen(task.held_out[0])
    assert "<" not in task.tokenizer.charset


def test_pairs_and_demonstrations_keep_their_images_when_others_are_dropped(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    row = {"prompt": "a?", "chosen": "yes", "rejected": "no"}
    rows = [row | {"prompt": "a prompt that is too long"}, row | {"images": ["a.png"]}, row]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = _load(path, format="preference", held_out_path=str(path), max_prompt_tokens=10)
    for pairs in (task.preferences, task.held_out_preferences):
        tokens, mask = task.encode_preferences(pairs)
        image = task.tokenizer.image_id(None)
        assert (tokens == image).sum(axis=1).tolist() == [4, 4, 0, 0]
        assert mask.argmax(axis=1).tolist() == [6, 6, 2, 2]


def test_a_task_is_loaded_without_decoding_an_image(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(PNG)
    path = _rows(tmp_path, {"prompt": "a", "answer": "c", "images": "a.png"})
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    task = _load(path, held_out_path=str(path))
    task.encode_demonstrations(task.demonstrations)


def test_without_a_processor_the_policy_reads_text_and_one_note_says_so(tmp_path):
    path = _rows(tmp_path, {"prompt": "a <image>", "answer": "c", "images": "/nowhere.png"})
    task = _load(path, processor=None, held_out_path=str(path))
    [note] = [note for note in task.notes if "images" in note]
    assert note == "2 problems have images, which only rewards get: the policy reads text alone."
    assert task.prompt_lengths([task.train[0]]) == {len("a <image>")}
    assert not task.tokenizer.shows_images
    assert images_of(task.train[0].row)[0].place == f"{path}, line 1: 'images' [0]"


def test_tasks_of_text_keep_their_vocabulary_and_rows(tmp_path):
    path = _rows(tmp_path, {"prompt": f"a {PLACE} <image>", "answer": "c", "more": 1})
    task = _load(path, processor=None, held_out_path=str(path))
    assert PLACE in task.tokenizer.charset
    assert task.tokenizer.vocab_size == len(task.tokenizer.charset) + 2
    assert task.train[0].row == {"prompt": f"a {PLACE} <image>", "answer": "c", "more": 1}
    assert all(one.row is None for one in task.demonstrations)
    assert not any("images" in note for note in task.notes)
    seeing = _load(path, held_out_path=str(path))
    assert seeing.tokenizer.vocab_size == task.tokenizer.vocab_size + 1
    tokens, lengths = task.encode_prompts([task.train[0].text])
    np.testing.assert_array_equal(tokens[0, : lengths[0]], seeing.pictured(seeing.train[0]).ids)


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_a_row_whose_images_alone_are_too_long_is_refused(tmp_path, too_long):
    (tmp_path / "a.png").write_bytes(PNG)
    path = _rows(tmp_path, {"prompt": "a", "answer": "c", "images": ["a.png"] * 4})
    message = (
        r"rows.jsonl, line 1: 'images' \[0\]: the row's images \(4\) take 16 tokens alone, and"
        r" task.max_prompt_tokens=15: allow more"
    )
    with pytest.raises(ValueError, match=message):
        _load(path, max_prompt_tokens=15, too_long=too_long)
    assert len(_load(path, max_prompt_tokens=17, too_long=too_long).train) == 10


def test_truncation_cuts_the_text_and_keeps_the_images(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    row = {"prompt": "<image>abcdefgh<image>ijk", "answer": "c", "images": ["a.png"] * 2}
    task = _load(
        _rows(tmp_path, row),
        held_out_path=str(tmp_path / "rows.jsonl"),
        max_prompt_tokens=13,
        too_long="truncate",
    )
    assert task.train[0].text == f"{PLACE}gh{PLACE}ijk"
    assert len(task.pictured(task.train[0]).ids) == 13
    assert any("2 of" in note or "1 of" in note for note in task.notes)
    assert len(task.encode_demonstrations(task.demonstrations[:1])[0]) == 1


def test_dropping_leaves_out_long_prompts_and_their_demonstrations(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    row = {"prompt": "a text that is long", "answer": "c", "images": ["a.png"] * 2}
    path = _rows(tmp_path, row)
    task = _load(path, held_out_path=str(path), max_prompt_tokens=15)
    assert len(task.train) == len(task.demonstrations) == 10
    assert not task.shows_images


def test_a_placeholder_of_ones_own_stands_for_an_image(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    path = _rows(tmp_path, {"prompt": "x [img] <image>", "answer": "c", "images": "a.png"})
    task = _load(path, held_out_path=str(path), image_placeholder="[img]")
    assert task.pictured(task.train[0]).at.tolist()[:7] == [-1, -1, 0, 1, 2, 3, -1]
    empty = _load(path, held_out_path=str(path), image_placeholder="")
    assert empty.pictured(empty.train[0]).at.tolist()[:5] == [0, 1, 2, 3, -1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"images": ["gone.png"]}, r"line 1: 'images' \[0\]: gone.png cannot be read: there is no"),
        (
            {"images": ["a.png", "https://a.b/c.png"]},
            r"line 1: 'images' \[1\]: .*nothing is fetched",
        ),
        ({"images": [7]}, r"line 1: 'images' \[0\]: 7 is not an image: it must be a path"),
        ({"images": ["rows.jsonl"]}, r"line 1: 'images' \[0\]: .*rows.jsonl is not an image that"),
        ({"images": ["a.png"], "prompt": "<image> <image>"}, r"line 1: .*has 2 places for images"),
        (
            {"images": "a.png", "prompt": [{"role": "user", "content": [{"type": "image"}] * 2}]},
            r"line 1: .*has 2 places for images .*and the row has 1 image",
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "audio"}]}]},
            r"line 1: 'prompt' has the part \{'type': 'audio'\}, which must be a text or an image",
        ),
    ],
)
def test_bad_images_are_refused_by_row_column_and_way_out(tmp_path, row, message):
    (tmp_path / "a.png").write_bytes(PNG)
    path = _rows(tmp_path, {"prompt": "a", "answer": "c"} | row)
    with pytest.raises(ValueError, match=message):
        _load(path, held_out_path=str(path))


def test_a_bound_of_pixels_is_a_setting(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    path = _rows(tmp_path, {"prompt": "a", "answer": "c", "images": "a.png"})
    with pytest.raises(ValueError, match=r"line 1: 'images' \[0\]: .*has 20 × 12 pixels, and 239"):
        _load(path, held_out_path=str(path), max_image_pixels=239)
    assert _load(path, held_out_path=str(path), max_image_pixels=240).train[0].row["images"]
    blind = _load(path, processor=None, held_out_path=str(path), max_image_pixels=239)
    with pytest.raises(ValueError, match="and 239 are allowed"):  # Rewards keep the bound.
        blind.train[0].row["images"][0].pixels()


def test_a_damaged_image_is_refused_by_its_row_when_it_is_decoded(tmp_path):
    (tmp_path / "cut.jpg").write_bytes(encoded(drawn(90, 70), "JPEG")[:900])
    path = _rows(tmp_path, {"prompt": "a", "answer": "c", "images": "cut.jpg"})
    task = _load(path, held_out_path=str(path))
    with pytest.raises(ValueError, match=r"line 1: 'images' \[0\]: .*cut.jpg is damaged: .*runcat"):
        task.pictured(task.train[0])


def test_solved_problems_are_not_written_in_front_of_images(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    path = _rows(tmp_path, {"prompt": "a", "answer": "c", "images": "a.png"})
    with pytest.raises(ValueError, match=r"task.shots=1 writes solved problems without .*shots=0"):
        _load(path, held_out_path=str(path), shots=1)


def test_own_conversations_without_the_images_of_their_problem_are_refused(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "from rl_sync.tasks.dialogues import Spoken, dialogue_of\n"
        "from rl_sync.tasks.problems import Problems\n"
        "from rl_sync.types import Prompt\n"
        "def problems():\n"
        "    asked = [Prompt(0, 'a?', 'b', {'images': np.zeros((16, 16, 3), np.uint8)})]\n"
        "    said = [dict(role='user', content='a?'), dict(role='assistant', content='b')]\n"
        "    spoken = [Spoken(0, dialogue_of(said))]\n"
        "    return Problems(asked, asked, [], dialogues=spoken)\n"
    )
    with pytest.raises(ValueError, match=r"'a\?': the demonstration is a list of messages"):
        _load("", name=f"{tmp_path}/own.py:problems")


def test_a_checkpoints_tokenizer_and_tiles_make_a_task(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    model = gemma3(tmp_path / "model")
    gemma3_tokenizer().save_pretrained(model)
    literal = "<image_soft_token> is a name"
    path = _rows(
        tmp_path,
        {"prompt": "What? <image>", "answer": literal, "images": "a.png"},
        {"prompt": literal, "answer": "c"},
    )
    task = _load(
        path,
        checkpoint_tiles(model),
        model,
        held_out_path=str(path),
        max_completion_tokens=60,
    )
    image = task.tokenizer.image_id(task.processor.marks)
    seen, read = (task.pictured(one) for one in task.train[:2])
    assert (seen.ids == image).sum() == 4
    assert image not in read.ids
    tokens, mask = task.encode_demonstrations(task.demonstrations[:2])
    assert (tokens[0] == image).sum() == 4
    assert image not in tokens[0][mask[0]]
    assert image not in tokens[1]
    with pytest.raises(ValueError, match="no token for images"):
        _load(path, TILES, model, held_out_path=str(path))


def test_problems_of_a_function_get_their_images_as_references(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def rows():\n"
        "    pixels = np.zeros((16, 16, 3), np.uint8)\n"
        "    return [dict(prompt=f'{i}?', answer='a', images=[pixels + i]) for i in range(9)]\n"
    )
    task = _load("", name=f"{tmp_path}/own.py:rows")
    assert all(isinstance(one, Image) for one in task.train[0].row["images"])
    tiles = task.pictured(task.train[3]).tiles
    assert (tiles == int(task.train[3].text[:-1])).all()
