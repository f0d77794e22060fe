"""What every worker runs; see `test_keras_workers.py`."""


def train(kinds):
    """Train a model of each kind, with its optimizer; returns what each of them comes to."""
    import os

    os.environ["KERAS_BACKEND"] = "jax"

    from tests.integrations.keras_models import fit, make_model, report, weights_of

    import replicax as rx
    import replicax.integrations.keras
    from replicax import testing

    strategy = rx.MultiWorkerMirroredStrategy()
    found = []
    for kind, optimizer in kinds:
        with strategy.scope():
            model = make_model(kind, optimizer, seed=testing.rank())  # the weights of rank 0 count
        history = fit(model)["loss"]
        evaluated, predicted = report(model)
        found.append((history, evaluated, predicted, weights_of(model)))
    return found
