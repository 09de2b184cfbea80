#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# libgpulease.so shows its interface alone and needs the C and C++ libraries and nghttp2 alone.
# Usage: sdk_library_test.sh LIBRARY NM READELF
set -eu
library=$1 nm=$2 readelf=$3
failed=0

classes='(Barrier|Client|Lease|Mapping|PendingLease|Exception)'
foreign=$("$nm" -DC --defined-only "$library" | cut -d' ' -f3- |
  grep -vE "^(typeinfo( name)? for |vtable for )?gpulease::abi_v1::$classes(::|\$)" || true)
if [ -n "$foreign" ]; then
  echo "exported, and not of the interface:"
  echo "$foreign"
  failed=1
fi
if ! "$nm" -DC --defined-only "$library" | grep -q 'gpulease::abi_v1::Client::Allocate'; then
  echo "Client::Allocate is not exported"
  failed=1
fi
needed=$("$readelf" -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
  grep -vE '^(libc|libm|libstdc\+\+|libgcc_s|libnghttp2)\.so\.[0-9]+$' || true)
if [ -n "$needed" ]; then
  echo "needed, and not among libc, libm, libstdc++, libgcc_s and libnghttp2:"
  echo "$needed"
  failed=1
fi
if ! "$readelf" -d "$library" | grep -q 'SONAME.*\[libgpulease\.so\.0\]'; then
  echo "its SONAME is not libgpulease.so.0"
  failed=1
fi
exit $failed
