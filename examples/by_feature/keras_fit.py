"""Keras' own training loop on several devices: just create the model in the scope.

Needs Keras: pip install 'replicax[keras]'.
"""

import numpy as np

import replicax as rx
import replicax.integrations.keras  # before Keras: selects the JAX backend

# isort: split
import keras

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()

x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
y = np.sin(x.sum(axis=1, keepdims=True))

keras.utils.set_random_seed(0)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])

# The last batch has 40 rows instead of 64, and the numbers still match those of one device.
model.fit(x, y, batch_size=64, epochs=5, verbose=2, validation_data=(x[:100], y[:100]))
print("predicted", model.predict(x[:3], verbose=0).ravel().round(2), "for", y[:3].ravel().round(2))
