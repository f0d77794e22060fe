"""The program that every worker runs; see `test_keras_workers.py`."""

import json

from tests.multiprocess.launch import join_cluster

join_cluster(1)

from tests.integrations.keras_models import fit, make_model, report, weights_of  # noqa: E402

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402

if __name__ == "__main__":
    with rx.MultiWorkerMirroredStrategy().scope():
        model = make_model("mlp", "sgd")
    history = fit(model)
    evaluated, predicted = report(model)
    found = [[history["loss"], evaluated], predicted.tolist(), [w.tolist() for w in weights_of(model)]]
    print("found", json.dumps(found))
