#!/bin/sh
# nvcc.sh NVCC OBJECT DEPFILE arguments...: runs nvcc and keeps the output of ptxas in OBJECT.ptxas.
unset CCACHE_COMMENTS  # ccache would pass -C, which nvcc does not know, and would compile without its cache
nvcc=$1 object=$2 depfile=$3
shift 3
${CCACHE:-} "$nvcc" "$@" -MD -MF "$depfile" -o "$object" 2>"$object.ptxas" || { cat "$object.ptxas" >&2; exit 1; }
grep -vE "ptxas info|bytes stack frame|^$|Compiling entry|Function properties" "$object.ptxas" >&2 || true
