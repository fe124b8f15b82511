"""The global batch stays the published one.  Budget: 1 s."""

import pytest

from realformer_nmt.launch import LaunchError
from realformer_nmt.launch.batch import accumulate
from realformer_nmt.launch.recipes import RECIPES, get_recipe


@pytest.mark.parametrize(
    "size, devices, update_freq", [("6l", 8, 10), ("6l", 1, 80), ("6l", 16, 5), ("60l-12l", 16, 16), ("60l-12l", 8, 32), ("60l-12l", 1, 256)]
)
def test_published_en_fr_batch(size, devices, update_freq):
    recipe = get_recipe("wmt14_en_fr", size)
    batch = accumulate(devices, recipe.max_tokens, recipe.global_batch)
    assert batch.update_freq == update_freq
    assert batch.tokens == {"6l": 640_000, "60l-12l": 1_280_000}[size]
    assert "as published" in str(batch)


@pytest.mark.parametrize("devices", range(1, 33))
@pytest.mark.parametrize("max_tokens", [1000, 3500, 4096, 8000])
def test_nearest_update_freq(devices, max_tokens):
    wanted = 640_000
    batch = accumulate(devices, max_tokens, wanted)
    distance = {u: abs(devices * max_tokens * u - wanted) for u in range(1, 2000)}
    assert distance[batch.update_freq] == min(distance.values())


def test_too_many_devices_are_refused_with_a_way_out():
    with pytest.raises(LaunchError, match=r"more than the recipe's 4,096.*--max-tokens 512"):
        accumulate(8, 4096, 4096)
    assert accumulate(8, 512, 4096).tokens == 4096


@pytest.mark.parametrize("bad", [(0, 100, 100), (1, 0, 100), (1, 100, -5)])
def test_nonsense_is_refused(bad):
    with pytest.raises(LaunchError, match="must be at least 1"):
        accumulate(*bad)


def test_unknown_corpus_and_size_list_what_there_is():
    with pytest.raises(LaunchError, match="6l, 60l-12l"):
        get_recipe("wmt14_en_fr", "12l")
    with pytest.raises(LaunchError, match="wmt14_en_de"):
        get_recipe("wmt19")
    assert {c: next(iter(s)) for c, s in RECIPES.items()} == {"wmt14_en_fr": "6l", "wmt14_en_de": "6l", "iwslt14_de_en": "6l"}
