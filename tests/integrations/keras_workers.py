"""The program that every worker runs; see `test_keras_workers.py`."""

import json


def main():
    from tests.multiprocess.launch import join_cluster

    join_cluster(1)

    from tests.integrations.keras_models import fit, make_model, report, weights_of

    import replicax as rx
    import replicax.integrations.keras

    with rx.MultiWorkerMirroredStrategy().scope():
        model = make_model("mlp", "sgd")
    history = fit(model)
    evaluated, predicted = report(model)
    found = [[history["loss"], evaluated], predicted.tolist(), [w.tolist() for w in weights_of(model)]]
    print("found", json.dumps(found))


if __name__ == "__main__":
    main()
