// Package termtest makes pseudo-terminals, for tests of what a person would see.
package termtest
