"""Serves artefacts over HTTP and gRPC, on replicas of Ray Serve. Extra `ray`.

    python -m keras_transformer.export.serving en-de=out/onnx --port 8080

What lives here, from the bottom up:

- `limits`: all sizes and times, and the refusals with their statuses in HTTP and gRPC;
- `replica`: one artefact in a process of Ray Serve; `worker`: its threads, which compute batches;
  `cluster` starts the processes; `workers`: the connections of the threads to the service;
- `line_queue`: takes requests and makes batches of lines of similar length, by `measure`;
  `models`: counts requests and gives them deadlines; `metrics`: Prometheus and the log;
- one file for each protocol: `http_v2` and `grpc_v2` with `tensors` and `messages` (Open Inference
  Protocol), `libretranslate`, `plain` (lines in and lines out); `bodies` reads HTTP requests;
- `app`, `connections` and `origins`: HTTP; `doors`: both servers, until a signal; `service`: all of
  it; `__main__`: the command.

This package may import `export.runtime` and the packages of the extra. For a new protocol over
HTTP, write one file beside `plain` and add its name in `app`.
"""

from keras_transformer.export.serving.cluster import MissingRay
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.service import Served, serve

__all__ = ["Limits", "MissingRay", "Served", "serve"]
