"""Tables specific to self-influence audits."""

import pyarrow as pa

from memlib.tables import FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=1,
    meaning="One row per training example, the most influential first.",
    columns=(
        Column("example_id", TEXT, "", "the training example"),
        Column("label", INT, "class index", "class of the example"),
        Column("class_name", TEXT, "", "name of the class"),
        Column("rank", INT, "", "rank by self-influence, 1 for the most influential"),
        Column("self_influence", FLOAT, "nat", "TracInCP: sum of learning rate times squared gradient norm"),
        Column("share", FLOAT, "fraction", "share of the total self-influence of all examples"),
        Column("checkpoints", pa.list_(INT), "epoch", "epochs of the checkpoints that the sum is over"),
        Column("gradient_norms", pa.list_(FLOAT), "nat^2", "squared gradient norm at each of these checkpoints"),
    ),
    keys=("example_id",),
)
