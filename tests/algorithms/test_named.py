import re
from pathlib import Path

from rl_sync.algorithms import algorithm as pieces
from rl_sync.algorithms.algorithm import ALGORITHMS, Algorithm


def test_the_defaults_make_grpo():
    assert ALGORITHMS["grpo"] == Algorithm()


def test_the_page_of_algorithms_names_the_pieces_of_each_and_every_piece_there_is():
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    of = {row[0].strip("`"): row for row in rows if len(row) == 8}
    for name, one in ALGORITHMS.items():
        _, advantage, loss, proximal, correction, aggregation, kl, _ = of[name]
        assert re.split(r"[ ,]", advantage)[0] == one.advantage
        assert loss.split()[0] == one.loss
        assert proximal in (one.proximal, "reference" if one.loss == "dpo" else "")
        assert [part.split()[0] for part in correction.split(", ") if part] == [*one.corrections]
        assert aggregation == one.aggregation
        assert kl == (f"{one.kl_estimator} in the {one.kl_place}" if one.kl_coefficient else "")
    described = {row[0].strip("`").removeprefix("aggregation=") for row in rows if row}
    tables = (
        pieces.ADVANTAGES,
        pieces.LOSSES,
        pieces.PROXIMAL,
        pieces.CORRECTIONS,
    )
    assert described >= {name for table in (*tables, pieces.AGGREGATIONS) for name in table}
