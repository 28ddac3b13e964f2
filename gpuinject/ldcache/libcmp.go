package ldcache

import "runtime"

// signedChar reports whether the C type char of this machine is signed: it decides how bytes above
// 0x7f compare, and the loader that will search the cache is one of this machine.
const signedChar = runtime.GOARCH == "amd64" || runtime.GOARCH == "386"

// libcmp compares two library names as glibc's _dl_cache_libcmp does (elf/dl-cache.c): digits as
// numbers in a C int that wraps, everything else byte by byte. It must be the same comparison in
// every detail, because ld.so uses it for a binary search in the cache. Names that differ can
// compare equal: libfoo.so.01 and libfoo.so.1.
func libcmp(a, b string) int {
	i, j := 0, 0
	for i < len(a) {
		c, d := a[i], byteAt(b, j)
		switch {
		case isDigit(c) && isDigit(d):
			var m, n int32
			m, i = number(a, i)
			n, j = number(b, j)
			if m != n {
				return int(m - n)
			}
		case isDigit(c):
			return 1
		case isDigit(d):
			return -1
		case c != d:
			return char(c) - char(d)
		default:
			i++
			j++
		}
	}
	return -char(byteAt(b, j))
}

// byteAt returns s[i], or the terminating NUL of a C string.
func byteAt(s string, i int) byte {
	if i < len(s) {
		return s[i]
	}
	return 0
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// number reads the digits of s from i on and returns their value and the index after them.
func number(s string, i int) (n int32, end int) {
	for ; i < len(s) && isDigit(s[i]); i++ {
		n = n*10 + int32(s[i]-'0')
	}
	return n, i
}

func char(c byte) int {
	if signedChar {
		return int(int8(c))
	}
	return int(c)
}
