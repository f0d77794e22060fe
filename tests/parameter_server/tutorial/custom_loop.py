"""The program of TensorFlow's tutorial about parameter servers, with a loop of its own.

It makes the calls of that program in their order: servers of a cluster in this process, a partitioner,
models that look strings up, an embedding and a dense layer, a step with `tf.GradientTape` that takes an
iterator, a dataset for each worker, epochs of scheduled steps, and the two ways to evaluate inline.
"""

import json
import multiprocessing
import random

from namespace import tf

from replicax.launch import free_ports

feature_vocab = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
label_vocab = ["yes", "no"]


def create_in_process_cluster(num_workers, num_ps):
    """Servers for all tasks, and the resolver of their cluster."""
    ports = free_ports(num_workers + num_ps)
    cluster_dict = {"worker": [f"localhost:{port}" for port in ports[:num_workers]]}
    cluster_dict["ps"] = [f"localhost:{port}" for port in ports[num_workers:]]
    cluster_spec = tf.train.ClusterSpec(cluster_dict)
    worker_config = tf.compat.v1.ConfigProto()
    if multiprocessing.cpu_count() < num_workers + 1:
        worker_config.inter_op_parallelism_threads = num_workers + 1
    for i in range(num_workers):
        tf.distribute.Server(
            cluster_spec, job_name="worker", task_index=i, config=worker_config, protocol="grpc"
        )
    for i in range(num_ps):
        tf.distribute.Server(cluster_spec, job_name="ps", task_index=i, protocol="grpc")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")


def main():
    cluster_resolver = create_in_process_cluster(num_workers=2, num_ps=2)
    variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=256, max_shards=2
    )
    strategy = tf.distribute.ParameterServerStrategy(
        cluster_resolver, variable_partitioner=variable_partitioner
    )

    with strategy.scope():
        feature_lookup_layer = tf.keras.layers.StringLookup(vocabulary=feature_vocab, mask_token=None)
        label_lookup_layer = tf.keras.layers.StringLookup(
            vocabulary=label_vocab, num_oov_indices=0, mask_token=None
        )
        raw_feature_input = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="feature")
        feature_id_input = feature_lookup_layer(raw_feature_input)
        feature_preprocess_stage = tf.keras.Model({"features": raw_feature_input}, feature_id_input)
        raw_label_input = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
        label_id_input = label_lookup_layer(raw_label_input)
        label_preprocess_stage = tf.keras.Model({"label": raw_label_input}, label_id_input)

    def feature_and_label_gen(num_examples=200):
        examples = {"features": [], "label": []}
        for _ in range(num_examples):
            features = random.sample(feature_vocab, 3)
            label = ["yes"] if "avenger" in features else ["no"]
            examples["features"].append(features)
            examples["label"].append(label)
        return examples

    def preprocess(x):
        features = {"features": feature_preprocess_stage(x["features"])}
        return features, label_preprocess_stage(x["label"])

    random.seed(0)  # not in the tutorial: all runs have the same examples
    examples = feature_and_label_gen()

    def dataset_fn(_):
        raw_dataset = tf.data.Dataset.from_tensor_slices(examples)
        return raw_dataset.map(preprocess).shuffle(200).batch(32).repeat()

    with strategy.scope():
        model_inputs = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="model_input")
        emb_layer = tf.keras.layers.Embedding(
            input_dim=len(feature_lookup_layer.get_vocabulary()), output_dim=20
        )
        emb_output = tf.reduce_mean(emb_layer(model_inputs), axis=1)
        dense_output = tf.keras.layers.Dense(
            units=1, activation="sigmoid", kernel_regularizer=tf.keras.regularizers.L2(1e-4)
        )(emb_output)
        model = tf.keras.Model({"features": model_inputs}, dense_output)
        optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.1)
        accuracy = tf.keras.metrics.Accuracy()

    @tf.function
    def step_fn(iterator):
        def replica_fn(batch_data, labels):
            with tf.GradientTape() as tape:
                pred = model(batch_data, training=True)
                per_example_loss = tf.keras.losses.BinaryCrossentropy(
                    reduction=tf.keras.losses.Reduction.NONE
                )(labels, pred)
                loss = tf.nn.compute_average_loss(per_example_loss)
                model_losses = model.losses
                if model_losses:
                    loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
            accuracy.update_state(labels, actual_pred)
            return loss

        batch_data, labels = next(iterator)
        losses = strategy.run(replica_fn, args=(batch_data, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def per_worker_dataset_fn():
        return strategy.distribute_datasets_from_function(dataset_fn)

    per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
    per_worker_iterator = iter(per_worker_dataset)

    accuracies = []
    for _ in range(4):
        accuracy.reset_states()
        for _ in range(5):
            coordinator.schedule(step_fn, args=(per_worker_iterator,))
        coordinator.join()
        accuracies.append(float(accuracy.result().numpy()))
    loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    final_loss = float(loss.fetch())

    # Evaluation in the coordinator.
    eval_dataset = tf.data.Dataset.from_tensor_slices(feature_and_label_gen(num_examples=16))
    eval_accuracy = tf.keras.metrics.Accuracy()
    for batch_data, labels in eval_dataset.map(preprocess).batch(8):
        pred = model(batch_data, training=False)
        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        eval_accuracy.update_state(labels, actual_pred)

    # Evaluation on the workers, each with its own dataset.
    with strategy.scope():
        inline_accuracy = tf.keras.metrics.Accuracy()

    @tf.function
    def eval_step(iterator):
        def replica_fn(batch_data, labels):
            pred = model(batch_data, training=False)
            inline_accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))

        batch_data, labels = next(iterator)
        strategy.run(replica_fn, args=(batch_data, labels))

    def eval_dataset_fn():
        raw_dataset = tf.data.Dataset.from_tensor_slices(feature_and_label_gen(num_examples=16))
        return raw_dataset.map(preprocess).shuffle(16).repeat().batch(8)

    eval_iterator = iter(coordinator.create_per_worker_dataset(eval_dataset_fn))
    for _ in range(4):
        coordinator.schedule(eval_step, args=(eval_iterator,))
    coordinator.join()
    result = {
        "accuracies": accuracies,
        "loss": final_loss,
        "coordinator": float(eval_accuracy.result()),
        "inline": float(inline_accuracy.result()),
        "table": len(emb_layer.embeddings.replicax_variable.layout.placement.parts),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
