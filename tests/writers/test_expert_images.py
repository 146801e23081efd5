"""Pictures of the expert loads, against counts written out by hand."""

from __future__ import annotations

import numpy as np
import torch
from support.report_runs import loads

from areal_callbacks.writers.expert_images import draw_expert_loads, enlarge

WHITE, BLACK, RED, BLUE, GREY = [247, 247, 247], [0, 0, 0], [178, 24, 43], [33, 102, 172], [128, 128, 128]


def test_colours_diverge_around_the_ideal_load_and_padding_is_grey() -> None:
    image = draw_expert_loads(loads({("", 0): [8, 2, 4, 4, 4, 4, 4, 2], ("", 1): [0, 0]}))
    colours = image["moe_balance/expert_loads"].tolist()
    double, half, ideal = colours[0][:3]
    assert ideal == WHITE
    assert double[0] > double[2]
    assert half[2] > half[0]
    assert colours[1] == [BLACK] * 2 + [GREY] * 6
    assert draw_expert_loads(None) == {}


def test_colours_are_full_at_four_times_and_a_quarter_of_the_ideal_load() -> None:
    image = draw_expert_loads(loads({("", 0): [1, 16, 4, 4, 4, 4, 1, 1, 1]}))["moe_balance/expert_loads"].tolist()[0]
    assert image == [BLUE, RED, *[WHITE] * 4, BLUE, BLUE, BLUE]


def test_pictures_are_enlarged_without_blending() -> None:
    image = torch.arange(2 * 3 * 3, dtype=torch.uint8).reshape(2, 3, 3)
    large = enlarge(image, pixels=9).numpy()
    assert large.shape == (6, 9, 3)
    np.testing.assert_array_equal(large, np.kron(image.numpy(), np.ones((3, 3, 1), dtype=np.uint8)))
    assert enlarge(torch.zeros(1, 2000, 3)).shape == (1, 2000, 3)
