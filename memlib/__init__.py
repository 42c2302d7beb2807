"""memlib: memorization audits of neural networks.

The library half of the project: data, models, training, observation, statistics and the audits
themselves. It knows neither Prefect nor Ray, and every part can be used from a notebook.
"""

__version__ = "0.1.0"
