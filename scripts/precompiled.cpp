// Compiled only to produce the precompiled header.
