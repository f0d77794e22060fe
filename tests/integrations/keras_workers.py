"""What every worker runs; see `test_keras_workers.py`."""


def train(kinds, folder):
    """Train a model of each kind, with its optimizer; returns what each of them comes to.

    The first one is trained with callbacks that write files into a folder that the workers share.
    """
    import os

    os.environ["KERAS_BACKEND"] = "jax"

    import keras
    from tests.integrations.keras_models import fit, make_model, report, weights_of

    import replicax as rx
    import replicax.integrations.keras
    from replicax import testing

    strategy = rx.MultiWorkerMirroredStrategy()
    found, files = [], []
    callbacks = [
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
        keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", monitor="loss", save_best_only=True),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: files.append(sorted(os.listdir(folder)))
        ),
    ]
    for kind, optimizer in kinds:
        with strategy.scope():
            model = make_model(kind, optimizer, seed=testing.rank())  # the weights of rank 0 count
        history = fit(model, callbacks=None if found else callbacks)["loss"]
        evaluated, predicted = report(model)
        found.append((history, evaluated, predicted, weights_of(model)))
    return found, files, sorted(os.listdir(folder)), callbacks[1].best
