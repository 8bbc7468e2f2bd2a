"""The MIL language: types, programs, op table, builder, text, blob file, verifier."""

from anex.mil.blob import BlobFile, Blobs, BlobWriter, Record, blob_files, pack, unpack
from anex.mil.builder import Builder
from anex.mil.constexpr import KINDS as CONSTEXPR
from anex.mil.constexpr import fold
from anex.mil.ir import (
    BLOB_PATH,
    MODEL_PATH,
    OPSETS,
    Attributes,
    Binding,
    BlobRef,
    Block,
    Function,
    Literal,
    Op,
    Operand,
    Program,
    Value,
    map_binding,
    stays_inside,
)
from anex.mil.text import parse, print_program
from anex.mil.types import (
    BufferType,
    DictType,
    DType,
    ListType,
    StateType,
    TensorType,
    TupleType,
    Type,
)
from anex.mil.verify import problems, verify

__all__ = [
    "BLOB_PATH",
    "CONSTEXPR",
    "MODEL_PATH",
    "OPSETS",
    "Attributes",
    "Binding",
    "BlobFile",
    "BlobRef",
    "BlobWriter",
    "Blobs",
    "Block",
    "BufferType",
    "Builder",
    "DType",
    "DictType",
    "Function",
    "ListType",
    "Literal",
    "Op",
    "Operand",
    "Program",
    "Record",
    "StateType",
    "TensorType",
    "TupleType",
    "Type",
    "Value",
    "blob_files",
    "fold",
    "map_binding",
    "pack",
    "parse",
    "print_program",
    "problems",
    "stays_inside",
    "unpack",
    "verify",
]
