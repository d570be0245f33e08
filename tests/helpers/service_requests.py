"""Valid, malformed and raw requests to a service."""

import socket
import time

import grpc

from keras_transformer.export.serving.messages import MESSAGES

LINE = b"two dogs run along the beach ."
HEAD = b"POST /lines/en-de HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n"


def ask(running, path="/lines/en-de", body=LINE, headers=()):
    return running.request("POST", path, body, headers)


def infer(data=("x",), shape=None, **fields):
    """Returns the body of an Open Inference Protocol request."""
    entry = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [len(data)] if shape is None else shape,
        "data": data,
    }
    return {"inputs": [entry | fields]}


def grpc_call(running, data, method="ModelInfer", timeout=60):
    """Sends bytes to a method. Returns the answer's code and text."""
    with grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        try:
            return grpc.StatusCode.OK, call(data, timeout=timeout)
        except grpc.RpcError as error:
            return error.code(), error.details()


def grpc_infer(**fields):
    entry = {"name": "text", "datatype": "BYTES", "shape": [1]}
    request = {"model_name": "en-de", "inputs": [entry], "raw_input_contents": [b"\1\0\0\0x"]}
    return MESSAGES["ModelInferRequest"](**request | fields).SerializeToString()


def wait_for(holds):
    end = time.monotonic() + 60  # much more than it takes on a busy machine
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def raw(running, data, then=b"", pause=0.0):
    """Sends bytes on a new connection. Returns the answer."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as opened:
        opened.sendall(data)
        time.sleep(pause)
        if then:
            opened.sendall(then)
        opened.settimeout(60)
        return opened.recv(65536)
