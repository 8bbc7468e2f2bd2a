"""The MIL language: types, programs, op table, builder, text, blob file, verifier."""
