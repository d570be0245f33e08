"""Serves artefacts over HTTP and gRPC, on replicas of Ray Serve. Extra `ray`.

    python -m keras_transformer.export.serving en-de=out/onnx --port 8080

What lives here, from the bottom up:

- `refusals`: why a request gets no answer, and what that is in each protocol;
- `replica`: one artefact in a process of Ray Serve's; `cluster`: these processes are started;
  `workers`: how a batch reaches them;
- `line_queue`: requests in, batches of lines of similar length out, by `measure`; `models`: what
  the doors ask, with limits and deadlines; `metrics`: Prometheus and the log;
- the doors: `http_v2` and `grpc_v2`, the Open Inference Protocol, with `tensors` and `messages`;
  `libretranslate`; `plain`, lines in and lines out; with `bodies`, how requests are read;
- `app` and `connections`: HTTP; `doors`: both servers, until a signal; `service`: all of it;
  `__main__`: the command.

What may be imported: `export.runtime` and the packages of the extra. A new door over HTTP is one
file beside `plain` and its name in `app`.
"""

from keras_transformer.export.serving.cluster import MissingRay
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.service import Served, serve

__all__ = ["Limits", "MissingRay", "Served", "serve"]
