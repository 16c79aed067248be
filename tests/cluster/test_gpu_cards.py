"""GPUs are described as the driver's command says, and not at all where it says nothing."""

import pytest

from rl_sync.cluster.gpu_cards import GpuCard, cards_of

T4 = "0, GPU-8932f937, Tesla T4, 7.5, 15360, 3"
LARGE = "1, GPU-1b2c3d4e, NVIDIA GeForce RTX 4090, 8.9, 24564, 512"
OTHER_T4 = "1, GPU-5a5a5a5a, Tesla T4, 7.5, 15360, 9000"
CARD = GpuCard("Tesla T4", (7, 5), 15360 * 2**20, 3 * 2**20)


@pytest.fixture
def driver(tmp_path):
    """Returns a function that makes the driver's command, and the variables that find it."""

    def make(*lines, status=0, **variables):
        command = tmp_path / "nvidia-smi"
        said = "\n".join(f"echo '{line}'" for line in lines)
        command.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n{said}\nexit {status}\n')
        command.chmod(0o755)
        return {"PATH": str(tmp_path), **variables}

    return make


def test_a_card_has_what_the_driver_says(driver, tmp_path):
    assert cards_of(["0"], driver(T4)) == [CARD]
    asked = (tmp_path / "asked").read_text()
    fields = "index,uuid,name,compute_cap,memory.total,memory.used"
    assert asked == f"--query-gpu={fields} --format=csv,noheader,nounits\n"


def test_those_are_chosen_that_a_run_has(driver):
    variables = driver(T4, OTHER_T4)
    assert [card.used >> 20 for card in cards_of(["1"], variables)] == [9000]
    assert [card.used >> 20 for card in cards_of(["GPU-8932"], variables)] == [3]
    assert len(cards_of(["0", "1"], variables)) == 2
    assert cards_of(["MIG-8932f937"], variables) == []


def test_numbers_of_gpus_that_differ_are_not_trusted(driver):
    assert cards_of(["0"], driver(T4, LARGE)) == []
    assert cards_of(["0"], driver(T4, LARGE, CUDA_DEVICE_ORDER="PCI_BUS_ID")) == [CARD]
    assert cards_of(["GPU-8932f937"], driver(T4, LARGE)) == [CARD]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((), 0),
        ((T4,), 9),
        (("0, GPU-1, NVIDIA GB10, 12.1, [N/A], [N/A]",), 0),
        (("No devices were found",), 0),
    ],
)
def test_where_the_driver_does_not_say_it_nothing_is_known(driver, lines, status):
    assert cards_of(["0"], driver(*lines, status=status)) == []


def test_without_the_command_nothing_is_known(tmp_path):
    assert cards_of(["0"], {"PATH": str(tmp_path)}) == []


@pytest.mark.parametrize(
    ("capability", "half"), [((7, 0), "float16"), ((7, 5), "float16"), ((8, 0), "bfloat16")]
)
def test_units_for_bfloat16_came_with_ampere(capability, half):
    assert CARD._replace(capability=capability).half == half
