// Package require reads the requirements of an image, NVIDIA_REQUIRE_*, and checks whether a host
// satisfies them.
//
// In: the environment of a container (FromEnv), and for Check what is known about the host and its
// GPUs. Out: a Verdict with the alternatives that hold, or an error that quotes the offending term.
// An expression is
//
//	expression = group { " " group }     one of them must hold
//	group      = term { "," term }       all of them must hold
//	term       = property operator value
//	property   = "cuda" | "driver" | "arch" | "brand"
//	operator   = "=" | "!=" | "<" | "<=" | ">" | ">="
//
// with the rules of NVIDIA's documented environment contract: property names and brands in any
// case, versions compared by number and component, brands by "=" and "!=" only, empty groups and
// terms ignored. Unlike in NVIDIA's stack, the whole expression must be well-formed, not only the
// part before the first group that holds, and unknown properties make it Unknown, not true.
//
// This package knows nothing of the host and reads no file; it takes time and memory in proportion
// to the text, which is bounded.
package require
