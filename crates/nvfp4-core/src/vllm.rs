//! What vLLM 0.33 would do with the same layer: its support predicates, its selection, the shapes it passes on.
