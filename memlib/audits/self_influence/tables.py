"""The tables that only self-influence audits have."""

import pyarrow as pa

from memlib.tables import FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=1,
    meaning="A row a training example, the most influential first.",
    columns=(
        Column("example_id", TEXT, "", "the training example"),
        Column("label", INT, "class index", "its class"),
        Column("class_name", TEXT, "", "the class's name"),
        Column("rank", INT, "", "1 for the most influential"),
        Column("self_influence", FLOAT, "nat", "TracInCP: sum of learning rate times squared gradient norm"),
        Column("share", FLOAT, "fraction", "of the self-influence of all examples"),
        Column("checkpoints", pa.list_(INT), "epoch", "the checkpoints it is a sum over"),
        Column("gradient_norms", pa.list_(FLOAT), "nat^2", "squared gradient norm at each of them"),
    ),
    keys=("example_id",),
)
