"""A chunker and a retriever of the shop's own, for use with denominator."""
