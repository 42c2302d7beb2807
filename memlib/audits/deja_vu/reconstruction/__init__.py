"""Reconstructions (RCDM): what the neighbours of a background crop have in common, drawn by a generator and judged.

Meehan 2023 (Figs. 1, 2, 6, 7, 11, 12, 20) shows such pictures. Here a generator for each encoder is trained on public images
alone; both generators draw the hidden part of the same audited images from the same noise, and only this part is judged. The
test asks whether the model that was trained on an image draws it better than the other model; it redraws the sides.
"""
