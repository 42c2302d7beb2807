"""Upper limits of numbers in recipes: larger numbers are presumably typos, and would lead to a hang or a full disk."""

MOST_SEED = 2**63 - 1
MOST_MODELS = 1_000_000  # small models of one kind, workers, parts
MOST_TRAINED = 10_000  # models, or sets of models, that are artifacts of their own
MOST_DRAWS = 1_000_000_000  # replicates, permutations, guesses, pictures of a page
MOST_EXAMPLES = 1_000_000_000
MOST_STEPS = 1_000_000_000  # epochs, steps
MOST_PIXELS = 100_000  # along a side; also tokens in a window
MOST_WIDTH = 1_000_000  # units, layers
MOST_NUMBER = 1e12
