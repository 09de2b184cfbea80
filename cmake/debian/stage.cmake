# SPDX-License-Identifier: Apache-2.0
#
# cpack runs this over the files of all packages before it packs them: Debian wants manual pages and changelogs
# compressed, and the same bytes from each build.
file(GLOB_RECURSE files ${CPACK_TEMPORARY_DIRECTORY}/*)
list(FILTER files INCLUDE REGEX "/man/man[1-8]/[^/]*[1-8]$|/changelog.Debian$")
execute_process(COMMAND gzip -9nf ${files} COMMAND_ERROR_IS_FATAL ANY)
