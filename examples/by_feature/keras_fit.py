"""Keras' own training loop on several devices: make the model in the scope, and that is all.

Needs Keras: pip install 'replicax[keras]'.
"""

import numpy as np

import replicax as rx
import replicax.integrations.keras  # before Keras: it chooses JAX

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

# 1000 rows in batches of 64: the last one has 40, and the numbers are those of one device.
model.fit(x, y, batch_size=64, epochs=5, verbose=2, validation_data=(x[:100], y[:100]))
print("predicted", model.predict(x[:3], verbose=0).ravel().round(2), "for", y[:3].ravel().round(2))
