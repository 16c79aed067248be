"""Directories with the small files of vision checkpoints: configs of models and processors."""

import json

_PIXELS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def gemma3(directory, side=56, tokens=4, **changed):
    """Writes the files of Gemma 3 with tiles of another size."""
    config = {
        "model_type": "gemma3",
        "mm_tokens_per_image": tokens,
        "vision_config": {"image_size": side, "patch_size": 14},
    }
    processor = {
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "size": {"height": side, "width": side},
        "resample": 2,
        "do_convert_rgb": None,
        "do_pan_and_scan": None,
        "image_seq_length": tokens,
        **_PIXELS,
    }
    return _written(directory, config, processor | changed)


def smolvlm(directory, side=32, longest=128, family="smolvlm", **changed):
    """Writes the files of SmolVLM with tiles of another size."""
    name = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[family]
    config = {
        "model_type": family,
        "scale_factor": 2,
        "vision_config": {"image_size": side, "patch_size": side // 4},
    }
    processor = {
        "image_processor_type": f"{name}ImageProcessor",
        "processor_class": f"{name}Processor",
        "size": {"longest_edge": longest},
        "max_image_size": {"longest_edge": side},
        "resample": 1,
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_pad": True,
        **_PIXELS,
    }
    return _written(directory, config, processor | changed)


def _written(directory, config, processor):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    return str(directory)
