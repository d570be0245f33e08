"""gRPC messages of the Open Inference Protocol, version 2, made from a table.

In every message, the fields are numbered from 1 in the order below, and a map is a list of entries
of key and value. The classes are in a separate pool, so that a process may also hold a client's
classes of the same names. Without generated code, the package depends on no release of protobuf.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_TENSOR = ("string name", "string datatype", "repeated int64 shape")
_NAMED = ("string name", "string version")
_FIELDS = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready",),
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": ("bool ready",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (*_NAMED, "repeated string extensions"),
    "ModelMetadataRequest": _NAMED,
    "TensorMetadata": _TENSOR,
    "ModelMetadataResponse": (
        "string name",
        "repeated string versions",
        "string platform",
        "repeated TensorMetadata inputs",
        "repeated TensorMetadata outputs",
    ),
    "InferParameter": (
        "bool bool_param",
        "int64 int64_param",
        "string string_param",
        "double double_param",
        "uint64 uint64_param",
    ),
    "Parameter": ("string key", "InferParameter value"),  # an entry of the maps
    "InferTensorContents": (
        "repeated bool bool_contents",
        "repeated int32 int_contents",
        "repeated int64 int64_contents",
        "repeated uint32 uint_contents",
        "repeated uint64 uint64_contents",
        "repeated float fp32_contents",
        "repeated double fp64_contents",
        "repeated bytes bytes_contents",
    ),
    "InferTensor": (*_TENSOR, "repeated Parameter parameters", "InferTensorContents contents"),
    "InferRequestedOutputTensor": ("string name", "repeated Parameter parameters"),
    "ModelInferRequest": (
        "string model_name",
        "string model_version",
        "string id",
        "repeated Parameter parameters",
        "repeated InferTensor inputs",
        "repeated InferRequestedOutputTensor outputs",
        "repeated bytes raw_input_contents",
    ),
    "ModelInferResponse": (
        "string model_name",
        "string model_version",
        "string id",
        "repeated Parameter parameters",
        "repeated InferTensor outputs",
        "repeated bytes raw_output_contents",
    ),
}
_ONE_OF = {"InferParameter": "parameter_choice"}
# The types of the fields of each message, by number from 0.
FIELD_TYPES: dict[str, list[str]] = {
    name: [text.split()[-2] for text in fields] for name, fields in _FIELDS.items()
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    package = "keras_transformer.inference"
    file = descriptor_pb2.FileDescriptorProto(
        name="keras_transformer/inference.proto", package=package, syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name=_ONE_OF[name])
        for number, text in enumerate(fields, 1):
            *repeated, kind, field_name = text.split()
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in _FIELDS:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            if name in _ONE_OF:
                field.oneof_index = 0
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
# Class of each message, by its name.
MESSAGES = {
    name: message_factory.GetMessageClass(
        _pool.FindMessageTypeByName(f"keras_transformer.inference.{name}")
    )
    for name in _FIELDS
}


def count_fields(name: str, data: bytes, most: int) -> int:
    """Counts the fields of a message before parsing, which turns two bytes into a hundred.

    Args:
        name: name of the message.
        data: its bytes. A packed field counts by its bytes.
        most: int, where counting ends.

    Returns:
        int, the fields of the message and of its inner messages; or a number above `most`.

    Raises:
        DecodeError: the bytes are not a message.
    """
    count, left = 0, [(0, len(data), name)]
    while left:
        place, end, name = left.pop()
        while place < end and count <= most:
            tag, place = _varint(data, place)
            count += 1
            match tag & 7:
                case 0:
                    _, place = _varint(data, place)
                case 1:
                    place += 8
                case 2:
                    length, place = _varint(data, place)
                    number = (tag >> 3) - 1
                    kind = (
                        FIELD_TYPES[name][number]
                        if 0 <= number < len(FIELD_TYPES[name])
                        else "bytes"
                    )
                    if kind in _FIELDS:
                        left.append((place, place + length, kind))
                    elif kind not in ("string", "bytes"):
                        count += length
                    place += length
                case 5:
                    place += 4
                case _:
                    raise DecodeError("a group, or no kind of field")
            if place > end:
                raise DecodeError("a field ends after its message")
    return count


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Reads an integer, seven bits per byte; returns it and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise DecodeError("an integer without an end")
