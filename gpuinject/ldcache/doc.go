// Package ldcache parses and writes the files that dynamic loaders read, bytes in and bytes out:
// the ld.so.cache of glibc, the text of /etc/ld.so.conf and of musl's path file, and the headers
// and notes of ELF files. With it the shim makes the loader of an image find the driver without
// executing anything: no ldconfig of the host and none of the image, where CVE-2024-0135,
// CVE-2024-0136, CVE-2024-0137 and CVE-2025-23267 were.
//
// Every byte read here was written by the author of the image. The parsers are therefore written by
// hand, bounded in time and memory, and fuzzed; debug/elf of the standard library is not made for
// hostile input. Malformed input is an error; a wrong answer can harm only the container that asked
// for it.
//
// This package opens no file and knows nothing of images: package image does both.
package ldcache
