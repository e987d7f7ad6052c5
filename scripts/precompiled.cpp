// Compiled with precompiled.h, which is what is wanted of it.
