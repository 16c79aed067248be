import dataclasses

import pytest

from tests.models.tiny import CONFIG


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, r"model.num_layers=0 must be positive"),
        ({"num_kv_heads": 3}, r"num_heads=4 .*num_kv_heads=3"),
        ({"head_dim": 5}, r"head_dim=5 must be even"),
        ({"dtype": "float8"}, r"dtype='float8' is not one of float32, bfloat16"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)
