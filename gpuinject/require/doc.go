// Package require reads the requirements of an image, NVIDIA_REQUIRE_*, and says whether a host
// satisfies them.
//
// In: the environment of a container (FromEnv), and for Check what is known of the host and its
// GPUs. Out: a Verdict with the alternatives that hold, or an error that quotes what is wrong. An
// expression is
//
//	expression = group { " " group }     one of them must hold
//	group      = term { "," term }       all of them must hold
//	term       = property operator value
//	property   = "cuda" | "driver" | "arch" | "brand"
//	operator   = "=" | "!=" | "<" | "<=" | ">" | ">="
//
// with the rules of NVIDIA's documented environment contract: property names and brands in any
// case, versions compared by number and component, brands by "=" and "!=" only, empty groups and
// terms ignored. Unlike NVIDIA's stack the whole expression must be well-formed, not only
// what comes before the first group that holds, and what is not known is Unknown here, not true.
//
// This package knows nothing of the host and reads no file; it takes time and memory in proportion
// to the text, which is bounded.
package require
