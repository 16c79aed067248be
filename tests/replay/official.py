# /// script
# requires-python = "==3.11.*"
# dependencies = ["dm-reverb==0.14.0", "tensorflow-cpu==2.15.1", "setuptools<81"]
# ///
"""The official Reverb client, driven by lines of JSON on standard input.

Each line has an address and an action; each answer is one line of JSON.
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import reverb
import tensorflow as tf

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def describe(array):
    array = np.asarray(array)
    if array.dtype == object:
        strings = [x if isinstance(x, bytes) else x.encode() for x in array.ravel()]
        return {
            "dtype": "object",
            "shape": array.shape,
            "strings": [string.hex() for string in strings],
        }
    return {"dtype": array.dtype.name, "shape": array.shape, "bytes": array.tobytes().hex()}


def step(i):
    """Makes the data of one step: ranks 0 to 2 of integers, so 1 to 3 in a chunk."""
    data = {}
    for name in INTEGERS:
        data[f"{name}_scalar"] = np.asarray(100 + i, name)
        data[f"{name}_vector"] = np.asarray([200 + i, 90 - 3 * i, 7], "int64").astype(name)
        data[f"{name}_matrix"] = (np.arange(6).reshape(2, 3) * (i + 50)).astype(name)
    data["bool"] = np.array([i % 2 == 0, True])
    data["float"] = np.array([i, i / 3], np.float32)
    data["string"] = np.array([b"step", b"x" * (i * 60)], dtype=object)
    return data


def write_insert(client, table):
    """Writes a whole item at once: columns keep a leading dimension of 1."""
    client.insert(step(3), {table: 1.0})


def write_delta(client, table):
    """Writes several chunks of several columns, delta encoded, sliced in the middle of a chunk."""
    with client.writer(max_sequence_length=8, chunk_length=3, delta_encoded=True) as writer:
        for i in range(8):
            writer.append(step(i))
        writer.create_item(table, 7, 2.0)


def write_trajectory(client, table):
    """Writes columns of different lengths, chunked differently, one squeezed, one shared by two."""
    with client.trajectory_writer(num_keep_alive_refs=10) as writer:
        for name, length in (("int32_matrix", 3), ("float", 4), ("string", 2)):
            writer.configure((name,), num_keep_alive_refs=10, max_chunk_length=length)
        for i in range(10):
            writer.append(step(i))
        history = writer.history
        trajectory = {
            "a": history["int32_matrix"][1:9],
            "b": history["int32_matrix"][4:6],
            "c": history["int32_matrix"][-1],
            "d": history["float"][2:],
            "e": history["string"][-3:],
            "f": history["int64_scalar"][5],
            "g": history["bool"][[0, 3, 7]],
        }
        writer.create_item(table, 3.0, trajectory)
        writer.flush()


def write(client, request):
    cases = {"insert": write_insert, "delta": write_delta, "trajectory": write_trajectory}
    cases[request["case"]](client, request["table"])


def write_bfloat16(client, request):
    """Writes with the client for TensorFlow: the one for numpy does not know bfloat16."""
    data = [tf.constant([1.5, -2.0, 0.0], tf.bfloat16), tf.constant(3, tf.int32)]
    tf_client = reverb.TFClient(client.server_address)
    tf_client.insert(data, tf.constant([request["table"]]), tf.constant([1.0], tf.float64))


def read_bfloat16(client, request):
    """Reads the first column of an item that we wrote: a bfloat16 vector; and the names."""
    dataset = reverb.TrajectoryDataset(
        client.server_address,
        table=request["table"],
        dtypes=(tf.bfloat16, tf.string),
        shapes=(tf.TensorShape([None]), tf.TensorShape([2])),
        max_in_flight_samples_per_worker=1,
    )
    values = next(iter(dataset)).data[0]
    return {"dtype": values.dtype.name, "values": values.numpy().astype("float32").tolist()}


def read(client, request):
    """Reads items by key, each as a list of columns."""
    items = {}
    samples = client.sample(request["table"], request["count"], emit_timesteps=False)
    for sample in samples:
        items[str(sample.info.key)] = {
            "priority": sample.info.priority,
            "times_sampled": sample.info.times_sampled,
            "columns": [describe(column) for column in sample.data],
        }
    return items


def main():
    clients = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "end":
            break
        address = request["address"]
        client = clients.setdefault(address, None) or reverb.Client(address)
        clients[address] = client
        actions = (write, read, write_bfloat16, read_bfloat16)
        answer = {action.__name__: action for action in actions}[request["do"]](client, request)
        print(json.dumps(answer), flush=True)
    os._exit(0)  # without TensorFlow's slow tear-down


if __name__ == "__main__":
    main()
