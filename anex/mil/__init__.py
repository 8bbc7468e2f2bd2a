"""The MIL language: types, programs, op table, builder, text, blob file, verifier."""

from anex.mil.blob import BlobFile, BlobWriter, Record
from anex.mil.builder import Builder
from anex.mil.ir import (
    BLOB_PATH,
    OPSETS,
    Binding,
    Block,
    BlobRef,
    Function,
    Literal,
    Op,
    Operand,
    Program,
    Value,
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
    "OPSETS",
    "Binding",
    "Block",
    "BlobFile",
    "BlobRef",
    "BlobWriter",
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
    "parse",
    "print_program",
    "problems",
    "verify",
]
