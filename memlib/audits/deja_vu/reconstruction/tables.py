"""The table of judged reconstructions."""

from memlib.tables import FLOAT, INT, TEXT, Column, Table

NEIGHBORS = "neighbours"  # the attack

RECONSTRUCTIONS = Table(
    name="reconstructions",
    version=1,
    meaning="Measures of what each model draws of audited images from their background crops; ranks and names rest on the "
    "part that the crop does not show. One row per image, model, source of the pictures, and measure.",
    columns=(
        Column("example_id", TEXT, "", "the audited image"),
        Column("direction", TEXT, "", "the set of the image, A or B: the model of the same name was trained on it"),
        Column("pair", INT, "", "number of the pair of trained models, from 0"),
        Column("model", TEXT, "", "the model that drew: A or B"),
        Column(
            "source", TEXT, "",
            "what the pictures were drawn from: neighbours (the mean of the crop's public neighbours: the attack), crop (the "
            "crop's own representation), whole image (the image's: inversion, an upper limit, no memory), shuffled (the "
            "neighbours of another image of its class), none; decoder (an MLP, from the neighbours); or, without a "
            "generator, nearest public image and mean of neighbours",
        ),
        Column(
            "measure", TEXT, "",
            "rank (share of other audited images of its class that the judges find nearer than the true image; 0: none), "
            "rank by pixels, class named (share of the pictures; or 1 if the first picture is), attribute named, copies of "
            "public images (share), "
            "spread of the hidden and of the shown part (standard deviation over samples)",
        ),
        Column("value", FLOAT, "", "the measure; null where it is undefined"),
        Column("candidates", INT, "", "number of other images among which the true one was ranked"),
    ),
    keys=("example_id", "direction", "pair", "model", "source", "measure"),
    optional=True,
)  # fmt: skip
