"""What the display shows of the roles' reports."""

import pytest

from rl_sync.messages.run_status import RoleStatus
from rl_sync.roles.master.status_board import StatusBoard
from tests.settings.changed import settings_with


def test_the_reward_on_the_display_is_a_moving_mean_of_steps():
    board, shown = StatusBoard(settings_with(), 0.0, "rl"), []
    for step, reward in ((1, 0.0), (1, 0.0), (2, 1.0), (2, 1.0), (3, None), (3, 1.0)):
        board.heard(RoleStatus("trainer", "train", 0.1, step=step, reward=reward))
        shown.append(board.role("trainer").reward)
    two, three = 0.1 / 0.19, 0.19 / 0.271
    assert shown == pytest.approx([0.0, 0.0, two, two, None, three])
    board.heard(RoleStatus("explorer1", "rollout", 0.1, step=9, reward=0.25))
    assert board.role("explorer1").reward == pytest.approx(0.25)
