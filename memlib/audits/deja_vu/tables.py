"""Tables specific to déjà vu audits, and that of judged reconstructions."""

from memlib.tables import FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=2,
    meaning="The neighbours' votes on each audited example: one row per example, pair of models, layer, epoch, crop and k. "
    "Each example has one direction.",
    columns=(
        Column("example_id", TEXT, "", "the audited training image"),
        Column(
            "direction",
            TEXT,
            "",
            "the set of the image: A (the target model trained on it) or B (roles swapped; with a single model: held out)",
        ),
        Column("pair", INT, "", "number of the pair of trained models, from 0"),
        Column("layer", TEXT, "", "layer whose embedding was decoded: backbone, projector_1, ..., classifier"),
        Column("epoch", INT, "epoch", "epoch of the checkpoint"),
        Column("crop", TEXT, "", "the background crop: maximal, official or corner"),
        Column("k", INT, "", "number of public neighbours that voted"),
        Column("label", INT, "class index", "class of the object"),
        Column("class_name", TEXT, "", "name of the object's class"),
        Column(
            "target_prediction", INT, "class index", "vote under the model trained on the example, or under the only model"
        ),
        Column(
            "reference_prediction",
            INT,
            "class index",
            "vote under the model that never saw the example, or the background classifier's prediction",
        ),
        Column("target_confidence", FLOAT, "nat", "negative entropy of the vote under the target model, at most 0"),
        Column("reference_confidence", FLOAT, "nat", "the same for the reference model or the background classifier"),
        Column("group", TEXT, "", "group of examples that the split assigned together; null for an ungrouped example"),
        Column("category", TEXT, "", "memorized, misrepresented, correlated or unassociated"),
    ),
    keys=("example_id", "direction", "pair", "layer", "epoch", "crop", "k"),
)


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
