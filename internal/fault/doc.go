// Package fault lets tests end or fail the shim at a named step of a create, to
// prove that nothing is left behind (T30, T31). In the product, built without the
// tag shimfault, Point is an empty function and nothing is read from anywhere.
package fault
