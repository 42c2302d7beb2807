"""Training sets drawn by coins: independent, whole groups, the same for a model whatever the number of models."""

import numpy as np
import scipy

from memlib.data.inclusion import TARGET, toss


def test_a_models_coins_do_not_depend_on_the_number_of_models() -> None:
    groups = np.arange(50)
    many, few = (toss(groups, range(count), share=0.5, seed=3) for count in (256, 64))
    assert (many[:64] == few).all()
    assert (toss(groups, [TARGET], share=0.5, seed=3) != toss(groups, [0], share=0.5, seed=3)).any()


def test_coins_never_separate_a_group() -> None:
    groups = np.array([5, 5, 5, 9, 9, 2])
    coins = toss(groups, range(40), share=0.5, seed=0)
    for members in ([0, 1, 2], [3, 4]):
        assert (coins[:, members] == coins[:, members[:1]]).all()
    assert 0 < coins[:, 0].mean() < 1


def test_the_share_of_inclusion_applies_to_groups() -> None:
    coins = toss(np.arange(400), range(100), share=0.7, seed=1)
    assert scipy.stats.binomtest(int(coins.sum()), coins.size, 0.7).pvalue > 1e-4


def test_coins_of_models_and_of_examples_are_independent() -> None:
    coins = toss(np.arange(300), range(300), share=0.5, seed=2).astype(float) - 0.5
    for table in (coins, coins.T):
        correlations = np.corrcoef(table)[np.triu_indices(300, 1)]
        assert abs(correlations.mean()) < 0.002
        assert abs(correlations.std() - 1 / np.sqrt(300)) < 0.003  # as of independent coins
